"""Prometheus metrics of a member, read from its state on demand."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from stele.member.node import Node


class Metrics(Collector):
    """Counters and gauges, with units in their names; per member, not per partition."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, node: Node) -> None:
        self._node = node
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        node = self._node
        counters = node.answers.counters
        requests = CounterMetricFamily("stele_requests", "Requests by kind", labels=["kind"])
        for kind in ("reads", "writes", "forwarded", "errors"):
            requests.add_metric([kind], getattr(counters, kind))
        yield requests
        yield self._latencies()
        yield from self._gauges()

    def _latencies(self) -> Metric:
        family = HistogramMetricFamily(
            "stele_request_seconds", "From a request's arrival at its owner to its answer", labels=["kind"]
        )
        for kind, histogram in self._node.answers.latencies.items():
            family.add_metric([kind], histogram.buckets(), histogram.sum_seconds)
        return family

    def _gauges(self) -> Iterator[Metric]:
        node = self._node
        ready_replicas = [replica for replica in node.replicas.values() if replica.ready]
        yield _gauge("stele_tablets", "Tablets that are READY", len(ready_replicas))
        broken = sum(1 for replica in node.replicas.values() if replica.broken)
        yield _gauge("stele_tablets_broken", "Tablets that are offline", broken)
        yield _gauge("stele_partitions_unserved", "Owned and not served", len(node.roles.unserved()))
        yield _gauge("stele_entries", "Entries in all tablets", sum(r.entries for r in ready_replicas))
        yield _gauge(
            "stele_data_bytes", "Keys and values in all tablets", sum(r.size_bytes for r in ready_replicas)
        )
        yield _gauge(
            "stele_log_bytes", "Operations in all logs", sum(r.tablet.log.bytes for r in ready_replicas)
        )
        yield _gauge("stele_disk_free_bytes", "Free space of the volume", node.gate.free_bytes)
        yield _gauge("stele_pending_bytes", "Written, not committed", node.answers.pending_bytes)
        ready = sum(1 for link in node.links.values() if link.ready)
        yield _gauge("stele_members_connected", "Connected links to other members", ready)


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
