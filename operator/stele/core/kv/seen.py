"""What one connection has seen, so that a backup never answers it with anything older.

A connection reads its own writes, and never an older state of a partition after a newer one, whichever
members answer. It may miss what other connections wrote: only linearizable reads always have that.
"""

from math import inf

OpId = tuple[int, int]
"""(term, index) of an operation."""

ZERO: OpId = (0, 0)

SEEN_PARTITIONS_MAX = 1024
"""Partitions of which a connection remembers what it has seen."""

SEEN_TOTAL_MAX = 200_000
"""Partitions that all connections of a member remember together."""


class SeenTotal:
    """How many partitions all connections of a member remember."""

    def __init__(self) -> None:
        self.partitions = 0


class SeenOperations:
    """The last operation of each partition that a connection has seen.

    Data that answers it must also have everything that was acknowledged before `since`. At its limits a
    connection forgets the operations and sets `since` to that moment: its next reads wait for newer data.
    `readonly`: backups answer it in every keyspace (READONLY).
    """

    __slots__ = ("_last", "_total", "readonly", "since")

    def __init__(self, total: SeenTotal, since: float = -inf, *, readonly: bool = False) -> None:
        self._total = total
        self._last: dict[int, OpId] = {}
        self.since, self.readonly = since, readonly

    def __len__(self) -> int:
        return len(self._last)

    def saw(self, partition: int, operation: OpId | None, now: float) -> None:
        """Record the operation that a reply depends on, None when it is unknown."""
        if operation is None:
            self.forget(now)
            return
        known = self._last.get(partition)
        if known is None:
            if len(self._last) >= SEEN_PARTITIONS_MAX or self._total.partitions >= SEEN_TOTAL_MAX:
                self.forget(now)
            self._total.partitions += 1
        if known is None or operation > known:
            self._last[partition] = operation

    def set_readonly(self, readonly: bool) -> None:
        """Set whether backups may answer the connection in every keyspace."""
        self.readonly = readonly

    def forget(self, now: float) -> None:
        """Forget the operations; data that answers later must have everything acknowledged before now."""
        self.since = now
        self.release()

    def release(self) -> None:
        """Forget the operations, which then do not count in the total; for the end of the connection."""
        self._total.partitions -= len(self._last)
        self._last.clear()

    def allows(self, partition: int, applied: OpId, fresh: float) -> bool:
        """Return whether data with `applied`, and everything acknowledged before `fresh`, may answer."""
        return fresh >= self.since and applied >= self._last.get(partition, ZERO)
