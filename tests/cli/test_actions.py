"""`approve`, `cancel`, `move` and `drain`: what they write, and what they refuse before they write it."""

from typing import Any

import pytest

from stele.cli import actions
from stele.model import TabletCluster, TabletMember, TabletRebalance
from tests.cli.conftest import Run

Written = list[tuple[str, Any]]


class Desk:
    """As much of a console as the commands use; notes what they write."""

    def __init__(self, written: Written, plan: dict[str, Any], phase: str) -> None:
        self._written, self._plan, self._phase = written, plan, phase
        self.first: dict[str, Any] = {}

    async def rebalance(self, name: str) -> TabletRebalance:
        found = {"metadata": {"name": name}, "spec": {"cluster": "demo", **self._plan}}
        return TabletRebalance.model_validate(found | {"status": {"phase": self._phase}})

    async def change_rebalance(self, name: str, spec: dict[str, Any]) -> None:
        self._written.append((name, spec))

    async def make_rebalance(self, prefix: str, spec: dict[str, Any]) -> str:
        self._written.append((prefix, spec))
        return f"{prefix}abcde"

    async def change_member(self, name: str, spec: dict[str, Any]) -> None:
        self._written.append((name, spec))

    async def cluster(self, name: str) -> TabletCluster:
        spec = {"members": 3, "partitions": 31, "storage": {"size": "1Gi"}}
        return TabletCluster.model_validate({"metadata": {"name": name}, "spec": spec})

    async def members(self, cluster: str = "demo") -> list[TabletMember]:
        some = [
            {"metadata": {"name": f"{cluster}-{n}"}, "spec": {"cluster": cluster, "index": n} | spec}
            for n, spec in enumerate((self.first, {}))
        ]
        return [TabletMember.model_validate(each) for each in some]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the way to the cluster; returns what was written."""
    import asyncio

    written: Written = []

    def use(plan: dict[str, Any] | None = None, phase: str = "Proposed", **first: Any) -> Written:
        console = Desk(written, plan or {}, phase)
        console.first = first
        monkeypatch.setattr(actions.Where, "ask", lambda _self, question: asyncio.run(question(console)))
        return written

    return use


def test_approve_sets_approved(run: Run, desk: Any) -> None:
    written = desk()
    assert run("approve", "demo-4-1").out == "demo-4-1 is approved\n"
    assert written == [("demo-4-1", {"approved": True})]


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ([], {"cancel": True, "rollBack": False}),
        (["--roll-back"], {"cancel": True, "rollBack": True}),
        (["-p", "9", "-p", "3"], {"cancelMigrations": [3, 5, 9]}),
    ],
)
def test_cancel_stops_a_plan_or_parts_of_it(run: Run, desk: Any, arguments: list[str], spec: Any) -> None:
    written = desk({"cancelMigrations": [5]}, "Running")
    assert run("cancel", "demo-4-1", *arguments).code == 0
    assert written == [("demo-4-1", spec)]


def test_move_makes_a_plan_and_prints_its_name(run: Run, desk: Any) -> None:
    written = desk()
    assert run("move", "demo", "7", "--from", "demo-0", "--to", "demo-1").out == "demo-move-7-abcde\n"
    moves = [{"partition": 7, "from": "demo-0", "to": "demo-1"}]
    assert written == [("demo-move-7-", {"cluster": "demo", "mode": "Execute", "moves": moves})]
    run("move", "demo", "7", "--to", "demo-1", "--dry-run")
    desired = {"cluster": "demo", "mode": "DryRun", "moves": [{"partition": 7, "to": "demo-1"}]}
    assert written[1:] == [("demo-move-7-", desired)]


def test_drain_and_its_undoing(run: Run, desk: Any) -> None:
    written = desk()
    assert run("drain", "demo-1").code == run("drain", "demo-1", "--undo").code == 0
    assert written == [("demo-1", {"drain": True}), ("demo-1", {"drain": False})]


@pytest.mark.parametrize("first", [{"drain": True}, {"lite": True}])
def test_the_last_member_that_takes_data_is_not_drained(run: Run, desk: Any, first: dict[str, bool]) -> None:
    written = desk(**first)
    ran = run("drain", "demo-1")
    assert (ran.code, written) == (1, [])
    assert "no other member of demo takes data, so nothing can be moved off demo-1: add a member" in ran.err
    assert run("drain", "demo-1", "--undo").code == 0
    assert written == [("demo-1", {"drain": False})]


@pytest.mark.parametrize(
    ("arguments", "present", "said"),
    [
        (["approve", "p"], ({"mode": "DryRun"}, "Proposed"), "is a preview"),
        (["approve", "p"], ({}, "Superseded"), "approve the plan that replaced it"),
        (["cancel", "p"], ({}, "Done"), "nothing left to cancel"),
        (["cancel", "p", "--roll-back", "-p", "1"], ({}, "Running"), "--roll-back is for whole plans"),
        (["move", "demo", "7"], ({}, ""), "--from MEMBER --to MEMBER"),
        (["move", "demo", "7", "--from", "a", "--to", "a"], ({}, ""), "name two different members"),
        (["move", "demo", "31", "--to", "demo-0"], ({}, ""), "the last one is 30"),
        (
            ["move", "demo", "7", "--to", "demo-9"],
            ({}, ""),
            "there is no member demo-9; there are: demo-0, demo-1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    run: Run, desk: Any, arguments: list[str], present: tuple[dict[str, Any], str], said: str
) -> None:
    written = desk(*present)
    ran = run(*arguments)
    assert (ran.code, written) == (2, [])
    assert said in ran.err
