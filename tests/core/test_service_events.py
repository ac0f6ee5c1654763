"""What services are told: their own indexes for every type, and one end for each begin."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.placement.migration import Migration, Type, clear, copy, move, shift_down, shift_up, step
from stele.core.service_events import Endpoint, PartitionMigrationEvent, begun, event_of_row, index_of
from stele.core.table.table import Partition, Replicas

A, B, C, D = 0, 1, 2, 3
SOURCE, DESTINATION = Endpoint.SOURCE, Endpoint.DESTINATION


def told(migration: Migration, row: Replicas) -> dict[int, tuple[Endpoint, int, int, Type]]:
    """What each member is told of a migration that is committed."""
    before = Partition(5, row)
    result = step(row, migration)
    after = Partition(6, result)
    found: dict[int, tuple[Endpoint, int, int, Type]] = {}
    for me in (A, B, C, D):
        known, event = index_of(row, me), None
        if migration.copies and me in (migration.destination, row[0]):
            assert migration.destination is not None
            record = begun(
                "m", migration.type, 0, row=before, result=result, destination=migration.destination, me=me
            )
            assert record.outcome(before) is None
            assert record.outcome(after) is True
            assert record.outcome(Partition(7, row)) is False
            known, event = record.index_after(True), record.event
        by_row = event_of_row(0, before, after, me, known)
        assert event is None or by_row is None
        event = event or by_row
        if event is not None:
            indexes = (event.current_replica_index, event.new_replica_index)
            assert indexes == (index_of(row, me), index_of(result, me))
            found[me] = (event.endpoint, *indexes, event.type)
    return found


@pytest.mark.parametrize(
    ("migration", "row", "expected"),
    [
        (move(0, 0, A, C), (A, B), {A: (SOURCE, 0, -1, Type.MOVE), C: (DESTINATION, -1, 0, Type.MOVE)}),
        (
            move(0, 1, B, C),
            (A, B),
            {
                A: (SOURCE, 0, 0, Type.MOVE),
                B: (SOURCE, 1, -1, Type.MOVE),
                C: (DESTINATION, -1, 1, Type.MOVE),
            },
        ),
        (copy(0, 1, C), (A,), {A: (SOURCE, 0, 0, Type.COPY), C: (DESTINATION, -1, 1, Type.COPY)}),
        (
            shift_down(0, A, 0, 1, D),
            (A,),
            {A: (SOURCE, 0, 1, Type.SHIFT_DOWN), D: (DESTINATION, -1, 0, Type.SHIFT_DOWN)},
        ),
        (shift_up(0, C, 2, 1), (A, None, C), {C: (DESTINATION, 2, 1, Type.SHIFT_UP)}),
        (
            shift_up(0, C, 2, 1, B),
            (A, B, C),
            {B: (SOURCE, 1, -1, Type.SHIFT_UP), C: (DESTINATION, 2, 1, Type.SHIFT_UP)},
        ),
        (
            shift_up(0, B, 1, 0, A),
            (A, B),
            {A: (SOURCE, 0, -1, Type.SHIFT_UP), B: (DESTINATION, 1, 0, Type.SHIFT_UP)},
        ),
        (clear(0, 1, B), (A, B), {B: (SOURCE, 1, -1, Type.CLEAR)}),
    ],
)
def test_every_type_tells_its_members_their_own_indexes(
    migration: Migration, row: Replicas, expected: dict[int, tuple[Endpoint, int, int, Type]]
) -> None:
    assert told(migration, row) == expected


def test_the_first_row_moves_nothing() -> None:
    assert event_of_row(0, Partition(0, ()), Partition(1, (A, B)), A, -1) is None


rows = st.lists(st.sampled_from([A, B, C, D]), unique=True, min_size=1, max_size=3).map(tuple)


@given(st.lists(rows, min_size=2, max_size=8), st.sampled_from([A, B, C, D]), st.data())
def test_whatever_rows_are_missed_a_member_ends_with_the_index_that_it_has(
    history: list[Replicas], me: int, data: st.DataObject
) -> None:
    """Services follow the events alone; each row may begin a migration before it, and some are never seen."""
    seen = [Partition(number + 1, row) for number, row in enumerate(history)]
    seen = [row for row in seen if row is seen[0] or data.draw(st.booleans())]
    index, open_now = index_of(seen[0].replicas, me), 0
    for before, row in pairwise(seen):
        known = index_of(before.replicas, me)
        destination = next((m for m in (A, B, C, D) if m not in before.replicas), None)
        if destination is not None and me in (destination, before.replicas[0]) and data.draw(st.booleans()):
            result = (destination, *before.replicas[1:])
            record = begun("m", Type.MOVE, 0, row=before, result=result, destination=destination, me=me)
            open_now += 1
            committed = record.outcome(row)
            assert committed is (destination in row.replicas)
            open_now -= 1
            known = record.index_after(committed)
            index = known
        event = event_of_row(0, before, row, me, known)
        if event is not None:
            assert isinstance(event, PartitionMigrationEvent)
            assert event.current_replica_index == index
            index = event.new_replica_index
        assert index == index_of(row.replicas, me)
    assert open_now == 0
