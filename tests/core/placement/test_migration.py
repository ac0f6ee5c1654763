"""What a migration makes of a row, and that it is refused on a row that it was not planned on."""

import pytest

from stele.core.placement.migration import (
    Migration,
    clear,
    copy,
    move,
    shift_down,
    shift_up,
    step,
    swap,
    swapped,
)
from stele.core.table.table import Replicas, trimmed
from stele.errors import Conflict

ROW = (0, 1, 2)
GAP = (0, None, 2)


@pytest.mark.parametrize(
    ("row", "migration", "made"),
    [
        (ROW, move(0, 1, 1, 5), (0, 5, 2)),
        (ROW, clear(0, 2, 2), (0, 1)),
        (ROW, shift_up(0, 2, 2, 1, replaced=1), (0, 2)),
        (GAP, copy(0, 1, 5), (0, 5, 2)),
        (GAP, shift_up(0, 2, 2, 1), (0, 2)),
        (GAP, shift_down(0, 0, 0, 1, 5), (5, 0, 2)),
        (GAP, copy(0, 4, 5), (0, None, 2, None, 5)),
        (ROW, swap(0, 0, 2, 2), (2, 1, 0)),
        (GAP, swap(0, 0, 2, 2), (2, None, 0)),
    ],
)
def test_a_step_makes_the_row(row: Replicas, migration: Migration, made: Replicas) -> None:
    assert trimmed(step(row, migration)) == made


@pytest.mark.parametrize(
    ("migration", "reason"),
    [
        (move(0, 1, 7, 5), "index 1 is not held by 7"),
        (move(0, 1, 1, 2), "2 already has a replica"),
        (copy(0, 1, 5), "index 1 is not empty"),
        (copy(0, 3, 2), "2 already has a replica"),
        (shift_up(0, 2, 2, 1), "index 1 is not empty"),
        (shift_down(0, 0, 0, 1, 5), "index 1 is not empty"),
        (clear(0, 1, 2), "index 1 is not held by 2"),
        (swap(0, 1, 2, 2), "index 0 is not held by 1"),
        (swap(0, 0, 2, 1), "index 1 is not held by 2"),
        (swap(0, 0, 7, 3), "index 3 is not held by 7"),
    ],
)
def test_a_step_on_another_row_is_a_conflict(migration: Migration, reason: str) -> None:
    with pytest.raises(Conflict, match=f"does not apply to the row .*: {reason}"):
        step(ROW, migration)


def test_a_swap_is_undone_by_its_opposite() -> None:
    there = swap(0, 0, 2, 2)
    assert step(step(ROW, there), swap(0, 2, 0, 2)) == ROW
    assert swapped(ROW, 2) == step(ROW, there)
    assert not any((there.copies, there.adds, there.removes))
