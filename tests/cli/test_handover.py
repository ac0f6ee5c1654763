"""`kubectl stele handover`: what it says, what it writes, and how it ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stele.cli import handover, waiting
from stele.core.table.groups import NO_GROUPS
from stele.core.table.table import Member, Partition
from stele.model import TabletCluster, TabletMember, TabletRebalance
from tests.cli.conftest import Run

ROWS = ((0, 1), (0, 2), (1, 0), (0,))


class Desk:
    """A console for one cluster; notes what is written. Each look at a plan takes the next status."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []

    async def cluster(self, name: str) -> TabletCluster:
        spec = {"members": 3, "partitions": len(ROWS), "storage": {"size": "1Gi"}}
        return TabletCluster.model_validate({"metadata": {"name": name}, "spec": spec})

    async def members(self, cluster: str = "demo") -> list[TabletMember]:
        return [
            TabletMember.model_validate(
                {"metadata": {"name": f"demo-{n}"}, "spec": {"cluster": "demo", "index": n}}
            )
            for n in range(3)
        ]

    async def table(self, cluster: str) -> Any:
        members = [Member(n, f"demo-{n}", f"uuid-{n}", "") for n in range(3)]
        head = SimpleNamespace(members=members, groups=NO_GROUPS)
        return SimpleNamespace(head=head, rows=tuple(Partition(1, row) for row in ROWS))

    async def rebalances(self, cluster: str) -> list[TabletRebalance]:
        return [TabletRebalance.model_validate(each) for each in self.plans]

    async def rebalance(self, name: str) -> TabletRebalance:
        spec = {"cluster": "demo", "handover": {"member": "demo-0"}}
        status = self.statuses.pop(0)
        return TabletRebalance.model_validate({"metadata": {"name": name}, "spec": spec, "status": status})

    async def make_rebalance(self, prefix: str, spec: dict[str, Any]) -> str:
        self.written.append((prefix, spec))
        return f"{prefix}abcde"

    async def change_rebalance(self, name: str, spec: dict[str, Any]) -> None:
        self.written.append((name, spec))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(handover.Where, "ask", lambda _self, question: asyncio.run(question(made)))
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.0)
    return made


def plan(name: str, member: str, phase: str = "Done", **spec: Any) -> dict[str, Any]:
    handover = {"member": member} | ({"to": spec.pop("to")} if "to" in spec else {})
    return {
        "metadata": {"name": name},
        "spec": {"cluster": "demo", "handover": handover, **spec},
        "status": {"phase": phase},
    }


def test_it_says_what_it_does_and_what_stays(run: Run, desk: Desk) -> None:
    assert run("handover", "demo-0").out.splitlines() == [
        "demo-0 hands over 2 partitions: 1 to demo-1, 1 to demo-2",
        "stays: NO_BACKUP: it has a single replica, so no other member can own it (partition 3)",
        "demo-0-handover-abcde is created; demo-0 owns nothing until: kubectl stele handover demo-0 --undo",
    ]
    assert desk.written == [("demo-0-handover-", {"cluster": "demo", "handover": {"member": "demo-0"}})]


def test_one_member_may_take_all(run: Run, desk: Desk) -> None:
    lines = run("handover", "demo-0", "--to", "demo-2").out.splitlines()
    assert lines[0] == "demo-0 hands over 1 partitions: 1 to demo-2"
    assert "stays: NOT_A_HOLDER: demo-2 holds no replica of it (2 partitions: 0, 3)" in lines
    (written,) = desk.written
    assert written[1]["handover"] == {"member": "demo-0", "to": "demo-2"}


def test_what_is_asked_for_already_is_not_asked_for_twice(run: Run, desk: Desk) -> None:
    desk.plans = [plan("other", "demo-1"), plan("to", "demo-0", to="demo-1"), plan("h", "demo-0")]
    assert run("handover", "demo-0").out.splitlines()[-1] == "h asks for this already"
    assert not desk.written


def test_undo_cancels_what_is_in_force(run: Run, desk: Desk) -> None:
    desk.plans = [
        *(plan("a", "demo-0"), plan("b", "demo-0", "Running", to="demo-1"), plan("c", "demo-1")),
        *(plan("d", "demo-0", cancel=True), plan("e", "demo-0", "Failed")),
    ]
    assert "gets partitions to own again" in run("handover", "demo-0", "--undo").out
    assert desk.written == [("a", {"cancel": True}), ("b", {"cancel": True})]
    assert "nothing to undo" in run("handover", "demo-2", "--undo").out


def test_wait_shows_the_progress(run: Run, desk: Desk) -> None:
    running = {"phase": "Running", "done": {"swap": 1}, "planned": {"swap": 2}}
    desk.statuses = [{}, running, running, {"phase": "Done", "done": {"swap": 2}}]
    lines = run("handover", "demo-0", "--wait").out.splitlines()
    assert lines[-3:] == [
        "demo-0-handover-abcde is created; demo-0 owns nothing until: kubectl stele handover demo-0 --undo",
        "1 of 2 partitions are handed over",
        "demo-0 owns nothing, 2 partitions are handed over",
    ]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {
                "phase": "Done",
                "refusals": [{"reason": "NO_BACKUP", "partition": 3, "message": "a single replica"}],
                "refusalsTotal": 4,
            },
            "4 partitions stay with demo-0, such as partition 3: a single replica",
        ),
        ({"phase": "Superseded"}, "is Superseded: it was cancelled"),
    ],
)
def test_wait_fails_when_something_stays(run: Run, desk: Desk, status: dict[str, Any], said: str) -> None:
    desk.statuses = [status]
    ran = run("handover", "demo-0", "--wait")
    assert ran.code == 1
    assert said in ran.err


def test_wait_ends(run: Run, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_SECONDS_MAX", 0.0)
    ran = run("handover", "demo-0", "--wait")
    assert ran.code == 3
    assert "is not done after 0 s" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo-9"], "there is no TabletMember demo-9; there are: demo-0, demo-1, demo-2"),
        (["demo-0", "--to", "demo-9"], "--to: there is no member demo-9 in demo"),
        (["demo-0", "--to", "demo-0"], "name two different members"),
        (["demo-0", "--undo", "--wait"], "--undo takes back the hand-over as a whole"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, desk: Desk, arguments: list[str], said: str) -> None:
    ran = run("handover", *arguments)
    assert (ran.code, desk.written) == (2, [])
    assert said in ran.err
