"""Measurements of the master itself, and counters of copies, beside the gauges of clusters in `health`."""

from collections.abc import Mapping

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, Metric

from stele.core.reign import State
from stele.master.copied import totals

DECISION = Histogram(
    "stele_decision_seconds",
    "Processor-bound time of one decision about one cluster.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    registry=None,
)
"""Nothing else of any cluster happens meanwhile: this is how late a heartbeat or a step may come."""

COPY_LABELS = ["namespace", "cluster", "destination", "engine"]


def copy_metrics(clusters: Mapping[tuple[str, str], State]) -> list[Metric]:
    """Counters per destination and engine since this master reigns."""
    sizes = CounterMetricFamily("stele_copied_bytes", "Bytes copied to a member.", labels=COPY_LABELS)
    tasks = CounterMetricFamily("stele_copy_tasks", "Tasks that copied to a member.", labels=COPY_LABELS)
    retries = CounterMetricFamily("stele_copy_retries", "Tasks and copies begun again.", labels=COPY_LABELS)
    failures = CounterMetricFamily("stele_copy_failures", "Sessions that failed.", labels=COPY_LABELS)
    for key, state in clusters.items():
        for destination, engine, copied in totals(state):
            labels = [*key, destination, engine]
            sizes.add_metric(labels, copied.bytes_copied)
            tasks.add_metric(labels, copied.tasks)
            retries.add_metric(labels, copied.retries)
            failures.add_metric(labels, copied.failures)
    return [sizes, tasks, retries, failures]
