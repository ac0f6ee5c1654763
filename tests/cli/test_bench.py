"""`bench` against a real member: figures, and no key that is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stele.cli import bench
from stele.client.resp import Connection
from tests.cli.conftest import Run
from tests.cli.served_objects import cluster as stored
from tests.cli.served_objects import member
from tests.cli.test_tablets import Shell
from tests.fakes.pod_proxy import fake_api
from tests.member.harness.cluster import Cluster, cluster


@asynccontextmanager
async def serving(run: Run, folder: Path) -> AsyncIterator[tuple[Cluster, Shell]]:
    async with cluster(folder, 1, partitions=2, replicas=1) as made:
        place = made.members[0]
        pods = {"demo-0:6379": f"http://{place.host}:{place.ports[0]}"}
        known: dict[str, Any] = {
            "tabletclusters": {"items": [stored()], "metadata": {}},
            "tabletmembers": {"items": [member(0)], "metadata": {}},
        }
        async with fake_api(folder, pods, known) as path:
            yield made, Shell(run, path)


async def size(made: Cluster) -> bytes | None:
    place = made.members[0]
    connection = await Connection.open((place.host, place.ports[0]))
    try:
        return await connection.ask(b"DBSIZE")
    finally:
        connection.close()


async def test_it_measures_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    async with serving(run, tmp_path) as (made, ask):
        found = (await ask("bench", "demo", "--seconds", "1", "--clients", "2", "-o", "json")).json
        assert found["errors"] == 0
        assert found["requests"] > 20
        for kind in ("writes", "reads"):
            figures = found[kind]
            assert figures["per_second"] > 0
            assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["p999_ms"]
        assert await size(made) == b"0"
        lines = (await ask("bench", "demo", "--seconds", "1")).out.splitlines()
        assert lines[0].endswith(" requests in 1 s, 0 errors")
        assert [line.split()[0] for line in lines[1:]] == ["REQUESTS", "writes", "reads"]


async def test_an_interrupt_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        await real(seconds)
        if seconds == 1.0:
            raise KeyboardInterrupt

    async with serving(run, tmp_path) as (made, ask):
        monkeypatch.setattr(bench.asyncio, "sleep", sleep)
        ran = await ask("bench", "demo", "--seconds", "9")
        monkeypatch.undo()
        assert ran.code == 130
        assert await size(made) == b"0"


async def test_a_member_that_does_not_answer_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(run, tmp_path) as (made, ask):
        await made.members[0].kill()
        ran = await ask("bench", "demo", "--seconds", "1", "--clients", "1")
        assert (ran.code, "no request was answered" in ran.err) == (3, True)
