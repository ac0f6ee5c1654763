"""Planning of tables with groups of partitions: each part is balanced by itself, and at its own cost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stele.core.placement.assignment import assign
from stele.core.placement.members import DataMember
from stele.core.placement.migration import Type, replay
from stele.core.placement.plan import Plan, plan
from stele.core.placement.quotas import quota_bounds
from stele.core.table.groups import Part
from stele.core.table.table import Partition, PartitionTable, Replicas, check_invariants
from tests.property.test_planning_properties import MEMBERS, after, count, live

Shape = list[tuple[int, int]]
"""Partitions and replicas of each part; the first is outside of groups."""

SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), min_size=2, max_size=5)


def grown(shape: Shape, members: Sequence[DataMember]) -> PartitionTable:
    """The table after its groups came one after the other, each assigned before the next."""
    (main, replicas), *others = shape
    table = assigned(PartitionTable.empty(main, MEMBERS.values()), members, replicas)
    for number, (partitions, wanted) in enumerate(others):
        total = len(table.partitions)
        table = table.extended(table.groups.with_group(total, f"k{number}", partitions, wanted))
        check_invariants(table)
        table = assigned(table, members, replicas)
    return table


def assigned(table: PartitionTable, members: Sequence[DataMember], replicas: int) -> PartitionTable:
    rows = assign(table, members, replicas)
    new = (
        before if before.version else Partition(1, row)
        for before, row in zip(table.partitions, rows, strict=True)
    )
    return PartitionTable(tuple(new), table.members, table.groups)


def rows_of(table: PartitionTable, replicas: int) -> Iterator[tuple[Part, list[Replicas]]]:
    for part in table.groups.parts(len(table.partitions), replicas):
        yield part, [row.replicas for row in table.partitions[part.first : part.end]]


def check_shares(table: PartitionTable, members: Sequence[int], replicas: int) -> None:
    """Each part is within 1 of every member's share, of replicas and of what is owned."""
    weights = dict.fromkeys(members, 1)
    for part, rows in rows_of(table, replicas):
        copies = min(part.replicas, len(members))
        assert all(count(row) == copies for row in rows)
        held, owned = Counter(m for row in rows for m in row), Counter(row[0] for row in rows)
        for counts, total in ((held, len(rows) * copies), (owned, len(rows))):
            for index, (down, up) in quota_bounds(total, len(rows), weights).items():
                assert down <= counts[index] <= up, (part, counts)


def check_copies(table: PartitionTable, planned: Plan, members: Sequence[DataMember], replicas: int) -> None:
    """Each part costs no more copies than a table that has only this part."""
    for part, rows in rows_of(table, replicas):
        alone = PartitionTable(tuple(Partition(1, row) for row in rows), table.members)
        bound = plan(alone, members, part.replicas).lower_bound + len(members)
        assert sum(m.copies for m in planned.migrations if part.first <= m.partition < part.end) <= bound


@given(SHAPES, st.integers(4, 7), st.integers(0, 7))
@settings(max_examples=150)
def test_every_group_is_balanced_and_no_copy_is_over_the_bound(shape: Shape, size: int, choice: int) -> None:
    replicas, everyone = shape[0][1], [DataMember(index) for index in range(size + 1)]
    table = grown(shape, everyone[:size])
    check_shares(table, range(size), replicas)
    leaver = choice % (size + 1)
    for members in (everyone, [DataMember(m.index, leaving=m.index == leaver) for m in everyone]):
        planned = plan(table, members, replicas)
        check_copies(table, planned, members, replicas)
        steps = planned.by_partition()
        for number, row in enumerate(table.partitions):
            current = live(row.replicas, members)
            assert replay(current, steps.get(number, ())) == planned.targets[number]
            assert count(planned.targets[number]) >= min(count(current), table.replicas_of(number, replicas))
        table = PartitionTable(after(table, planned).partitions, table.members, table.groups)
        check_shares(table, [m.index for m in members if not m.leaving], replicas)
        assert plan(table, members, replicas).migrations == ()


@given(SHAPES, st.integers(2, 7))
@settings(max_examples=60)
def test_partitions_outside_of_groups_are_planned_as_without_groups(shape: Shape, size: int) -> None:
    main, replicas = shape[0]
    everyone = [DataMember(index) for index in range(size + 1)]
    table = grown(shape, everyone[:size])
    alone = PartitionTable(table.partitions[:main], table.members)
    planned, without = plan(table, everyone, replicas), plan(alone, everyone, replicas)
    assert planned.targets[:main] == without.targets
    assert [each for each in planned.migrations if each.partition < main] == list(without.migrations)


def test_what_many_small_groups_leave_open_goes_to_all_members() -> None:
    """Each of 40 groups has eight replicas for five members: some get two, and never the same ones."""
    table = grown([(13, 2), *[(4, 2)] * 40], [DataMember(index) for index in range(5)])
    held = Counter(member for row in table.partitions for member in row.replicas)
    owned = Counter(row.owner for row in table.partitions)
    assert max(held.values()) - min(held.values()) <= 1
    assert max(owned.values()) - min(owned.values()) <= 2


def test_too_few_members_are_said_of_each_group() -> None:
    table = grown([(4, 2), (4, 3)], [DataMember(0), DataMember(1)])
    planned = plan(table, [DataMember(0), DataMember(1)], 2)
    [refusal] = planned.refusals
    assert refusal.detail.startswith("keyspace k0: 3 replicas are configured but 2 members can take data")


def test_a_plan_for_fewer_copies_lowers_only_the_groups_that_have_more() -> None:
    members = [DataMember(index) for index in range(4)]
    table = grown([(4, 2), (4, 4)], members)
    planned = plan(table, [*members[:3], DataMember(3, leaving=True)], 2, most=3)
    assert {count(row) for row in planned.targets[:4]} == {2}
    assert {count(row) for row in planned.targets[4:]} == {3}


@given(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(1, 30))
@settings(max_examples=100)
def test_a_replicated_keyspace_grows_and_shrinks_with_the_members(
    partitions: int, sizes: Sequence[int], main: int
) -> None:
    """A copy at each member, seven at most, and never fewer than before; what a plan left to be evened out
    takes another one, without a copy."""
    table = grown(
        [(main, 1), (partitions, min(7, sizes[0]))], [DataMember(index) for index in range(sizes[0])]
    )
    for before, size in pairwise(sizes):
        everyone = [DataMember(index, leaving=index >= size) for index in range(max(before, size))]
        groups = table.groups.with_replicas({"k0": min(7, size)})
        table = PartitionTable(table.partitions, table.members, groups)
        first = plan(table, everyone, 1)
        check_copies(table, first, everyone, 1)
        check_each_step(table, first, min(7, size))
        table = PartitionTable(after(table, first).partitions, table.members, groups)
        second = plan(table, [DataMember(index) for index in range(size)], 1)
        assert {migration.type for migration in second.migrations} <= {Type.SWAP}
        table = PartitionTable(after(table, second).partitions, table.members, groups)
        check_shares(table, range(size), 1)
        assert plan(table, [DataMember(index) for index in range(size)], 1).migrations == ()


def check_each_step(table: PartitionTable, planned: Plan, most: int) -> None:
    """No step leaves fewer copies than there were, or than there should be."""
    for number, steps in planned.by_partition().items():
        row = table.partitions[number].replicas
        least = min(count(row), table.replicas_of(number, 1), most)
        assert all(count(replay(row, steps[:end])) >= least for end in range(1, len(steps) + 1))
