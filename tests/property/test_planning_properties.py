"""Planning over random and over large tables: it converges, costs what it must and never drops a replica."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.core.placement.assignment import assign_rows
from stele.core.placement.members import DataMember
from stele.core.placement.migration import replay, step
from stele.core.placement.plan import Plan, plan
from stele.core.table.table import Member, Partition, PartitionTable, Replicas, trimmed

MEMBERS = {index: Member(index, f"m-{index}", f"uuid-{index}", "") for index in range(40)}
CONVERGED_AFTER_PLANS = 3


def rows(slots: int, members: int = 10) -> st.SearchStrategy[Replicas]:
    def with_gaps(row: list[int], holes: list[bool]) -> Replicas:
        return trimmed(None if hole else member for member, hole in zip(row, holes, strict=False))

    named = st.lists(st.integers(0, members - 1), unique=True, max_size=slots)
    return st.builds(with_gaps, named, st.lists(st.booleans(), min_size=slots, max_size=slots))


def count(row: Replicas) -> int:
    return sum(member is not None for member in row)


def data_members(draw: st.DrawFn, zoned: bool) -> list[DataMember]:
    chosen = draw(st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=8))
    weights = st.integers(1, 4) if draw(st.booleans()) else st.just(1)
    zones = st.sampled_from("abc") if zoned else st.none()
    lives = {index: draw(st.sampled_from(("", "", "", "leaving", "away"))) for index in chosen}
    return [
        DataMember(i, draw(weights), draw(zones), leaving=life == "leaving", away=life == "away")
        for i, life in lives.items()
    ]


@st.composite
def situations(draw: st.DrawFn) -> tuple[PartitionTable, list[DataMember], int]:
    """Any table, any members, any number of replicas: nothing of it needs to fit together."""
    found = draw(st.lists(rows(slots=4), min_size=1, max_size=40))
    table = PartitionTable(tuple(Partition(1, row) if row else Partition(0, ()) for row in found), MEMBERS)
    return table, data_members(draw, draw(st.booleans())), draw(st.integers(1, 4))


def after(table: PartitionTable, planned: Plan) -> PartitionTable:
    grown = tuple(
        Partition(row.version + 1 if row.replicas != target else row.version, target)
        for row, target in zip(table.partitions, planned.targets, strict=True)
    )
    return PartitionTable(grown, table.members)


def live(row: Replicas, members: Sequence[DataMember]) -> Replicas:
    here = {member.index for member in members}
    return trimmed(member if member in here else None for member in row)


@given(situations())
@settings(max_examples=300)
def test_any_situation_is_planned_safely_and_converges(
    situation: tuple[PartitionTable, list[DataMember], int],
) -> None:
    table, members, replicas = situation
    away = {member.index for member in members if member.away}
    for _ in range(CONVERGED_AFTER_PLANS):
        planned = plan(table, members, replicas)
        assert away or planned.copies >= planned.lower_bound
        migrations = planned.by_partition()
        for number, row in enumerate(table.partitions):
            current, target = live(row.replicas, members), planned.targets[number]
            assert away.isdisjoint(current) or target == current, "it waits until they are back"
            assert current[:1] == (None,) or target[:1] != (None,), "a row that has an owner keeps one"
            assert replay(current, migrations.get(number, ())) == target
            assert count(target) >= min(count(current), replicas), (
                "only a lowered replica count takes copies away"
            )
        table = after(table, planned)
    assert away or plan(table, members, replicas).migrations == ()


def plan_targets(partitions: int, members: list[DataMember], replicas: int) -> Sequence[Replicas]:
    return assign_rows([()] * partitions, members, replicas).rows


@given(st.integers(2, 30), st.integers(100, 3_000), st.integers(2, 4), st.integers(0, 1_000))
@settings(max_examples=60)
def test_join_leave_and_crash_from_a_balanced_table_cost_the_lower_bound(
    members: int, partitions: int, replicas: int, choice: int
) -> None:
    """Rounding owners and replicas together can cost a copy for each member, no more."""
    replicas = min(replicas, members - 1)
    everyone = [DataMember(index) for index in range(members + 1)]
    start = plan_targets(partitions, everyone[:members], replicas)
    table = PartitionTable(tuple(Partition(1, row) for row in start), MEMBERS)
    joined = plan(table, everyone, replicas)
    assert joined.lower_bound <= joined.copies <= joined.lower_bound + members
    chosen = choice % (members + 1)
    parting = [DataMember(m.index, leaving=m.index == chosen) for m in everyone]
    left = plan(after(table, joined), parting, replicas)
    assert left.lower_bound <= left.copies <= left.lower_bound + members
    assert all(chosen not in row for row in left.targets)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_table_of_20000_partitions(replicas: int) -> None:
    """A join, then a leave, then a crash, of 10 members: every step of every partition is safe."""
    members = [DataMember(index) for index in range(10)]
    table = PartitionTable(
        tuple(Partition(1, row) for row in plan_targets(20_000, members, replicas)), MEMBERS
    )
    members.append(DataMember(10))
    table = carried_out(table, members, replicas)
    members[3] = DataMember(3, leaving=True)
    table = carried_out(table, members, replicas)
    del members[7]
    table = carried_out(table, members, replicas)
    staying = {member.index: 1 for member in members if not member.leaving}
    owned = Counter(row.owner for row in table.partitions)
    held = Counter(member for row in table.partitions for member in row.replicas)
    assert owned.keys() == held.keys() == staying.keys()
    assert max(owned.values()) - min(owned.values()) <= 2
    assert max(held.values()) - min(held.values()) <= 2


def carried_out(table: PartitionTable, members: Sequence[DataMember], replicas: int) -> PartitionTable:
    """The table after a plan for it, which is the only one that is needed."""
    planned = plan(table, members, replicas)
    steps = planned.by_partition()
    assert planned.copies == sum(migration.copies for migration in planned.migrations)
    assert planned.copies <= planned.lower_bound + len(members)
    for number, row in enumerate(table.partitions):
        now = before = live(row.replicas, members)
        for migration in steps.get(number, ()):
            now = step(now, migration)
            assert count(now) >= min(count(before), replicas)
        assert now == planned.targets[number]
    made = after(table, planned)
    assert plan(made, members, replicas).migrations == ()
    return made
