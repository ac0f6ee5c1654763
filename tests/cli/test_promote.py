"""`kubectl stele promote`, and what `plan` and `why` make of members that change their role."""

import asyncio
from typing import Any

import pytest

from stele.cli import promote, waiting
from stele.core.table.table import Member, Partition, PartitionTable
from stele.explain.cluster_view import ClusterView
from stele.model import TabletCluster, TabletMember
from tests.cli.conftest import Run


def member(
    number: int, *, wanted: bool, lite: bool, reason: str = "AsDesired", text: str = ""
) -> TabletMember:
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": reason,
        "message": text,
        "lastTransitionTime": "2030-01-01T12:00:00Z",
    }
    return TabletMember.model_validate(
        {
            "metadata": {"name": f"demo-{number}"},
            "spec": {"cluster": "demo", "index": number, "lite": wanted},
            "status": {"lite": lite, "state": "Active", "conditions": [ready]},
        }
    )


class Desk:
    """A console for one member; each look takes its next state."""

    def __init__(self) -> None:
        self.looks = [member(3, wanted=True, lite=True)]
        self.written: list[Any] = []

    async def members(self) -> list[TabletMember]:
        return [self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]]

    async def change_member(self, name: str, spec: dict[str, Any]) -> None:
        self.written.append((name, spec))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(promote.Where, "ask", lambda _self, question: asyncio.run(question(made)))
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.0)
    return made


def test_a_lite_member_is_promoted(run: Run, desk: Desk) -> None:
    assert run("promote", "demo-3").out == "demo-3 is being promoted\n"
    assert desk.written == [("demo-3", {"lite": False})]


def test_it_waits_and_says_for_what(run: Run, desk: Desk) -> None:
    text = "it becomes a data member once it answers"
    waits = member(3, wanted=False, lite=True, reason="MemberUnreachable", text=text)
    desk.looks = [waits, waits, waits, member(3, wanted=False, lite=False)]
    assert run("promote", "demo-3", "--wait").out.splitlines() == [
        f"demo-3 is being promoted; waits: {text}",
        f"waits: {text}",
        "demo-3 is a data member now and gets its share",
    ]
    assert not desk.written, "asked for already"


def test_what_cannot_be_promoted_is_refused(run: Run, desk: Desk) -> None:
    assert "there is no TabletMember demo-9; there are: demo-3" in run("promote", "demo-9").err
    desk.looks = [member(3, wanted=False, lite=False)]
    assert "is a data member already" in run("promote", "demo-3").out
    desk.looks = [member(3, wanted=True, lite=True, reason="MembersIncompatible", text="speaks format 1")]
    refused = run("promote", "demo-3")
    assert refused.code == 1
    assert "cannot be promoted: speaks format 1" in refused.err
    assert not desk.written


def test_waiting_has_a_limit(run: Run, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_SECONDS_MAX", 0.01)
    assert run("promote", "demo-3", "--wait").code == 3


def test_a_plan_counts_a_promoted_member_and_empties_one_that_becomes_lite() -> None:
    spec = {"members": 4, "partitions": 2, "storage": {"size": "1Gi"}}
    cluster = TabletCluster.model_validate({"metadata": {"name": "demo"}, "spec": spec})
    wanted = {0: (False, False), 1: (True, False), 2: (True, True), 3: (False, True)}
    members = {n: member(n, wanted=want, lite=lite) for n, (want, lite) in wanted.items()}
    listed = {n: Member(n, f"demo-{n}", f"uuid-{n}", "", lite) for n, (_, lite) in wanted.items()}
    table = PartitionTable((Partition(1, (0, 1)), Partition(1, (1, 0))), listed)
    situation = ClusterView(cluster, members, table).situation
    assert {each.index: each.leaving for each in situation.members} == {0: False, 1: True, 3: False}
    assert situation.lite == {2}
