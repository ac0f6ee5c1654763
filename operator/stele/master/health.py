"""/healthz, /readyz and /metrics of the operator."""

from collections.abc import Callable, Iterable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from stele.adapters import http
from stele.core.reign import State
from stele.core.table import version_sum
from stele.master.facts import partition_counts, under_way
from stele.master.metrics import DECISION, copy_metrics

Clusters = Callable[[], dict[tuple[str, str], State]]

LABELS = ["namespace", "cluster"]


class ClusterCollector:
    """Gauges of every cluster, computed when they are asked for."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def collect(self) -> Iterable[Metric]:
        parts = GaugeMetricFamily("stele_partitions", "Partitions by safety.", labels=[*LABELS, "state"])
        steps = GaugeMetricFamily("stele_migrations_active", "Migrations by step.", labels=[*LABELS, "step"])
        waiting = GaugeMetricFamily("stele_migrations_waiting", "Migrations not begun.", labels=LABELS)
        members = GaugeMetricFamily("stele_members", "Members in the dictionary.", labels=LABELS)
        epoch = GaugeMetricFamily("stele_epoch", "Number of the reign.", labels=LABELS)
        versions = GaugeMetricFamily("stele_version_sum", "Sum of all versions.", labels=LABELS)
        for key, state in self._clusters().items():
            found = partition_counts(state, max((len(r.members) for r in state.table.partitions), default=0))
            parts.add_metric([*key, "lost"], found.lost)
            parts.add_metric([*key, "total"], found.total)
            for step, number in under_way(state).items():
                steps.add_metric([*key, step], number)
            waiting.add_metric(list(key), len(state.queues))
            members.add_metric(list(key), len(state.table.members))
            epoch.add_metric(list(key), state.epoch)
            versions.add_metric(list(key), version_sum(state.table))
        return [parts, steps, waiting, members, epoch, versions, *copy_metrics(self._clusters())]


def application(alive: Callable[[], bool], ready: Callable[[], bool], clusters: Clusters) -> web.Application:
    """`alive`: the loops turn. `ready`: it reigns, or stands by for the one that does."""
    registry = CollectorRegistry()
    registry.register(ClusterCollector(clusters))
    registry.register(DECISION)

    async def healthz(_: web.Request) -> web.Response:
        return _answer(alive(), "a loop stands still")

    async def readyz(_: web.Request) -> web.Response:
        return _answer(ready(), "not started yet")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = http.application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


def _answer(good: bool, otherwise: str) -> web.Response:
    return web.Response(text="ok\n") if good else web.Response(status=503, text=f"{otherwise}\n")
