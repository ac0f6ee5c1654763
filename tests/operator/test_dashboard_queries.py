"""The dashboards of clusters and migrations, and all alerts, asked from a real Prometheus.

It scrapes the operator's process and members' processes, while entries are written, members join, and the
operator meets an error.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import redis.asyncio

from e2e.supply.dashboards import CLUSTERS, MIGRATIONS
from stele.adapters.kubernetes.api import Api
from tests.monitoring.harness import (
    Prometheus,
    name_targets,
    panels,
    prometheus,
    targets,
    targets_of_file,
)
from tests.monitoring.test_alerts import RULES, alerts
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import DEADLINE_SECONDS, Operator, Stage, with_processes
from tests.operator.test_operator_keyspaces import Scene, keyspace

pytestmark = pytest.mark.control_plane

METRICS_PORT = 7004
KEYS = 300
VALUE = b"v" * 16_384
"""Small ones would reach a member that joins with the log alone, without a copy."""
LOOK_SECONDS = 0.5
RATE_INTERVAL = "2m"
"""Longer than the test, so that a panel shows what happened in it once."""


@asynccontextmanager
async def scraping(
    stage: Stage, kubelet: RealKubelet, operator: Operator, folder: Path
) -> AsyncIterator[Prometheus]:
    """One with the labels that docs/operating/monitoring.md asks for, also of members that join."""
    members, file = Targets(stage, kubelet), folder / "members.json"
    master = {f"127.0.0.1:{operator.env['STELE_HTTP_PORT']}": {"namespace": "stele", "pod": "operator-0"}}
    jobs = [targets_of_file("members", file), targets("operator", master, honor_labels=True)]
    async with aiohttp.ClientSession() as http, prometheus(http, folder, jobs, [RULES]) as asked:
        keeping = asyncio.create_task(members.keep(file))
        yield asked
        keeping.cancel()


@dataclass(frozen=True)
class Targets:
    stage: Stage
    kubelet: RealKubelet

    def named(self) -> dict[str, dict[str, str]]:
        """The addresses of members, with their labels."""
        place = {"namespace": self.stage.namespace, "cluster": "demo"}
        known = self.kubelet.addresses.items()
        return {f"{address}:{METRICS_PORT}": {**place, "pod": name} for name, address in known}

    async def keep(self, file: Path) -> None:
        """Write them whenever there are others, until cancelled."""
        written: dict[str, dict[str, str]] = {}
        while True:
            if (now := self.named()) != written:
                name_targets(file, written := now)
            await asyncio.sleep(LOOK_SECONDS)


async def write_on(scene: Scene, all_written: asyncio.Event) -> None:
    """Write and read until cancelled, also what is to be sent again."""
    async with await scene.client() as client:
        while True:
            for number in range(KEYS):
                with suppress(redis.exceptions.ResponseError):
                    await client.set(f"key-{number}", VALUE)
                    await client.get(f"key-{number}")
            all_written.set()


async def meet_an_error(scene: Scene) -> None:
    """Change the table's ConfigMaps, as nobody should: the operator begins again with what is stored."""
    await scene.kubectl("annotate", "configmap", "demo-table", "demo-table-0", "test/changed=yes")


@asynccontextmanager
async def at_work(
    stage: Stage, kubelet: RealKubelet, operator: Operator, folder: Path
) -> AsyncIterator[tuple[Scene, Prometheus]]:
    """A cluster with all keys, to which a client writes, and a Prometheus that scrapes it."""
    async with scraping(stage, kubelet, operator, folder) as asked:
        scene = Scene(stage, kubelet)
        await scene.kubectl("apply", manifest=keyspace())
        await scene.ready()
        writing = asyncio.create_task(write_on(scene, all_written := asyncio.Event()))
        await asyncio.wait_for(all_written.wait(), DEADLINE_SECONDS)
        yield scene, asked
        assert not writing.done()
        writing.cancel()


async def test_panels_of_clusters_and_migrations_show_something_and_alerts_are_evaluated(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet, tmp_path: Path
) -> None:
    async with (
        with_processes(api, namespace, operator, real_kubelet) as stage,
        at_work(stage, real_kubelet, operator, tmp_path) as (scene, asked),
    ):
        await meet_an_error(scene)
        # A rate takes a sample from before: hand-overs may be over sooner than Prometheus looks again.
        frozen = "stele_handover_duration_seconds_count"
        await scene.until("members are scraped", partial(asked.numbers, frozen))
        await stage.scale(4)
        await stage.until_converged(4)
        values = {"$__rate_interval": RATE_INTERVAL, "$namespace": namespace, "$cluster": "demo"}
        for dashboard in (CLUSTERS, MIGRATIONS):
            for title, queries in panels(dashboard, values).items():
                for query in queries:
                    await scene.until(f"{dashboard.name}, {title}: {query}", partial(asked.numbers, query))
        ready = f'stele_cluster_members{{namespace="{namespace}", cluster="demo", state="ready"}}'
        assert await asked.numbers(ready) == [4.0]
        known = await asked.alerts()
        assert {name for name, rule in known.items() if rule["health"] == "ok"} == alerts().keys()
        assert known["SteleNoLeader"]["state"] == "inactive"
