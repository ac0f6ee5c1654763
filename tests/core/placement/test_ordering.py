"""Every pair of small rows and random large ones: the order is safe after every step, and what is left of it
after a failure is planned again to the same target.

Ordering compares members only for equality (`test_names_of_members_do_not_matter`), so a pair of rows stands
for all pairs that differ in the names of members alone. `patterns` gives one of each: that is every pair of
rows of up to 5 replica indexes, over any number of members.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise, permutations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.placement.migration import (
    Migration,
    Type,
    clear,
    copy,
    move,
    replay,
    shift_down,
    shift_up,
    step,
    swap,
)
from stele.core.placement.ordering import order, prioritise, without_cycles
from stele.core.table.table import Replicas, row_fault, trimmed
from stele.errors import BadInput

PATTERN_SLOTS = 5
RANDOM_PAIRS = 10_000


def rows(members: int, slots: int) -> list[Replicas]:
    """All rows, gaps included."""
    found = {trimmed(row) for row in product([None, *range(members)], repeat=slots)}
    return sorted((row for row in found if row_fault(row) is None), key=str)


def targets(members: int, slots: int) -> Iterator[Replicas]:
    """All rows without a gap: no others are ever wanted."""
    for length in range(slots + 1):
        yield from permutations(range(members), length)


def patterns(slots: int) -> Iterator[tuple[Replicas, Replicas]]:
    """One pair of rows for all that become each other by giving members other names."""
    for filled in range(slots + 1):
        for indexes in combinations(range(slots), filled):
            place = {index: member for member, index in enumerate(indexes)}
            current = trimmed(place.get(index) for index in range(slots))
            for length in range(slots + 1):
                for target in _targets(filled, length):
                    yield current, target


def _targets(old: int, length: int) -> Iterator[Replicas]:
    """Each way to have members of the row (below `old`) at some indexes and new ones at the others."""
    for kept in range(min(old, length) + 1):
        for indexes in combinations(range(length), kept):
            for members in permutations(range(old), kept):
                new = iter(range(old, old + length))
                place = dict(zip(indexes, members, strict=True))
                yield tuple(place[index] if index in place else next(new) for index in range(length))


def count(row: Iterable[int | None]) -> int:
    return sum(member is not None for member in row)


def check_plan(current: Replicas, wanted: Replicas, steps: Iterable[Migration]) -> None:
    """Safe after every step, hotter indexes first, and it ends as wanted."""
    row, least = current, min(count(current), count(wanted))
    for migration in steps:
        after = step(row, migration)
        assert row_fault(after) is None
        assert count(after) >= least, f"{row} -> {after}: fewer replicas than before and than wanted"
        assert count(after) - count(row) == migration.adds - migration.removes
        check_hot_first(row, after, wanted)
        row = after
    assert row == wanted


def check_hot_first(row: Replicas, after: Replicas, wanted: Replicas) -> None:
    """No index is filled while a hotter one that is wanted is empty, and none that is wanted is emptied but
    to fill a hotter one.
    """
    before, now = _wide(row), _wide(after)
    filled = [index for index in range(7) if before[index] is None and now[index] is not None]
    emptied = [index for index in range(7) if before[index] is not None and now[index] is None]
    for index in filled:
        assert None not in now[: min(index, len(wanted))], (
            f"{row} -> {after}: index {index} before a hotter one"
        )
    for index in emptied:
        hotter = any(now[other] == before[index] for other in range(index))
        assert hotter or index >= len(wanted), f"{row} -> {after}: index {index} is given up"


def _wide(row: Replicas) -> list[int | None]:
    return [*row, *[None] * (7 - len(row))]


def check_prioritised(steps: Iterable[Migration]) -> None:
    """Nothing that makes replicas available stands right behind what it may go before."""
    for before, after in pairwise(steps):
        if after.source is not None or before.participants & after.participants:
            continue
        index = after.destination_new_index
        waits = before.type in (Type.MOVE, Type.SWAP) and before.destination_new_index < index
        assert not waits, (before, after)
        assert not (before.type is Type.SHIFT_DOWN and before.source_new_index > index), (before, after)


def check_pair(current: Replicas, target: Replicas) -> None:
    wanted = without_cycles(current, target)
    steps = order(0, current, target)
    assert set(wanted) == set(target), "the same members, only at other indexes"
    check_plan(current, wanted, steps)
    check_prioritised(steps)
    check_every_failure(current, wanted, steps)


def check_every_failure(current: Replicas, wanted: Replicas, steps: Iterable[Migration]) -> None:
    """Some migrations were committed, the next one failed: planning again still reaches what was wanted."""
    row = current
    for migration in steps:
        assert without_cycles(row, wanted) == wanted
        check_plan(row, wanted, order(0, row, wanted))
        row = step(row, migration)


def test_every_pattern_of_five_indexes() -> None:
    checked = 0
    for current, target in patterns(PATTERN_SLOTS):
        check_pair(current, target)
        checked += 1
    assert checked == 9_752


def random_pairs(seed: int, pairs: int) -> Iterator[tuple[Replicas, Replicas]]:
    """Rows over all 7 indexes and up to 10 members."""
    random = Random(seed)
    for _ in range(pairs):
        named = random.sample(range(10), random.randint(0, 7))
        current = trimmed(None if random.random() < 0.25 else member for member in named)
        yield current, tuple(random.sample(range(10), random.randint(0, 7)))


@pytest.mark.parametrize("seed", range(2))
def test_random_pairs_of_seven_indexes(seed: int) -> None:
    for current, target in random_pairs(seed, RANDOM_PAIRS):
        check_pair(current, target)


long_rows = st.lists(st.integers(0, 9), unique=True, max_size=7)


@given(st.lists(st.none() | st.integers(0, 9), max_size=7).map(trimmed), long_rows.map(tuple), st.randoms())
def test_names_of_members_do_not_matter(current: Replicas, target: Replicas, random: Random) -> None:
    if row_fault(current) is not None:
        return
    names = random.sample(range(100), 10)

    def renamed(row: Replicas) -> Replicas:
        return tuple(None if member is None else names[member] for member in row)

    told = [(m.type, m.destination_new_index, m.source_new_index) for m in order(0, current, target)]
    again = order(0, renamed(current), renamed(target))
    assert [(m.type, m.destination_new_index, m.source_new_index) for m in again] == told
    assert without_cycles(renamed(current), renamed(target)) == renamed(without_cycles(current, target))


def test_patterns_are_all_pairs_up_to_names() -> None:
    """Counted the long way: every pair over as many members as can matter, reduced to its pattern."""

    def pattern(current: Replicas, target: Replicas) -> tuple[Replicas, Replicas]:
        names: dict[int, int] = {}
        for member in (*current, *target):
            if member is not None:
                names.setdefault(member, len(names))
        return tuple(
            tuple(None if member is None else names[member] for member in row) for row in (current, target)
        )  # type: ignore[return-value]

    every = {pattern(current, target) for current, target in product(rows(4, 2), targets(4, 2))}
    assert every == set(patterns(2))


def test_replicas_that_are_given_up_go_from_cold_to_hot() -> None:
    assert order(0, (0, 1, 2, 3), (0,)) == (clear(0, 3, 3), clear(0, 2, 2), clear(0, 1, 1))


BROKEN_PLANS: list[tuple[Replicas, Replicas, list[Migration], str]] = [
    ((0, 1, 2), (0, 3, 1), [clear(0, 2, 2), shift_down(0, 1, 1, 2, 3)], "fewer replicas than before"),
    ((0, None, None), (0, 1, 2), [copy(0, 2, 2), copy(0, 1, 1)], "index 2 before a hotter one"),
    ((0, 1, 2), (0, 2), [clear(0, 1, 1), shift_up(0, 2, 2, 1)], "index 1 is given up"),
    ((0, 1), (2, 1), [move(0, 0, 0, 3)], "assert"),
]


@pytest.mark.parametrize(("current", "wanted", "steps", "reason"), BROKEN_PLANS)
def test_a_broken_plan_is_seen(
    current: Replicas, wanted: Replicas, steps: list[Migration], reason: str
) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_plan(trimmed(current), wanted, steps)


def test_a_step_that_stands_too_late_is_seen() -> None:
    for late in (copy(0, 2, 6), shift_up(0, 6, 3, 2)):
        for first in (move(0, 0, 0, 5), shift_down(0, 0, 0, 3, 5)):
            with pytest.raises(AssertionError):
                check_prioritised([first, late])
            check_prioritised([late, first])


def test_fewest_copies_when_members_are_replaced_in_place() -> None:
    """What the assignment aims at costs one copy per new member."""
    cases = [((0, 1, 2), (3, 1, 4)), ((0, None, 2), (3, 0, 2)), ((0,), (3, 4, 0)), ((None, 1), (1, 3))]
    cases += [((0, 1, 2), (1, 0, 2)), ((0, 1, 2), (1, 3, 2)), ((0, 1, 2), (2, 1)), ((0, 1, 2), (1, 0, 3))]
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
        (move(0, 0, 0, 5), move(0, 1, 1, 6), False),
        (copy(0, 2, 6), move(0, 0, 0, 5), False),
        (swap(0, 0, 1, 1), copy(0, 2, 6), True),
        (swap(0, 0, 1, 1), move(0, 2, 2, 6), False),
    ],
)
def test_priorities(first: Migration, second: Migration, swapped: bool) -> None:
    assert prioritise([first, second]) == ([second, first] if swapped else [first, second])


def test_priorities_pass_over_several_moves_and_keep_the_order_of_copies() -> None:
    moves = [move(0, 0, 0, 10), move(0, 1, 1, 11)]
    copies = [copy(0, 2, 12), copy(0, 3, 13)]
    assert prioritise([*moves, *copies]) == [*copies, *moves]
    assert replay((0, 1), prioritise([*moves, *copies])) == replay((0, 1), [*moves, *copies])
