"""Where the operations of each partition are in the segments of the log."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stele.errors import Corrupt
from stele.wire.storage.segment import CHECKSUM_BYTES, Operation, Range

NUMBER_SHIFT: Final = 32
OFFSET_MASK: Final = (1 << NUMBER_SHIFT) - 1
"""A place in the log is the number of a segment, then the offset of an operation's checksum in its file."""


class Piece(NamedTuple):
    """Records that follow each other in one segment: where they begin, the first index, their sizes."""

    place: int
    first: int
    sizes: Sequence[int]

    @property
    def bytes(self) -> int:
        """What they and their checksums take."""
        return sum(self.sizes) + CHECKSUM_BYTES * len(self.sizes)


VISIT_BYTES: Final = 4
"""Bytes that could be moved in the time in which an operation is looked at."""

Span = tuple[int, int]
"""The first index of a partition's operations, and the first one after them."""


def _without(partition: int, span: Span, begin: int, end: int) -> Span | None:
    """Return what is left without a range, None for nothing. Raises Corrupt for a range in the middle."""
    first, after = max(begin, span[0]), min(end, span[1])
    if first >= after:
        return span
    if span[0] < first and after < span[1]:
        raise Corrupt(f"log of partition {partition}: {begin} to {end} is in the middle of it")
    left = (after, span[1]) if first == span[0] else (span[0], first)
    return left if left[0] < left[1] else None


class _Run:
    """The operations of one partition, which follow each other: index `first` is at `places[0]`."""

    __slots__ = ("first", "places", "sizes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.places = array("Q")
        self.sizes = array("I")

    @property
    def after(self) -> int:
        """The first index after the last operation."""
        return self.first + len(self.places)


class Positions:
    """Positions of all operations, and how many of them each segment has.

    The operations of a partition follow each other. `operations` counts them by number of segment, `count` is
    their sum, and `record_bytes` the size of all records.
    """

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        self._moved: dict[int, dict[int, tuple[int, int]]] = {}
        self.operations: dict[int, int] = {}
        self.count = 0
        self.record_bytes = 0

    # -- changes

    def check(self, operations: Sequence[Operation], ranges: Sequence[Range]) -> None:
        """Raise Corrupt unless each operation follows its partition's last one, or begins its log.

        The ranges are deleted before.
        """
        spans: dict[int, Span | None] = {}
        for partition, begin, end in ranges:
            span = spans[partition] if partition in spans else self._span(partition)
            spans[partition] = None if span is None else _without(partition, span, begin, end)
        for partition, index, _ in operations:
            span = spans[partition] if partition in spans else self._span(partition)
            if span is not None and index != span[1]:
                raise Corrupt(f"log of partition {partition}: operation {index} follows {span[1] - 1}")
            spans[partition] = (index if span is None else span[0], index + 1)

    def _span(self, partition: int) -> Span | None:
        run = self._runs.get(partition)
        return None if run is None else (run.first, run.after)

    def put(self, place: int, operations: Sequence[Operation]) -> None:
        """Take in operations whose records begin at `place`, one after the other.

        Raises Corrupt for one that does not follow its partition's last one.
        """
        self._count(place, len(operations))
        for partition, index, size in operations:
            run = self._runs.get(partition)
            if run is None:
                run = self._runs[partition] = _Run(index)
            if index != run.first + len(run.places):
                raise Corrupt(f"log of partition {partition}: operation {index} follows {run.after - 1}")
            run.places.append(place)
            run.sizes.append(size)
            self.record_bytes += size
            place += CHECKSUM_BYTES + size

    def _count(self, place: int, operations: int) -> None:
        number = place >> NUMBER_SHIFT
        self.operations[number] = self.operations.get(number, 0) + operations
        self.count += operations

    def move(self, place: int, operations: Sequence[Operation]) -> None:
        """Note that the records of these operations are also at `place`, one after the other.

        While a log is read, an operation may be unknown: its old segment is gone. `settle` is called then.
        """
        for partition, index, size in operations:
            run = self._runs.get(partition)
            if run is not None and run.first <= index < run.after:
                self._count(run.places[index - run.first], -1)
                self._count(place, 1)
                run.places[index - run.first] = place
            else:
                self._moved.setdefault(partition, {})[index] = place, size
            place += CHECKSUM_BYTES + size

    def settle(self) -> None:
        """Put moved operations in front of those that follow them. Raises Corrupt for a gap."""
        moved, self._moved = self._moved, {}
        for partition, found in moved.items():
            if not found:
                continue
            later = self._runs.pop(partition, None)
            first = min(found)
            after = first + len(found)
            if max(found) != after - 1 or (later is not None and later.first != after):
                raise Corrupt(
                    f"log of partition {partition}: operations between {first} and the last are missing"
                )
            for index in range(first, after):
                place, size = found[index]
                self.put(place, [(partition, index, size)])
            if later is not None:
                self._runs[partition].places.extend(later.places)
                self._runs[partition].sizes.extend(later.sizes)

    def drop(self, ranges: Sequence[Range]) -> None:
        """Delete ranges of indexes, from the front or from the end of a partition's operations, or all."""
        for partition, begin, end in ranges:
            moved = self._moved.get(partition)
            if moved is not None:
                for index in [index for index in moved if begin <= index < end]:
                    del moved[index]
            run = self._runs.get(partition)
            if run is None:
                continue
            first, after = max(0, begin - run.first), min(len(run.places), end - run.first)
            if first < after:
                self._drop(partition, run, first, after)

    def _drop(self, partition: int, run: _Run, first: int, after: int) -> None:
        """Delete what is between two offsets in a run, of which one is its begin or its end."""
        if first > 0 and after < len(run.places):
            raise Corrupt(f"log of partition {partition}: operations in the middle of it are deleted")
        self._uncount(run, first, after)
        del run.places[first:after]
        del run.sizes[first:after]
        if first == 0:
            run.first += after
        if not run.places:
            del self._runs[partition]

    def _uncount(self, run: _Run, first: int, after: int) -> None:
        counted = self.operations
        for place in run.places[first:after]:
            counted[place >> NUMBER_SHIFT] -= 1
        self.count -= after - first
        self.record_bytes -= sum(run.sizes[first:after])

    def forget(self, number: int) -> None:
        """Forget a segment that has no operations any more."""
        self.operations.pop(number, None)

    # -- questions

    def partitions(self) -> list[int]:
        """Return the partitions that have operations."""
        return list(self._runs)

    def bounds(self, partition: int, begin: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last index in [begin, end); None where there is none."""
        run = self._runs.get(partition)
        if run is None:
            return None
        first, last = max(begin, run.first), min(end, run.after) - 1
        return (first, last) if first <= last else None

    def pieces(self, partition: int, begin: int, end: int, piece_bytes: int) -> Iterator[Piece]:
        """Iterate what is in [begin, end) in order, as pieces of up to `piece_bytes`, or of one record."""
        bounds = self.bounds(partition, begin, end)
        if bounds is None:
            return
        run = self._runs[partition]
        at, after = bounds[0] - run.first, bounds[1] + 1 - run.first
        while at < after:
            count, size = 1, CHECKSUM_BYTES + run.sizes[at]
            while (
                at + count < after and size < piece_bytes and run.places[at + count] == run.places[at] + size
            ):
                size += CHECKSUM_BYTES + run.sizes[at + count]
                count += 1
            yield Piece(run.places[at], run.first + at, run.sizes[at : at + count])
            at += count

    def indexes_in(
        self, partition: int, number: int, begin: int, bytes_max: int
    ) -> tuple[list[int], int | None]:
        """Return indexes, from `begin` on, of the partition's operations that are in this segment.

        It ends with the one with which records, and VISIT_BYTES for each operation that was looked at, reach
        `bytes_max`. Returned, too, is where to go on, None when all were looked at.
        """
        run = self._runs.get(partition)
        found: list[int] = []
        if run is None:
            return found, None
        for at in range(max(0, begin - run.first), len(run.places)):
            if bytes_max <= 0:
                return found, run.first + at
            bytes_max -= VISIT_BYTES
            if run.places[at] >> NUMBER_SHIFT == number:
                found.append(run.first + at)
                bytes_max -= run.sizes[at]
        return found, None
