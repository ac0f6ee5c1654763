"""Metrics of the master itself and counters of copies, besides the gauges of clusters in `health`."""

from collections.abc import Mapping

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stele.core.control.state import State
from stele.core.placement.migration import Type
from stele.master.copy_progress import totals
from stele.model.cluster_status import TabletClusterStatus
from stele.model.conditions import ConditionStatus

DECISION = Histogram(
    "stele_decision_seconds",
    "CPU time of one decision about one cluster.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    registry=None,
)
"""A decision blocks the event loop, so this bounds how late a heartbeat or a step may be."""

RECONCILE = Histogram(
    "stele_reconcile_duration_seconds",
    "One round about one cluster: observe, decide, store, send, create, report.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    registry=None,
)

RECONCILE_ERRORS = Counter(
    "stele_reconcile_errors",
    "Rounds, or parts of them, that ended with an error.",
    ["namespace", "cluster", "code"],
    registry=None,
)


def forget_cluster(namespace: str, cluster: str) -> None:
    """Drop the series of a cluster that was deleted."""
    RECONCILE_ERRORS.remove_by_labels({"namespace": namespace, "cluster": cluster})


def request_metric(requests: Mapping[tuple[str, str, str], int]) -> Metric:
    """Return the requests to the API server; kopf's watches are not counted."""
    text, labels = "Requests to the API server.", ["verb", "kind", "code"]
    family = CounterMetricFamily("stele_kubernetes_requests", text, labels=labels)
    for key, number in requests.items():
        family.add_metric(list(key), number)
    return family


def migration_metric(clusters: Mapping[tuple[str, str], State]) -> Metric:
    """Return the migrations that ended since this master became leader."""
    labels = ["namespace", "cluster", "type", "result"]
    family = CounterMetricFamily("stele_migrations_finished", "Migrations that ended.", labels=labels)
    for key, state in clusters.items():
        for type_ in Type:
            for stored, result in ((True, "done"), (False, "rolled_back")):
                number = state.rebalance.migrations_ended[type_, stored]
                family.add_metric([*key, type_.value.lower(), result], number)
    return family


COPY_LABELS = ["namespace", "cluster", "destination", "engine"]


def copy_metrics(clusters: Mapping[tuple[str, str], State]) -> list[Metric]:
    """Return counters per destination and engine since this master became leader."""
    sizes = CounterMetricFamily("stele_copied_bytes", "Bytes copied to a member.", labels=COPY_LABELS)
    tasks = CounterMetricFamily("stele_copy_tasks", "Tasks that copied to a member.", labels=COPY_LABELS)
    retries = CounterMetricFamily(
        "stele_copy_retries", "Tasks and copies that were retried.", labels=COPY_LABELS
    )
    failures = CounterMetricFamily("stele_copy_failures", "Sessions that failed.", labels=COPY_LABELS)
    for key, state in clusters.items():
        for destination, engine, copied in totals(state):
            labels = [*key, destination, engine]
            sizes.add_metric(labels, copied.bytes_copied)
            tasks.add_metric(labels, copied.tasks)
            retries.add_metric(labels, copied.retries)
            failures.add_metric(labels, copied.failures)
    return [sizes, tasks, retries, failures]


STATE_LABELS = ["namespace", "cluster", "state"]


def status_metrics(statuses: Mapping[tuple[str, str], TabletClusterStatus]) -> list[Metric]:
    """Return the counts and conditions of each cluster's status."""
    parts = GaugeMetricFamily("stele_cluster_partitions", "Partitions by safety.", labels=STATE_LABELS)
    members = GaugeMetricFamily("stele_cluster_members", "Members; states overlap.", labels=STATE_LABELS)
    moves = GaugeMetricFamily("stele_migrations", "Migrations of the present plan.", labels=STATE_LABELS)
    labels = ["namespace", "cluster", "type", "status"]
    conditions = GaugeMetricFamily("stele_cluster_condition", "1 for the status it has.", labels=labels)
    for key, status in statuses.items():
        counted, migrations = status.partitions, status.migrations
        _by_state(parts, key, safe=counted.safe, under_replicated=counted.under_replicated, lost=counted.lost)
        _by_state(members, key, **status.members.model_dump())
        _by_state(moves, key, active=migrations.active, waiting=migrations.waiting)
        for condition in status.conditions:
            for each in ConditionStatus:
                conditions.add_metric([*key, condition.type, each.value], condition.status is each)
    return [parts, members, moves, conditions]


def _by_state(metric: GaugeMetricFamily, key: tuple[str, str], **counts: int) -> None:
    for state, number in counts.items():
        metric.add_metric([*key, state], number)
