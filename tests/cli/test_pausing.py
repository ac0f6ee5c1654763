"""`pause` and `resume`: what they write, and what they say."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.served_objects import cluster, listing
from tests.cli.test_tablets import Shell

BUSY = {"migrations": {"active": 3, "waiting": 12}, "rebalance": "demo-4-1"}


async def test_a_pause_is_written_once_and_says_what_waits(run: Run, tmp_path: Path) -> None:
    stored = cluster(**BUSY)
    async with listing(tmp_path, lambda: {"tabletclusters": [stored]}) as path:
        ask = Shell(run, path)
        for already in ("", " already"):
            ran = await ask("pause", "demo")
            assert ran.out == (
                f"demo is paused{already}: 3 migrations under way are completed, 12 of demo-4-1 wait; "
                "nothing is restarted for an update\n"
            )
            assert stored["spec"] == {"members": 2, "storage": {"size": "1Gi"}, "migration": {"paused": True}}
        assert (await ask("resume", "demo")).out == "demo is not paused: migrations may start\n"
        assert stored["spec"]["migration"] == {"paused": False}


async def test_a_pause_without_a_plan(run: Run, tmp_path: Path) -> None:
    async with listing(tmp_path, lambda: {"tabletclusters": [cluster()]}) as path:
        ran = await Shell(run, path)("pause", "demo")
    assert ran.out == "demo is paused: no further migration is started, and there was none to do\n"


async def test_nothing_is_written_when_it_is_so_already(run: Run, tmp_path: Path) -> None:
    """The server takes no change of what it makes anew for each request."""
    spec = {"migration": {"paused": True}}
    async with listing(tmp_path, lambda: {"tabletclusters": [cluster(spec=spec)]}) as path:
        assert (await Shell(run, path)("pause", "demo")).out.startswith("demo is paused already: ")


@pytest.mark.parametrize(
    ("spec", "annotations", "said"),
    [
        ({"state": "Frozen"}, {}, "but spec.state is Frozen"),
        ({}, {"stele.dev/paused": "true"}, "but annotation stele.dev/paused is true"),
        ({"migration": {"paused": True, "approval": "Manual"}}, {}, "plans that only balance wait for"),
    ],
)
async def test_resume_says_what_else_holds_migrations_back(
    run: Run, tmp_path: Path, spec: dict[str, Any], annotations: dict[str, str], said: str
) -> None:
    stored = cluster(spec=spec, state=spec.get("state"))
    stored["metadata"]["annotations"] = annotations
    async with listing(tmp_path, lambda: {"tabletclusters": [stored]}) as path:
        ran = await Shell(run, path)("resume", "demo")
    assert ran.code == 0
    assert ran.out.startswith("demo is not paused: but ")
    assert said in ran.out


@pytest.mark.parametrize("command", ["pause", "resume"])
async def test_a_cluster_that_is_not_there_is_named(run: Run, tmp_path: Path, command: str) -> None:
    async with listing(tmp_path, lambda: {"tabletclusters": [cluster()]}) as path:
        ran = await Shell(run, path)(command, "demi")
    assert (ran.code, ran.out) == (1, "")
    assert 'there is no TabletCluster "demi" in namespace "ns"; existing are: demo' in ran.err
