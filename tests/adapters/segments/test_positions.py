"""Positions of operations are those of a model, whatever is put, moved and dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.adapters.segments.positions import NUMBER_SHIFT, VISIT_BYTES, Positions
from stele.errors import Corrupt
from stele.wire.storage.segment import CHECKSUM_BYTES

PARTITIONS = 2
AFTER_ALL = 1 << 62

Log = dict[int, tuple[int, int]]
"""Place and size of each operation of a partition."""


class Case:
    """Positions and their model. Each frame is in segment `number`, behind the one before."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.logs: dict[int, Log] = {}
        self.number, self.offset = 0, 0

    def frame(self, count: int, size: int) -> list[int]:
        """Return places of so many records of one size, after a gap."""
        begin = self.number << NUMBER_SHIFT | self.offset + 50
        self.offset += 50 + count * (CHECKSUM_BYTES + size)
        return [begin + n * (CHECKSUM_BYTES + size) for n in range(count)]

    def put(self, partition: int, first: int, count: int, size: int) -> None:
        places = self.frame(count, size)
        self.positions.put(places[0], [(partition, first + n, size) for n in range(count)])
        log = self.logs.setdefault(partition, {})
        log.update({first + n: (place, size) for n, place in enumerate(places)})

    def drop(self, partition: int, begin: int, end: int) -> None:
        self.positions.drop([(partition, begin, end)])
        log = self.logs.get(partition, {})
        self.logs[partition] = {at: entry for at, entry in log.items() if not begin <= at < end}

    def move(self, partition: int, number: int) -> None:
        """Move the first two operations of a segment to the newest."""
        log = self.logs.get(partition, {})
        there = [index for index in sorted(log) if log[index][0] >> NUMBER_SHIFT == number]
        assert self.positions.indexes_in(partition, number, 0, 1 << 40) == (there, None)
        if not there:
            return
        sizes = [log[index][1] for index in there[:2]]
        place = self.frame(1, sum(sizes) + CHECKSUM_BYTES)[0]
        operations = [(partition, index, size) for index, size in zip(there, sizes, strict=False)]
        self.positions.move(place, operations)
        for index, size in zip(there, sizes, strict=False):
            log[index] = place, size
            place += CHECKSUM_BYTES + size

    def check(self) -> None:
        """Check counts, sizes, bounds and pieces."""
        entries = [entry for log in self.logs.values() for entry in log.values()]
        counted = {number: n for number, n in self.positions.operations.items() if n}
        numbers = [place >> NUMBER_SHIFT for place, _ in entries]
        assert counted == {number: numbers.count(number) for number in numbers}
        assert self.positions.count == len(entries)
        assert self.positions.record_bytes == sum(size for _, size in entries)
        assert sorted(self.positions.partitions()) == sorted(key for key, log in self.logs.items() if log)
        for partition in range(PARTITIONS):
            log = self.logs.get(partition, {})
            bounds = (min(log), max(log)) if log else None
            assert self.positions.bounds(partition, 0, AFTER_ALL) == bounds
            assert found(self.positions, partition, 0, AFTER_ALL, 100) == log


def found(positions: Positions, partition: int, begin: int, end: int, piece_bytes: int) -> Log:
    """Return what the pieces of a range say."""
    log: Log = {}
    for piece in positions.pieces(partition, begin, end, piece_bytes):
        place = piece.place
        assert len(piece.sizes) == 1 or sum(piece.sizes[:-1]) < piece_bytes
        for index, size in enumerate(piece.sizes, piece.first):
            log[index] = place, size
            place += CHECKSUM_BYTES + size
    return log


STEP = st.tuples(
    st.sampled_from(("append", "front", "tail", "all", "move", "segment")),
    st.integers(0, PARTITIONS - 1),
    st.integers(0, 9),
    st.integers(1, 4),
)


def do(case: Case, step: tuple[str, int, int, int]) -> None:
    """Do one step; `at` counts from the first operation of the partition."""
    does, partition, at, count = step
    log = case.logs.get(partition, {})
    first, after = (min(log), max(log) + 1) if log else (at, at)
    if does == "segment":
        case.number, case.offset = case.number + 1, 0
    elif does == "move":
        case.move(partition, max(0, case.number - at))
    elif does in ("front", "tail", "all"):
        begin = first + at if does == "tail" else 0
        case.drop(partition, begin, first + at if does == "front" else AFTER_ALL)
    else:
        case.put(partition, after, count, 10 * at)
    case.check()


@given(st.lists(STEP, max_size=40))
def test_they_are_those_of_the_model_after_each_step(steps: list[tuple[str, int, int, int]]) -> None:
    case = Case()
    for step in steps:
        do(case, step)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 60))
def test_pieces_of_a_range_have_what_is_in_it(begin: int, end: int, piece_bytes: int) -> None:
    case = Case()
    for first in (2, 5, 8):
        case.put(1, first, 3, first)
    expected = {index: entry for index, entry in case.logs[1].items() if begin <= index < end}
    assert found(case.positions, 1, begin, end, piece_bytes) == expected
    bounds = (min(expected), max(expected)) if expected else None
    assert case.positions.bounds(1, begin, end) == bounds


def test_records_of_one_frame_are_one_piece_up_to_its_bytes() -> None:
    case = Case()
    case.put(1, 1, 6, 10)
    pieces = list(case.positions.pieces(1, 0, 99, 28))
    assert [(piece.first, len(piece.sizes)) for piece in pieces] == [(1, 2), (3, 2), (5, 2)]


def test_indexes_in_a_segment_are_told_up_to_a_size_and_from_one_on() -> None:
    case = Case()
    case.put(1, 1, 4, 10)
    case.number, case.offset = 1, 0
    case.put(1, 5, 2, 10)
    case.positions.move(1 << NUMBER_SHIFT | 500, [(1, 2, 10)])
    indexes_in = case.positions.indexes_in
    assert [indexes_in(1, 0, begin, 1 << 40)[0] for begin in (0, 3, 5)] == [[1, 3, 4], [3, 4], []]
    assert (indexes_in(1, 1, 0, 1 << 40), indexes_in(2, 0, 0, 1 << 40)) == (([2, 5, 6], None), ([], None))
    each = VISIT_BYTES + 10
    assert indexes_in(1, 0, 0, 1) == ([1], 2)
    assert indexes_in(1, 0, 0, each + 1) == ([1], 3)
    assert indexes_in(1, 0, 0, each + VISIT_BYTES + 1) == ([1, 3], 4)
    assert indexes_in(1, 0, 4, 1) == ([4], 5)
    assert indexes_in(1, 1, 3, 2 * VISIT_BYTES) == ([], 5)


@pytest.mark.parametrize("number", [0, 1])
def test_a_forgotten_segment_is_counted_no_more(number: int) -> None:
    positions = Positions()
    positions.put(number << NUMBER_SHIFT, [(1, 1, 10)])
    positions.drop([(1, 0, 2)])
    assert positions.operations == {number: 0}
    positions.forget(number)
    assert positions.operations == {}


def read(written: list[tuple[int, int, int]], moved: list[tuple[int, int, int]]) -> Positions:
    """Return positions after a start that read moved operations, then others."""
    positions = Positions()
    positions.move(1 << NUMBER_SHIFT, moved)
    if written:
        positions.put(2 << NUMBER_SHIFT, written)
    return positions


def test_moved_operations_are_put_in_front_of_those_that_follow() -> None:
    positions = read([(1, 3, 5)], [(1, 1, 5), (1, 2, 5)])
    positions.settle()
    assert positions.bounds(1, 0, 99) == (1, 3)
    assert (positions.operations, positions.record_bytes) == ({1: 2, 2: 1}, 15)


def test_moved_operations_that_were_all_dropped_leave_nothing() -> None:
    positions = read([], [(1, 1, 5), (1, 2, 5)])
    positions.drop([(1, 0, 99)])
    positions.settle()
    assert (positions.partitions(), positions.record_bytes) == ([], 0)


@pytest.mark.parametrize("indexes", [(1, 2), (1, 3), (4, 6), (2, 9)])
def test_moved_operations_that_others_do_not_follow_are_refused(indexes: tuple[int, int]) -> None:
    positions = read([(1, 4, 5)], [(1, index, 5) for index in indexes])
    with pytest.raises(Corrupt, match="log of partition 1"):
        positions.settle()


def test_an_operation_that_does_not_follow_is_refused_while_a_log_is_read() -> None:
    positions = read([(1, 3, 5)], [])
    with pytest.raises(Corrupt, match="operation 5 follows 3"):
        positions.put(0, [(1, 5, 5)])
    with pytest.raises(Corrupt, match="in the middle"):
        read([(1, 3, 5), (1, 4, 5), (1, 5, 5)], []).drop([(1, 4, 5)])
