"""`kubectl stele partitions`, `plan` and `why` of a table with groups of partitions."""

import asyncio
import json
from typing import Any

import pytest
from rich.console import Console

from stele.adapters.kubernetes.console import Table
from stele.cli import status
from stele.cli.plan_view import show
from stele.core.table.groups import NO_GROUPS
from stele.core.table.table import Member, Partition, PartitionTable
from stele.explain.cluster_view import ClusterView
from stele.explain.situation import planned
from stele.explain.why import View
from stele.model import TabletCluster, TabletMember
from stele.wire.configmap import Head
from tests.cli.conftest import Run

MEMBERS = tuple(Member(index, f"demo-{index}", f"uuid-{index}", "") for index in range(3))
GROUPS = NO_GROUPS.with_group(2, "sessions", 2, 3)
HEAD = Head(1, "Active", 2, 2, 1, 3, 0, 0, MEMBERS, 2, GROUPS)
ROWS = tuple(Partition(1, row) for row in ((0, 1), (1, 2), (2, 0, 1), (0, 1)))


class Desk:
    """A console that has this table."""

    head = HEAD

    async def clusters(self, name: str) -> list[Any]:
        return []

    async def table(self, cluster: str) -> Table:
        return Table(self.head, ROWS)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(status.Where, "ask", lambda _self, question: asyncio.run(question(made)))
    return made


def view() -> ClusterView:
    spec = {"members": 3, "partitions": 2, "replicas": 2, "storage": {"size": "1Gi"}}
    cluster = TabletCluster.model_validate({"metadata": {"name": "demo"}, "spec": spec})
    members = {
        each.index: TabletMember.model_validate(
            {"metadata": {"name": each.name}, "spec": {"cluster": "demo", "index": each.index}}
        )
        for each in MEMBERS
    }
    table = PartitionTable(ROWS, {each.index: each for each in MEMBERS}, GROUPS)
    return ClusterView(cluster, members, table)


def test_partitions_say_to_which_keyspace_they_belong(run: Run, desk: Desk) -> None:
    lines = [line.split() for line in run("partitions", "demo").out.splitlines()]
    assert lines[0] == ["PARTITION", "VERSION", "OWNER", "BACKUPS", "KEYSPACE"]
    assert [line[-1] for line in lines[1:]] == ["-", "-", "sessions", "sessions"]
    found = json.loads(run("partitions", "demo", "-o", "json").out)
    assert found["groups"] == [{"keyspace": "sessions", "first": 2, "partitions": 2, "replicas": 3}]


def test_what_is_under_replicated_goes_by_the_group(run: Run, desk: Desk) -> None:
    found = json.loads(run("partitions", "demo", "--under-replicated", "-o", "json").out)
    assert [each["partition"] for each in found["partitions"]] == [3]


def test_a_table_without_groups_is_shown_as_ever(run: Run, desk: Desk) -> None:
    desk.head = Head(1, "Active", 4, 2, 1, 3, 0, 0, MEMBERS)
    assert run("partitions", "demo").out.splitlines()[0].split() == [
        "PARTITION",
        "VERSION",
        "OWNER",
        "BACKUPS",
    ]
    assert "groups" not in json.loads(run("partitions", "demo", "-o", "json").out)


def test_a_plan_names_the_groups_and_balances_each(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = planned(view().situation)
    assert (outcome.owner_spread, outcome.replica_spread) == (1, 1)
    assert [(each.partition, each.type) for each in outcome.plan.migrations] == [(3, "COPY")]
    show(Console(width=200), outcome, wide=False)
    said = capsys.readouterr().out
    assert "Plan for 2 partitions, 2 replicas, 3 members available for data" in said
    assert "Keyspace sessions: 2 partitions, 3 replicas" in said


def test_why_counts_copies_by_the_group() -> None:
    asked = View(view(), [])
    assert "2 of 3 copies are on live members" in list(asked.of_partition(3))
    assert "2 of 2 copies are on live members" in list(asked.of_partition(0))
    [thin] = [line for line in asked.of_cluster() if "copies on live members" in line]
    assert thin.startswith("fewer than 3 copies on live members: ")
    assert thin.endswith("3")
