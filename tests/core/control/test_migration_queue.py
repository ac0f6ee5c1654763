"""What may start: limits of members, order of needs and shards, and queues that do not fit their row any
more.
"""

import pytest

from stele.core.control.migration_queue import REFUSED_MAX, Queues
from stele.core.placement.migration import Migration, copy, move, shift_down, step
from stele.core.placement.plan import DataMember, Plan, plan
from stele.core.table.table import SHARD_PARTITIONS, Partition, PartitionTable

NOBODY: frozenset[int] = frozenset()
ALL = frozenset(range(9))


def begun(
    queues: Queues, rows: list[Partition], held: frozenset[int] = NOBODY, limit: int = 9
) -> list[Migration]:
    return list(queues.startable(rows, [], held, ALL, limit))


def test_partitions_of_one_shard_start_before_those_of_the_next() -> None:
    far = SHARD_PARTITIONS
    rows = [Partition(1, (number % 3,)) for number in range(far + 3)]
    numbers = (far, far + 1, far + 2, 0, 1, 2)
    plan = Plan(migrations=tuple(move(number, 0, number % 3, 5 + number % 3) for number in numbers))
    assert [each.partition // far for each in begun(Queues.of(plan, rows), rows)] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("at", [0, 1_024])
def test_rows_with_the_fewest_copies_start_first_whatever_their_shard(at: int) -> None:
    """Of 1,024 that lack one copy of three and 6 that lack two, 40 may start."""
    rows = [Partition(1, (number % 4, (number + 1) % 4)) for number in range(1_024)]
    rows[at:at] = [Partition(1, (number % 4,)) for number in range(6)]
    planned = plan(PartitionTable(tuple(rows), {}), [DataMember(index) for index in range(6)], 3)
    first = [each.partition for each in begun(Queues.of(planned, rows), rows, limit=40)]
    assert sorted(first[:6]) == list(range(at, at + 6))
    assert len(first) >= 40


def test_rows_that_lack_the_same_are_worked_off_shard_by_shard() -> None:
    """Their commits share a write."""
    far = SHARD_PARTITIONS
    rows = [Partition(1, (number % 3,)) for number in range(far + 2)]
    planned = Plan(migrations=tuple(copy(number, 1, 4 + number % 2) for number in (far + 1, 1, far, 0)))
    assert [each.partition // far for each in begun(Queues.of(planned, rows), rows)] == [0, 0, 1, 1]


def test_what_comes_before_a_missing_copy_is_as_urgent_as_the_copy() -> None:
    """A MOVE, and behind it the SHIFT_DOWN that makes a third copy."""
    rows = [Partition(1, (0, 1)), Partition(1, (0, 1)), Partition(1, (0,))]
    before = (move(1, 1, 1, 5), shift_down(1, 0, 0, 2, 6))
    planned = Plan(migrations=(move(0, 1, 1, 4), *before, copy(2, 1, 7)))
    assert [each.partition for each in begun(Queues.of(planned, rows), rows)] == [2, 1, 0]


def test_a_busy_member_holds_nobody_else_up() -> None:
    rows = [Partition(1, (0,)) for _ in range(4)] + [Partition(1, (3,))]
    plan = Plan(migrations=(*(move(number, 0, 0, 1) for number in range(4)), move(4, 0, 3, 4)))
    assert [each.partition for each in begun(Queues.of(plan, rows), rows, limit=2)] == [0, 1, 4]


def test_migrations_of_one_partition_follow_each_other() -> None:
    rows = [Partition(1, (0, 1))]
    plan = Plan(migrations=(move(0, 0, 0, 2), move(0, 1, 1, 0)))
    queues = Queues.of(plan, rows)
    first = begun(queues, rows)
    assert [each.destination for each in first] == [2]
    assert begun(queues, rows, held=frozenset({0})) == []
    rows[0] = Partition(2, step(rows[0].replicas, first[0]))
    # It waits in the group of the row as it was; the next look finds it in the right one.
    second = begun(queues, rows) + begun(queues, rows)
    assert [each.destination for each in second] == [0]
    assert len(queues) == 0
    assert not queues.groups


def test_one_look_starts_one_migration_of_a_partition() -> None:
    """The next one may wait in a group that the look comes to later, and fit the row by chance: both were
    under way, and the result of the second was made from the row before the first.
    """
    rows = [Partition(1, (0, 1, 2)), Partition(1, (0, 1, 2))]
    plan = Plan(migrations=(move(0, 1, 1, 5), move(0, 2, 2, 6), move(1, 2, 2, 6)))
    assert [(each.partition, each.destination) for each in begun(Queues.of(plan, rows), rows)] == [
        (0, 5),
        (1, 6),
    ]


def test_a_dropped_partition_starts_nothing_and_is_not_counted() -> None:
    rows = [Partition(1, (0, 1)), Partition(1, (0, 1))]
    queues = Queues.of(Plan(migrations=(move(0, 1, 1, 2), move(1, 1, 1, 2))), rows)
    queues.drop(0)
    assert len(queues) == 1
    assert [each.partition for each in begun(queues, rows)] == [1]


def test_a_shard_is_worked_off_with_all_that_waits_of_its_partitions() -> None:
    far = SHARD_PARTITIONS
    rows = [Partition(1, (0, 1)) for _ in range(far + 1)]
    plan = Plan(migrations=(move(0, 1, 1, 2), move(0, 0, 0, 1), move(far, 1, 1, 2), move(far, 0, 0, 1)))
    queues = Queues.of(plan, rows)
    first = next(queues.startable(rows, [], NOBODY, ALL, 1))
    rows[0] = Partition(2, step(rows[0].replicas, first))
    assert [each.partition for each in begun(queues, rows, limit=1)] == [0]
    assert queues.order == sorted(queues.groups)


def test_what_is_not_admitted_stays_and_holds_up_nobody_else() -> None:
    rows = [Partition(1, (0,)) for _ in range(4)]
    plan = Plan(migrations=tuple(move(number, 0, 0, 1) for number in range(4)))
    queues = Queues.of(plan, rows)
    large = {1, 2}

    def look(*held: int) -> list[int]:
        admit = lambda migration: migration.partition not in large  # noqa: E731
        found = queues.startable(rows, [], frozenset(held), ALL, 9, admit=admit)
        return [each.partition for each in found]

    assert look() == [0, 3]
    assert (look(0, 3), len(queues)) == ([], 2)
    large.clear()
    assert (look(0, 3), len(queues), queues.groups) == ([1, 2], 0, {})


def test_a_destination_without_room_is_asked_a_limited_number_of_times_in_one_look() -> None:
    count = 3 * REFUSED_MAX
    rows = [Partition(1, (0,)) for _ in range(count)]
    plan = Plan(migrations=tuple(move(number, 0, 0, 1 + (number % 2)) for number in range(count)))
    queues, asked = Queues.of(plan, rows), list[int]()

    def admit(migration: Migration) -> bool:
        assert migration.destination is not None
        asked.append(migration.destination)
        return migration.destination == 2

    found = list(queues.startable(rows, [], NOBODY, ALL, 1000, admit=admit))
    assert {each.destination for each in found} == {2}
    assert (asked.count(1), asked.count(2)) == (REFUSED_MAX, count // 2)
    assert len(queues) == count // 2


def test_what_waits_for_a_member_that_is_gone_is_put_right_when_its_row_does_without_it() -> None:
    """A promotion may make by itself what was planned, or leave it to be made from another owner."""
    rows = [Partition(1, (0, 1)), Partition(1, (0, 1)), Partition(1, (0, 1))]
    plan = Plan(migrations=tuple(move(number, 0, 0, 2) for number in range(3)))
    queues = Queues.of(plan, rows)
    rows[0], rows[1] = Partition(3, (1,)), Partition(3, (1, 0))
    able = frozenset({1, 2})
    for _ in range(3):
        assert list(queues.startable(rows, [], NOBODY, able, 9)) == []
    assert list(queues.waiting) == [2], "only this one may still be made when the member comes back"
    assert len(queues) == 1
    assert [each.partition for each in begun(queues, rows)] == [2]
