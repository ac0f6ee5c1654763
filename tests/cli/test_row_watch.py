"""`-A` and `-w` of `status` and `members`."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stele.cli import row_watch
from tests.cli.conftest import Run
from tests.cli.served_objects import cluster, listing, member
from tests.cli.test_tablets import Shell

BOTH = {
    "tabletclusters": [cluster(), cluster("other", "far")],
    "tabletmembers": [member(0, "other", "far"), member(1), member(0)],
}


@pytest.mark.parametrize(
    ("command", "here", "everywhere"),
    [
        ("status", [["demo"]], [["ns", "demo"], ["far", "other"]]),
        ("members", [["demo-0"], ["demo-1"]], [["far", "other-0"], ["ns", "demo-0"], ["ns", "demo-1"]]),
    ],
)
async def test_all_namespaces_are_listed_with_a_column(
    run: Run, tmp_path: Path, command: str, here: list[list[str]], everywhere: list[list[str]]
) -> None:
    async with listing(tmp_path, lambda: BOTH) as path:
        ask = Shell(run, path)
        rows = [line.split()[:1] for line in (await ask(command)).out.splitlines()]
        assert rows == [["NAME"], *here]
        rows = [line.split()[:2] for line in (await ask(command, "-A")).out.splitlines()]
        assert rows == [["NAMESPACE", "NAME"], *everywhere]
        (found,) = (await ask(command, "-A", "-o", "json")).json.values()
        assert [[each["namespace"], each["name"]] for each in found] == everywhere
        ran = await ask(command, "demo", "-A")
        assert (ran.code, "CLUSTER is demo and -A is given" in ran.err) == (2, True)


def changing(monkeypatch: pytest.MonkeyPatch, moments: Sequence[dict[str, Any]]) -> Any:
    """What the server has, from one look to the next; Ctrl-C after the last."""
    left, real = list(moments), asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds != row_watch.WATCH_SECONDS:
            await real(seconds)
        elif len(left) == 1:
            raise KeyboardInterrupt
        else:
            left.pop(0)

    monkeypatch.setattr(row_watch, "WATCH_SECONDS", 0.123)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return lambda: left[0]


def moment(*states: str) -> dict[str, Any]:
    members = [member(index, state=state) for index, state in enumerate(states)]
    return {"tabletclusters": [cluster()], "tabletmembers": members}


MOMENTS = [moment("Active"), moment("Active", "Joining"), moment("Unreachable", "Joining"), moment("Active")]
"""The last one without the second member, which is deleted."""


async def test_rows_that_changed_are_printed_again_until_an_interrupt(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listing(tmp_path, changing(monkeypatch, MOMENTS)) as path:
        ran = await Shell(run, path)("members", "demo", "-w")
    assert (ran.code, ran.err) == (130, "")
    assert [[line.split()[0], line.split()[2]] for line in ran.out.splitlines()] == [
        ["NAME", "STATE"],
        ["demo-0", "Active"],
        ["demo-1", "Joining"],
        ["demo-0", "Unreachable"],
        ["demo-1", "(deleted)"],
        ["demo-0", "Active"],
    ]
    assert ran.out.splitlines()[4].split() == ["demo-1", "demo", "(deleted)", *["-"] * 6]


@pytest.mark.parametrize("output", ["json", "yaml"])
async def test_as_data_each_change_is_a_document(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    async with listing(tmp_path, changing(monkeypatch, MOMENTS)) as path:
        ran = await Shell(run, path)("members", "-w", "-A", "-o", output)
    assert ran.code == 130
    if output == "yaml":
        assert ran.out.count("---\n") == 5
    else:
        found = [json.loads(line) for line in ran.out.splitlines()]
        assert [[each["name"], each.get("state")] for each in found] == [
            ["demo-0", "Active"],
            ["demo-1", "Joining"],
            ["demo-0", "Unreachable"],
            ["demo-1", None],
            ["demo-0", "Active"],
        ]
        assert found[3] == {"name": "demo-1", "namespace": "ns", "deleted": True}


async def test_a_named_cluster_is_watched_as_a_row(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = [{"tabletclusters": [cluster(phase=phase)]} for phase in ("Running", "Running", "Degraded")]
    async with listing(tmp_path, changing(monkeypatch, [*phases, {"tabletclusters": []}])) as path:
        ran = await Shell(run, path)("status", "demo", "-w")
    assert (ran.code, 'there is no TabletCluster "demo"' in ran.err) == (1, True)
    assert [line.split()[:2] for line in ran.out.splitlines()] == [
        ["NAME", "PHASE"],
        ["demo", "Running"],
        ["demo", "Degraded"],
    ]


@pytest.mark.parametrize("words", [("members", "demo", "-w"), ("members", "-A", "-w"), ("status", "-w")])
async def test_it_goes_on_when_the_server_was_silent(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """It says so once, and when the server answers again, with what changed meanwhile."""
    before, after = moment("Active"), moment("Joining")
    before["tabletclusters"], after["tabletclusters"] = (
        [cluster(phase=phase)] for phase in ("Running", "Degraded")
    )
    look = changing(monkeypatch, [before, {}, {}, after, {}, after])

    def stored() -> dict[str, Any]:
        if not look():
            raise web.HTTPServiceUnavailable
        found: dict[str, Any] = look()
        return found

    async with listing(tmp_path, stored) as path:
        ran = await Shell(run, path)(*words)
    assert ran.code == 130
    said = [line.removeprefix("kubectl stele: ").partition(":")[0] for line in ran.err.splitlines()]
    assert said == ["no newer rows", "the API server answers again"] * 2
    assert len(ran.out.splitlines()) == 3


async def test_a_server_that_is_silent_from_the_beginning_is_an_error(run: Run, tmp_path: Path) -> None:
    def stored() -> dict[str, Any]:
        raise web.HTTPServiceUnavailable

    async with listing(tmp_path, stored) as path:
        ran = await Shell(run, path)("members", "-w")
    assert (ran.code, ran.out, "UNAVAILABLE" in ran.err) == (3, "", True)
