"""Bookkeeping of one tablet's log, without the operations themselves: terms, bounds, sizes.

The log is a run of operations `first..last.index` with `applied <= committed <= last`, by index. Operations
up to `applied` are in the data, may be trimmed from the front, and are never truncated. Terms never decrease
with the index, so one entry per change of term determines the term of every operation.
"""

from bisect import bisect_right

from stele.errors import Corrupt

OpId = tuple[int, int]
"""(term, index); tuples compare as OpIds do."""

ZERO: OpId = (0, 0)
SEGMENT_BYTES = 64 * 1024
"""Approximate bytes of the steps in which sizes are recorded and the front is trimmed."""


def over_limit(pinned: dict[int, int], each_max: int, all_max: int) -> list[int]:
    """Return the partitions of {partition: bytes} to unpin, largest first, so that both limits hold."""
    total, over = sum(pinned.values()), []
    for partition, size in sorted(pinned.items(), key=lambda item: -item[1]):
        if size <= each_max and total <= all_max:
            break
        total -= size
        over.append(partition)
    return over


class Log:
    """See the module. Methods raise Corrupt, without a change, when an invariant would be violated.

    `appended_bytes` counts what was appended since this object was made.
    """

    __slots__ = (
        "_segments", "_starts", "_terms", "appended_bytes", "applied", "bytes", "committed", "first", "last",
    )  # fmt: skip

    def __init__(self, applied: OpId = ZERO) -> None:
        self.applied = applied
        self.last = applied
        self.committed = applied[1]
        self.first = applied[1] + 1
        self.bytes = 0
        self.appended_bytes = 0
        self._starts: list[int] = []
        self._terms: list[int] = []
        self._segments: list[list[int]] = []

    @classmethod
    def restored(cls, applied: OpId, first: int, last: int, terms: list[tuple[int, int]], size: int) -> "Log":
        """Return the log of a volume: operations first..last, with `terms` as (first index, term).

        `size` is their approximate number of bytes, assumed to be spread evenly. A log that ends before
        `applied` lost its unsynced end in a loss of power, and counts as empty.
        """
        log = cls(applied)
        if last < first or last < applied[1]:
            return log
        if first > applied[1] + 1:
            raise Corrupt(f"the log has {first} to {last}, but {applied[1]} is applied")
        log.first = first
        log._starts = [start for start, _ in terms]
        log._terms = [term for _, term in terms]
        log.last = (log._terms[-1], last)
        log.bytes = size
        steps, count = max(1, min(len(log), size // SEGMENT_BYTES)), len(log)
        log._segments = [
            [first - 1 + count * (step + 1) // steps, size * (step + 1) // steps - size * step // steps]
            for step in range(steps)
        ]
        if applied[1] >= first and log._terms[bisect_right(log._starts, applied[1]) - 1] != applied[0]:
            raise Corrupt(f"operation {applied} is applied, but the log has another term there")
        return log

    def __len__(self) -> int:
        return self.last[1] - self.first + 1

    def term_at(self, index: int) -> int | None:
        """Return the term of an operation, None when it is unknown."""
        if index == self.last[1]:
            return self.last[0]
        if index == 0:
            return 0
        if index == self.applied[1]:
            return self.applied[0]
        if not self.first <= index < self.last[1]:
            return None
        return self._terms[bisect_right(self._starts, index) - 1]

    def holds(self, op: OpId) -> bool:
        """Return whether exactly this operation, and hence all before it, are in this log or were applied."""
        return self.term_at(op[1]) == op[0]

    def append(self, term: int, count: int, size: int) -> None:
        """Append `count` operations of one term."""
        last_term, last = self.last
        if term != last_term or not self._terms:
            self._begin_term(term)
        self.last = (term, last + count)
        self.bytes += size
        self.appended_bytes += size
        self._grow(last + count, size)

    def _begin_term(self, term: int) -> None:
        last_term, last = self.last
        if term < last_term:
            raise Corrupt(f"term {term} cannot follow term {last_term}")
        if not self._terms or self._terms[-1] != term:
            self._starts.append(last + 1)
            self._terms.append(term)

    def _grow(self, last: int, size: int) -> None:
        if self._segments and self._segments[-1][1] < SEGMENT_BYTES:
            self._segments[-1][0] = last
            self._segments[-1][1] += size
        else:
            self._segments.append([last, size])

    def truncate(self, index: int) -> None:
        """Keep operations up to `index`. Never removes applied operations."""
        if index < self.applied[1] or index < self.committed:
            raise Corrupt(f"cannot truncate to operation {index}: {self.applied[1]} is applied")
        if index >= self.last[1]:
            return
        term = self.term_at(index)
        assert term is not None
        while self._starts and self._starts[-1] > index:
            self._starts.pop()
            self._terms.pop()
        self.last = (term, index)
        while self._segments and len(self._segments) > 1 and self._segments[-2][0] >= index:
            self.bytes -= self._segments.pop()[1]
        if self._segments:
            self._segments[-1][0] = min(self._segments[-1][0], index)

    def commit(self, index: int) -> bool:
        """Raise the commit index to `index`, at most to the end of the log; return whether it changed."""
        index = min(index, self.last[1])
        if index <= self.committed:
            return False
        self.committed = index
        return True

    def apply(self, index: int) -> None:
        """Record that operations up to `index` are in the data."""
        if not self.applied[1] <= index <= self.committed:
            raise Corrupt(f"operation {index} cannot be applied: {self.committed} is committed")
        term = self.term_at(index)
        assert term is not None
        self.applied = (term, index)

    def trim_point(self, up_to: int, bytes_kept: int) -> int:
        """Return the greatest index <= `up_to` that can be trimmed, keeping `bytes_kept`; first - 1 for
        none."""
        point, left = self.first - 1, self.bytes
        for last, size in self._segments[:-1]:
            if last > min(up_to, self.applied[1]) or left - size < bytes_kept:
                break
            point, left = last, left - size
        return point

    def bytes_between(self, after: int, up_to: int) -> int:
        """Return the approximate size of the operations after `after`, up to `up_to`."""
        return sum(size for last, size in self._segments if after < last <= up_to)

    def trim(self, index: int) -> None:
        """Remove operations up to `index`, which must be applied, from the log."""
        if index > self.applied[1] or index >= self.last[1]:
            raise Corrupt(f"operation {index} cannot be trimmed: {self.applied[1]} is applied")
        if index < self.first:
            return
        while self._segments and self._segments[0][0] <= index:
            self.bytes -= self._segments.pop(0)[1]
        while len(self._starts) > 1 and self._starts[1] <= index + 1:
            self._starts.pop(0)
            self._terms.pop(0)
        self.first = index + 1
