"""The judge of plans: each kind of broken plan is found, and the bound is one."""

import dataclasses
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.bench.planners import balanced
from e2e.bench.planning_cases import Case, Event
from e2e.bench.quality import PlanError, Quality, Row, check, judge, lower_bound, replay
from stele.core.placement.members import DataMember
from stele.core.placement.migration import Migration, clear, copy, move, shift_down, shift_up
from stele.core.placement.plan import plan
from stele.core.table.table import Partition, PartitionTable

TABLE: list[Row] = [(0, 1), (1, 2), (2, 0)]


def test_a_target_is_measured() -> None:
    target: list[Row] = [(0, 1), (1, 0), (1, 0)]
    assert judge(TABLE, target, (0, 1), 2) == Quality(
        copies=2, lower_bound=2, owner_spread=1, replica_spread=0, off_share=0.5, missing=0
    )


def test_uneven_missing_and_needless_copies_show() -> None:
    worse = judge(TABLE, [(0, 1), (0, 1), (0,)], (0, 1), 2)
    assert (worse.owner_spread, worse.replica_spread, worse.missing, worse.off_share) == (3, 1, 1, 1.5)
    assert not worse.good
    there_and_back = [*MOVES, move(0, 1, 1, 2), move(0, 1, 2, 1)]
    needless = check(TABLE, there_and_back, [(0, 1), (1, 0), (1, 0)], (0, 1), 2)
    assert (needless.copies, needless.lower_bound, needless.good) == (4, 2, False)
    assert check(TABLE, MOVES, [(0, 1), (1, 0), (1, 0)], (0, 1), 2).good


MOVES = [move(1, 1, 2, 0), move(2, 0, 2, 1)]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ([(0, 1), (1, 0)], "has 2 rows"),
        ([(0, 0), (1, 0), (1, 0)], "partition 0 names a member twice"),
        ([(0, 1), (1, 2), (1, 0)], "partition 1 names a member that does not stay"),
        ([(0, 1), (1, 0), (1, None, 0, 3)], "partition 2 names a member that does not stay"),
    ],
)
def test_a_target_that_is_no_table_is_refused(target: list[Row], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        judge(TABLE, target, (0, 1), 2)


def test_more_replicas_than_wanted_are_refused() -> None:
    with pytest.raises(PlanError, match="more than 2 replicas"):
        judge([(0, 1)], [(0, 1, 2)], (0, 1, 2), 2)


def test_every_type_of_migration_is_replayed() -> None:
    current: list[Row] = [(0, 1), (0,), (0,), (None, 1, 2), (0, 1, 2)]
    target: list[Row] = [(2, 1), (0, 2), (1, 0), (1, None, 2), (0, 1)]
    steps = [move(0, 0, 0, 2), copy(1, 1, 2), shift_down(2, 0, 0, 1, 1), shift_up(3, 1, 1, 0), clear(4, 2, 2)]
    assert [tuple(row) for row in replay(current, steps, target)] == [
        (2, 1),
        (0, 2),
        (1, 0),
        (1, None, 2),
        (0, 1, None),
    ]


@pytest.mark.parametrize(
    ("migration", "said"),
    [
        (move(0, 0, 2, 3), "2 is not at index 0"),
        (move(0, 5, 2, 3), "2 is not at index 5"),
        (move(0, 0, 0, 1), "1 cannot go to index 0: it is in the row"),
        (copy(0, 1, 2), "index 1 is not empty"),
        (shift_down(0, 0, 0, 1, 2), "index 1 is not empty"),
        (shift_up(0, 2, 1, 0, 0), "2 is not at index 1"),
        (clear(0, 0, 0), "only 1 replicas are left"),
    ],
)
def test_a_migration_that_does_not_fit_is_told(migration: Migration, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        replay(TABLE, [migration], TABLE)


def test_migrations_that_end_elsewhere_are_told() -> None:
    target: list[Row] = [(0, 1), (1, 0), (0, 1)]
    with pytest.raises(PlanError, match="partition 2 ends as"):
        check(TABLE, MOVES, target, (0, 1), 2)


def test_plans_broken_on_purpose_are_found() -> None:
    """One thing is wrong with a real plan: a migration is lost, doubled, sent elsewhere, or out of order."""
    case = Case(Event.JOIN, 4, 271, 3)
    rows = balanced(case)
    table = PartitionTable(tuple(Partition(1, row) for row in rows), {})
    made = plan(table, [DataMember(index) for index in case.staying], 3)
    good = list(made.migrations)
    assert check(rows, good, made.targets, case.staying, 3).good
    elsewhere = dataclasses.replace(good[0], destination=(good[0].destination or 0) + 7)
    for broken in (good[1:], [*good, good[-1]], [elsewhere, *good[1:]]):
        with pytest.raises(PlanError):
            check(rows, broken, made.targets, case.staying, 3)
    swapped = [made.targets[1], made.targets[0], *made.targets[2:]]
    with pytest.raises(PlanError):
        check(rows, good, swapped, case.staying, 3)


def rows_of(members: int, replicas: int) -> list[tuple[int, ...]]:
    return list(combinations(range(members), replicas))


@given(st.data())
@settings(max_examples=60)
def test_the_bound_is_one_for_all_even_tables(data: st.DataObject) -> None:
    """A bound is never above what can be reached, and is reached where rows do not limit who goes where."""
    members, replicas = data.draw(st.sampled_from([(2, 1), (3, 1), (3, 2), (4, 2)]))
    gone = data.draw(st.booleans())
    size = data.draw(st.integers(1, 4))
    row = st.lists(st.integers(0, members - 1 + gone), unique=True, max_size=replicas)
    current = data.draw(st.lists(row, min_size=size, max_size=size))
    share, rest = divmod(size * replicas, members)
    fewest = min(
        sum(len(set(new) - set(old)) for old, new in zip(current, table, strict=True))
        for table in product(rows_of(members, replicas), repeat=size)
        if all(share <= sum(m in new for new in table) <= share + (rest > 0) for m in range(members))
    )
    found = lower_bound(current, range(members), replicas)
    assert found == fewest if replicas == 1 else found <= fewest
