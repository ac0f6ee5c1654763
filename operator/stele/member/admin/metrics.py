"""Prometheus metrics of a member, read from its state on demand.

No label names a partition or a client, so their number is bounded by that of the members.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from stele import __version__
from stele.member.admin.tablet_info import quarantined_tablets
from stele.member.node import Node
from stele.member.replication.latency import Histogram
from stele.member.replication.replica import Replica

BROKEN = "broken"
"""The state of a tablet that is offline because of damage."""
TABLET_STATES = ("copying", "ready", "deleted", BROKEN)


class Metrics(Collector):
    """Counters, gauges and histograms, with units in their names."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, node: Node) -> None:
        self._node = node
        self._volumes_bytes = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self, quarantined_volumes_bytes: int) -> bytes:
        """Return all metrics; the size of quarantined volumes takes too long to be measured here."""
        self._volumes_bytes = quarantined_volumes_bytes
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._durations()
        yield self._lag()
        yield self._tablets()
        yield from self._volume()
        yield from self._sizes()
        yield _gauge("stele_build_info", "Version of the program.", 1, version=__version__)

    def _requests(self) -> Iterator[Metric]:
        counters = self._node.delayed_replies.counters
        text = "Commands that this member answered as the owner, or failed to."
        requests = CounterMetricFamily("stele_requests", text, labels=["operation", "result"])
        requests.add_metric(["read", "ok"], counters.reads)
        requests.add_metric(["write", "ok"], counters.writes)
        requests.add_metric(["read", "unavailable"], counters.unavailable_reads)
        requests.add_metric(["write", "unavailable"], counters.unavailable_writes)
        requests.add_metric(["write", "uncertain"], counters.uncertain)
        yield requests
        text = "Requests that were sent on to the owner."
        yield CounterMetricFamily("stele_requests_forwarded", text, value=counters.forwarded)

    def _durations(self) -> Iterator[Metric]:
        node = self._node
        text = "From a request's arrival at the owner to its answer."
        requests = HistogramMetricFamily("stele_request_duration_seconds", text, labels=["operation"])
        for operation, histogram in node.delayed_replies.latencies.items():
            requests.add_metric([operation], histogram.buckets(), histogram.sum_seconds)
        yield requests
        yield _histogram("stele_log_sync_duration_seconds", "Syncs of the log.", node.group_commit.seconds)
        text = "How long partitions were frozen while their owner changed."
        yield _histogram("stele_handover_duration_seconds", text, node.hand_over_times.seconds)

    def _lag(self) -> Metric:
        """Sum the operations that a member of a row, or a learner, has not acknowledged."""
        lags: Counter[int] = Counter()
        for replica in self._node.replicas.values():
            if replica.owner is not None:
                last = replica.tablet.log.last[1]
                for member, progress in replica.owner.progress.items():
                    lags[member] += max(0, last - progress.match)
        text = "Operations of partitions owned here that the other member has not acknowledged."
        family = GaugeMetricFamily("stele_replication_lag_operations", text, labels=["peer"])
        known = self._node.table.members
        for member, operations in lags.items():
            family.add_metric([known[member].name if member in known else str(member)], operations)
        return family

    def _tablets(self) -> Metric:
        replicas = self._node.replicas.values()
        states = Counter(_state(each) for each in replicas if each.broken or each.state is not None)
        family = GaugeMetricFamily("stele_tablets", "Tablets by state.", labels=["state"])
        for state in TABLET_STATES:
            family.add_metric([state], states[state])
        return family

    def _volume(self) -> Iterator[Metric]:
        node = self._node
        yield _gauge("stele_volume_capacity_bytes", "Size of the volume.", node.volume.capacity_bytes())
        yield _gauge("stele_volume_free_bytes", "Free space of the volume.", node.gate.free_bytes)
        tablets = sum(
            tablet.bytes
            for replica in node.replicas.values()
            for tablet in quarantined_tablets(node.tablets, replica)
        )
        text = "Data of deleted or replaced tablets and damaged volumes that is kept for a while."
        yield _gauge("stele_quarantine_bytes", text, tablets + self._volumes_bytes)

    def _sizes(self) -> Iterator[Metric]:
        node = self._node
        ready = [replica for replica in node.replicas.values() if replica.ready]
        yield _gauge("stele_partitions_unserved", "Owned and not served.", len(node.roles.unserved()))
        yield _gauge("stele_entries", "Entries in all tablets.", sum(r.entries for r in ready))
        yield _gauge("stele_data_bytes", "Keys and values in all tablets.", sum(r.size_bytes for r in ready))
        yield _gauge("stele_log_bytes", "Operations in all logs.", sum(r.tablet.log.bytes for r in ready))
        yield _gauge("stele_pending_bytes", "Written, not committed.", node.delayed_replies.pending_bytes)
        connected = sum(1 for link in node.links.values() if link.ready)
        yield _gauge("stele_members_connected", "Connected links to other members.", connected)


def _state(replica: Replica) -> str:
    return BROKEN if replica.broken or replica.state is None else replica.state.lower()


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, histogram.buckets(), histogram.sum_seconds)
