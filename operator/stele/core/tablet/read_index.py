"""How old the data of backups is: what owners answered when they were asked for their commit index.

A backup asks the owner. The owner answers with its commit index, and only while it may answer reads itself:
until then no other owner can have acknowledged anything. So once the backup has applied that index, its data
has everything that was acknowledged before it *asked* (Raft calls this index the read index). It counts from
the question: a process that was stopped reads old answers from its buffers, and hearing from the owner proves
nothing. Times are seconds of this process's own monotonic clock.
"""

from math import inf

from stele.core.tablet.leases import DRIFT

WANTED_SECONDS = 10.0
"""Seconds after the last read of a partition here during which its owner is still asked."""

ASKS_PER_LEASE = 4
"""Questions to an owner within the time of one lease, so that one late answer does not matter."""


class _Entry:
    """One partition: data that has index `held` has everything that was acknowledged before `fresh`.

    `asked` and `index` are those of the next answer that the data has to reach.
    """

    __slots__ = ("asked", "fresh", "held", "index", "owner")

    def __init__(self, owner: int, asked: float, index: int) -> None:
        self.owner, self.asked, self.index = owner, asked, index
        self.fresh, self.held = -inf, 0

    def reach(self, applied: int) -> None:
        if applied >= self.index and self.asked > self.fresh:
            self.fresh, self.held = self.asked, self.index


class ReadIndexes:
    """The answers of owners, by partition; and which partitions to ask about."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._wanted: dict[int, float] = {}

    def want(self, partition: int, now: float) -> bool:
        """Ask the partition's owner from now on. Return whether it was not asked before."""
        is_new = partition not in self._wanted
        self._wanted[partition] = now
        return is_new

    def wanted(self, now: float) -> list[int]:
        """Return the partitions to ask about; forget those that were not read lately."""
        for partition in [p for p, at in self._wanted.items() if at + WANTED_SECONDS < now]:
            del self._wanted[partition]
            self._entries.pop(partition, None)
        return list(self._wanted)

    def answered(
        self, partition: int, owner: int, asked: float, index: int, *, applied: int, lease_seconds: float
    ) -> None:
        """Record the owner's commit index; `applied` is that of the tablet here.

        An earlier answer that is not reached yet comes first, unless it is too old to be of use: otherwise a
        backup that is behind for longer than the owner is asked would never reach any.
        """
        entry = self._entries.get(partition)
        if entry is None or entry.owner != owner:
            self._entries[partition] = _Entry(owner, asked, index)
            return
        entry.reach(applied)
        if entry.fresh >= entry.asked or entry.asked + lease_seconds <= asked:
            entry.asked, entry.index = asked, index

    def fresh(self, partition: int, owner: int, applied: int) -> float:
        """Return the time before which everything acknowledged is in the data here; -inf when unknown."""
        entry = self._entries.get(partition)
        if entry is None or entry.owner != owner:
            return -inf
        entry.reach(applied)
        return entry.fresh if applied >= entry.held else -inf


def is_recent(fresh: float, now: float, lease_seconds: float) -> bool:
    """Return whether data with everything acknowledged before `fresh` may answer: for a lease after that."""
    return now < fresh + lease_seconds * (1 - DRIFT)
