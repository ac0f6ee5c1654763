"""Every pair of small rows: the order is safe at every step, and any failure leaves a row that can be
planned again.
"""

from collections.abc import Iterator
from itertools import permutations, product

import pytest

from stele.core.errors import BadInput, Conflict
from stele.core.migration import Migration, Type, clear, copy, move, replay, shift_down, shift_up, step
from stele.core.ordering import order, prioritise, without_cycles
from stele.core.table import Replicas, row_fault, trimmed

SLOTS = 4


def rows(members: int, slots: int) -> list[Replicas]:
    """All rows, gaps included."""
    found = {trimmed(row) for row in product([None, *range(members)], repeat=slots)}
    return sorted((row for row in found if row_fault(row) is None), key=str)


def targets(members: int, slots: int) -> Iterator[Replicas]:
    for length in range(slots + 1):
        yield from permutations(range(members), length)


def count(row: Replicas) -> int:
    return sum(member is not None for member in row)


def check_safe(current: Replicas, wanted: Replicas, steps: tuple[Migration, ...]) -> None:
    row, least = current, min(count(current), count(wanted))
    for migration in steps:
        after = step(row, migration)
        assert row_fault(after) is None
        assert count(after) >= least, (current, wanted, steps)
        assert count(after) - count(row) == migration.adds - migration.removes
        row = after
    assert row == wanted, (current, wanted, steps)


def check_filled_hot_first(current: Replicas, steps: tuple[Migration, ...]) -> None:
    """Among COPYs, those of hotter indexes come first."""
    copied = [migration.destination_new_index for migration in steps if migration.type is Type.COPY]
    assert copied == sorted(copied), (current, steps)


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5])
def test_every_pair_of_rows(members: int) -> None:
    for current, target in product(rows(members, min(members, SLOTS)), targets(members, min(members, SLOTS))):
        wanted = without_cycles(current, target)
        steps = order(0, current, target)
        assert set(wanted) == set(target), "the same members, only at other indexes"
        assert without_cycles(current, wanted) == wanted
        check_safe(current, wanted, steps)
        check_filled_hot_first(current, steps)


def test_every_pair_of_rows_from_every_step_that_fails() -> None:
    """A migration failed after some others were committed: planning again reaches the members of the
    target.
    """
    for current, target in product(rows(4, 4), targets(4, 4)):
        row = current
        for migration in order(0, current, target):
            again = without_cycles(row, target)
            assert set(again) == set(target)
            assert replay(row, order(0, row, target)) == again
            row = step(row, migration)


def test_nothing_is_moved_to_a_member_of_the_row() -> None:
    """No MOVE, COPY or SHIFT_DOWN goes to a member that is in the row at that time (`step` would refuse
    it).
    """
    with pytest.raises(Conflict, match="has a replica already"):
        step((0, 1), move(0, 0, 0, 1))
    with pytest.raises(Conflict, match="has a replica already"):
        step((0, 1), copy(0, 2, 1))


def test_the_safety_check_sees_a_dropped_replica() -> None:
    unsafe = (clear(0, 2, 2), shift_down(0, 1, 1, 2, 3))
    with pytest.raises(AssertionError):
        check_safe((0, 1, 2), (0, 3, 1), unsafe)


def test_fewest_copies_when_members_are_replaced_in_place() -> None:
    """What the assignment aims at costs one copy per new member."""
    cases = [((0, 1, 2), (3, 1, 4)), ((0, None, 2), (3, 0, 2)), ((0,), (3, 4, 0)), ((None, 1), (1, 3))]
    for current, target in cases:
        copied = sum(migration.copies for migration in order(0, current, target))
        assert copied == len(set(target) - set(current)), (current, target)


def test_a_target_with_a_gap_is_refused() -> None:
    with pytest.raises(BadInput, match="empty replica index in the middle"):
        order(0, (0, 1), (0, None, 1))


@pytest.mark.parametrize(
    ("first", "second", "swapped"),
    [
        (move(0, 0, 0, 5), copy(0, 2, 6), True),
        (move(0, 0, 0, 5), shift_up(0, 3, 3, 2), True),
        (shift_down(0, 0, 0, 3, 5), copy(0, 2, 6), True),
        (shift_down(0, 0, 0, 1, 5), copy(0, 2, 6), False),
        (move(0, 3, 3, 5), copy(0, 2, 6), False),
        (move(0, 0, 6, 5), copy(0, 2, 6), False),
        (move(0, 0, 0, 6), shift_up(0, 6, 3, 2), False),
        (copy(0, 1, 5), copy(0, 2, 6), False),
        (move(0, 0, 0, 5), shift_up(0, 3, 3, 2, replaced=1), False),
    ],
)
def test_priorities(first: Migration, second: Migration, swapped: bool) -> None:
    assert prioritise([first, second]) == ([second, first] if swapped else [first, second])


def test_priorities_pass_over_several_moves_and_keep_the_order_of_copies() -> None:
    moves = [move(0, 0, 0, 10), move(0, 1, 1, 11)]
    copies = [copy(0, 2, 12), copy(0, 3, 13)]
    assert prioritise([*moves, *copies]) == [*copies, *moves]
