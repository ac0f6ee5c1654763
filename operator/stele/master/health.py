"""/healthz, /readyz and /metrics of the operator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from stele import REVISION, __version__
from stele.adapters import http
from stele.core.control.state import State
from stele.master.metrics import (
    DECISION,
    RECONCILE,
    RECONCILE_ERRORS,
    copy_metrics,
    migration_metric,
    request_metric,
    status_metrics,
)
from stele.master.plan_status import remaining_bytes
from stele.master.status import under_way
from stele.model.cluster_status import TabletClusterStatus

Key = tuple[str, str]

LABELS = ["namespace", "cluster"]


class Clusters(Protocol):
    """What the supervisor knows, by namespace and name of each cluster."""

    def silent(self) -> Sequence[str]: ...
    def requests(self) -> Mapping[tuple[str, str, str], int]: ...
    def states(self) -> Mapping[Key, State]: ...
    def statuses(self) -> Mapping[Key, TabletClusterStatus]: ...


class ClusterCollector:
    """Gauges of every cluster, computed on each scrape: the numbers of its status, and others."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def collect(self) -> Iterable[Metric]:
        states = self._clusters.states()
        return [
            *status_metrics(self._clusters.statuses()),
            *_state_metrics(states),
            *copy_metrics(states),
            migration_metric(states),
            request_metric(self._clusters.requests()),
        ]


def _state_metrics(states: Mapping[Key, State]) -> list[Metric]:
    steps = GaugeMetricFamily("stele_migrations_active", "Migrations by step.", labels=[*LABELS, "step"])
    left = GaugeMetricFamily("stele_rebalance_remaining_bytes", "Bytes to copy yet.", labels=LABELS)
    epoch = GaugeMetricFamily("stele_epoch", "Epoch of this master.", labels=LABELS)
    features = GaugeMetricFamily("stele_features", "Format in force.", labels=LABELS)
    versions = GaugeMetricFamily("stele_version_sum", "Sum of all versions.", labels=LABELS)
    for key, state in states.items():
        for step, number in under_way(state).items():
            steps.add_metric([*key, step], number)
        left.add_metric(list(key), remaining_bytes(state))
        epoch.add_metric(list(key), state.epoch)
        features.add_metric(list(key), state.operations.change.features)
        versions.add_metric(list(key), state.table.version_sum)
    return [steps, left, epoch, features, versions]


class ProcessFacts:
    """The build's version and commit, and whether this process is the leader."""

    def __init__(self, leads: Callable[[], bool]) -> None:
        self._leads = leads

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("stele_operator_leader", "Whether it holds the Lease.", value=self._leads())
        build = GaugeMetricFamily("stele_build_info", "Version and commit.", labels=["version", "revision"])
        build.add_metric([__version__, REVISION], 1)
        yield build


def application(clusters: Clusters, ready: Callable[[], bool], leads: Callable[[], bool]) -> web.Application:
    """Create the application. `ready`: the process leads or stands by. `leads`: it leads."""
    registry = CollectorRegistry()
    for each in (ClusterCollector(clusters), ProcessFacts(leads), DECISION, RECONCILE, RECONCILE_ERRORS):
        registry.register(each)
    ProcessCollector(registry=registry)

    async def healthz(_: web.Request) -> web.Response:
        silent = clusters.silent()
        return _answer(not silent, f"hangs: {', '.join(silent)}")

    async def readyz(_: web.Request) -> web.Response:
        return _answer(ready(), "not started yet")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = http.application(short_requests=True)
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


def _answer(good: bool, otherwise: str) -> web.Response:
    return web.Response(text="ok\n") if good else web.Response(status=503, text=f"{otherwise}\n")
