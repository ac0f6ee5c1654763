"""Changes as values: what they require, what they make, and what is rejected without a trace."""

import pytest

from stele.core.changes import (
    Change,
    Rejected,
    apply,
    apply_all,
    commit_of,
    failed_commit,
    first_assignment,
    reassignment,
    without,
)
from stele.core.errors import Conflict, Refused
from stele.core.ids import VERSION_MAX
from stele.core.migration import clear, copy, move, shift_down, shift_up
from stele.core.table import Member, Partition, PartitionTable, check_invariants

MEMBERS = {i: Member(i, f"m-{i}", f"uuid-{i}", "", lite=i == 9) for i in range(10)}
TABLE = PartitionTable((Partition(3, (0, 1, 2)), Partition(0, ())), MEMBERS)


def test_a_change_makes_the_row_and_leaves_the_given_table_alone() -> None:
    changed = apply(TABLE, Change(0, 3, 4, (5, 1, 2), "MOVE"))
    assert isinstance(changed, PartitionTable)
    check_invariants(changed)
    assert changed.partitions[0] == Partition(4, (5, 1, 2))
    assert TABLE.partitions[0] == Partition(3, (0, 1, 2))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change(0, 2, 3, (5,), ""), "STALE_VERSION"),
        (Change(0, 4, 5, (5,), ""), "STALE_VERSION"),
        (Change(2, 0, 1, (5,), ""), "UNKNOWN_PARTITION"),
        (Change(-1, 0, 1, (5,), ""), "UNKNOWN_PARTITION"),
        (Change(0, 3, 3, (5,), ""), "BAD_STEP"),
        (Change(0, 3, 6, (5,), ""), "BAD_STEP"),
        (Change(0, 3, 4, (5, 5), ""), "BAD_ROW"),
        (Change(0, 3, 4, (5, None), ""), "BAD_ROW"),
        (Change(0, 3, 4, (77,), ""), "BAD_ROW"),
        (Change(0, 3, 4, (9,), ""), "BAD_ROW"),
    ],
)
def test_what_does_not_hold_is_rejected(change: Change, reason: str) -> None:
    rejected = apply(TABLE, change)
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.partition) == (reason, change.partition)


def test_versions_end_where_a_32_bit_number_ends() -> None:
    last = PartitionTable((Partition(VERSION_MAX, (0,)),), MEMBERS)
    rejected = apply(last, Change(0, VERSION_MAX, VERSION_MAX + 1, (1,), ""))
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "BAD_STEP"


def test_a_batch_is_applied_in_order_or_not_at_all() -> None:
    first, second = Change(0, 3, 4, (5, 1, 2), ""), Change(0, 4, 5, (5, 6, 2), "")
    changed = apply_all(TABLE, (first, second))
    assert isinstance(changed, PartitionTable)
    assert changed.partitions[0] == Partition(5, (5, 6, 2))
    assert isinstance(apply_all(TABLE, (first, first)), Rejected)


@pytest.mark.parametrize(
    ("migration", "row"),
    [
        (move(0, 1, 1, 5), (0, 5, 2)),
        (clear(0, 2, 2), (0, 1)),
        (shift_up(0, 2, 2, 1, replaced=1), (0, 2)),
    ],
)
def test_the_commit_of_a_migration(migration, row) -> None:  # type: ignore[no-untyped-def]
    change = commit_of(migration, TABLE.partitions[0])
    assert (change.base_version, change.result_version, change.replicas) == (3, 4, row)
    assert change.reason == migration.type.value
    assert change.row == Partition(4, row)


def test_the_commit_of_migrations_that_fill_a_gap() -> None:
    gap = Partition(7, (0, None, 2))
    assert commit_of(copy(0, 1, 5), gap).replicas == (0, 5, 2)
    assert commit_of(shift_up(0, 2, 2, 1), gap).replicas == (0, 2)
    assert commit_of(shift_down(0, 0, 0, 1, 5), gap).replicas == (5, 0, 2)
    assert commit_of(copy(0, 4, 5), gap).replicas == (0, None, 2, None, 5)


@pytest.mark.parametrize(
    "migration",
    [move(0, 1, 7, 5), move(0, 1, 1, 2), copy(0, 1, 5), copy(0, 3, 2), shift_up(0, 2, 2, 1), clear(0, 1, 2)],
)
def test_a_commit_on_another_row_is_a_conflict(migration) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Conflict, match="does not fit the row"):
        commit_of(migration, TABLE.partitions[0])


def test_shift_down_needs_an_empty_index() -> None:
    with pytest.raises(Conflict, match="index 1 is not empty"):
        commit_of(shift_down(0, 0, 0, 1, 5), TABLE.partitions[0])


def test_a_failed_commit_skips_the_version_that_may_have_been_accepted() -> None:
    change = failed_commit(0, TABLE.partitions[0])
    assert change.row == Partition(5, (0, 1, 2))
    assert isinstance(apply(TABLE, change), PartitionTable)


def test_lost_backups_leave_gaps_and_the_others_stay() -> None:
    assert without(0, TABLE.partitions[0], {1}).row == Partition(5, (0, None, 2))
    assert without(0, TABLE.partitions[0], {1, 2}).row == Partition(5, (0,))


def test_a_lost_owner_is_replaced_by_the_chosen_one_alone() -> None:
    row = TABLE.partitions[0]
    assert without(0, row, {0}, new_owner=2).row == Partition(5, (2, 1))
    assert without(0, row, {0, 1}, new_owner=2).row == Partition(5, (2,))
    with pytest.raises(Refused, match="OWNER_NEEDED"):
        without(0, row, {0})
    with pytest.raises(Refused, match="LAST_REPLICA"):
        without(0, row, {0, 1, 2}, new_owner=5)
    with pytest.raises(Conflict, match="holds no replica"):
        without(0, row, {0}, new_owner=5)
    with pytest.raises(Conflict, match="its owner 0 is not gone"):
        without(0, row, {1}, new_owner=2)


def test_the_first_assignment_happens_once() -> None:
    assert first_assignment(1, TABLE.partitions[1], (3, 4)).row == Partition(1, (3, 4))
    with pytest.raises(Conflict, match="was assigned before"):
        first_assignment(0, TABLE.partitions[0], (3, 4))
    assert reassignment(0, TABLE.partitions[0], (3, 4)).row == Partition(5, (3, 4))
