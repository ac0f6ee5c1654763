"""One tablet at one member: which owner it follows, and what it takes from it.

The rules are those of docs/reference/protocol.md, "One tablet's log". The half of the owner is
`core.tablet.owner.Owner`; it exists while the published row names this member at index 0. Everything here is
a decision on values: the driver writes the log, then acknowledges.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from stele.core.table.steps import jump
from stele.core.table.table import EMPTY, Partition
from stele.core.tablet.log import Log, OpId
from stele.errors import Corrupt


class Code(IntEnum):
    """What a member answers to the owner; all but OK mean that nothing was taken."""

    OK = 0
    STALE_TERM = 1
    STALE_VERSION = 2
    LOG_MISMATCH = 3
    NO_TABLET = 4
    ROW_NEEDED = 5


class Place(NamedTuple):
    """Where sent operations go: leave out `skip` of them, cut the log back to `cut` first (None: do not)."""

    code: Code
    skip: int = 0
    cut: int | None = None


class Tablet:
    """Follower's half. `promised` is the lowest term that is still listened to; it never falls.

    `leader` is the owner that this process follows, in `leader_term`; None until one was heard.
    """

    __slots__ = ("leader", "leader_term", "log", "me", "partition", "promised", "row")

    def __init__(self, partition: int, me: int, log: Log, promised: int, row: Partition = EMPTY) -> None:
        self.partition = partition
        self.me = me
        self.log = log
        self.row = row
        self.promised = max(promised, log.last[0], log.applied[0])
        self.leader: int | None = None
        self.leader_term = 0

    @property
    def named(self) -> bool:
        """Whether the published row names this member."""
        return self.me in self.row.replicas

    def adopt(self, row: Partition) -> bool:
        """Take a published row. False when it is not newer than the one that is known."""
        if row.version <= self.row.version:
            if row.version == self.row.version and row.replicas != self.row.replicas:
                raise Corrupt(
                    f"partition {self.partition}: rows {row.replicas} and {self.row.replicas} "
                    f"have the same version {row.version}"
                )
            return False
        self.row = row
        return True

    def fence(self, term: int) -> bool:
        """Listen to no term below `term` any more. False when that was so already."""
        if term <= self.promised:
            return False
        self.promised = term
        self.leader = None
        return True

    def replace_log(self, log: Log) -> None:
        """Replace the log: by that of a copy, or by an empty one.

        What was promised stays, or rises to what the copy knows: a term never goes back. Who is in the row
        does not come with a copy, but with the published row.
        """
        self.log = log
        self.promised = max(self.promised, log.last[0])

    def check(self, sender: int, version: int, term: int) -> Code:
        """Whether a message of an owner is listened to."""
        if term < self.promised:
            return Code.STALE_TERM
        if self.row.version and jump("version", self.row.version, max(version, term)):
            return Code.STALE_VERSION
        if version > self.row.version:
            return Code.ROW_NEEDED
        if self.row.owner != sender:
            return Code.STALE_VERSION
        return Code.OK

    def follow(self, sender: int, term: int) -> bool:
        """A checked sender is the leader. Whether that is new."""
        self.promised = max(self.promised, term)
        if self.leader == sender and self.leader_term == term:
            return False
        self.leader, self.leader_term = sender, term
        return True

    def place(self, prev: OpId, terms: Sequence[int]) -> Place:
        """Where operations with these terms, that follow `prev` in the owner's log, belong in this one.

        Raises Corrupt when they contradict what is applied here: no legal history does.
        """
        log = self.log
        if prev == log.last:
            return Place(Code.OK)
        applied = log.applied[1]
        if prev[1] < applied:
            return self._overlap(prev, terms, applied - prev[1])
        if not log.holds(prev):
            return Place(Code.LOG_MISMATCH)
        return self._from(prev[1], terms, 0)

    def _overlap(self, prev: OpId, terms: Sequence[int], known: int) -> Place:
        """What begins before the applied end: those are committed, so they are the same here."""
        if known > len(terms):
            return Place(Code.OK, len(terms))
        if terms[known - 1] != self.log.applied[0]:
            raise Corrupt(
                f"partition {self.partition}: the owner has term {terms[known - 1]} at {self.log.applied}, "
                "which is applied here"
            )
        return self._from(prev[1], terms, known)

    def _from(self, before: int, terms: Sequence[int], skip: int) -> Place:
        """Skip what is here already; cut at the first that differs."""
        last = self.log.last[1]
        while skip < len(terms) and before + skip < last:
            if self.log.term_at(before + skip + 1) != terms[skip]:
                return Place(Code.OK, skip, before + skip)
            skip += 1
        return Place(Code.OK, skip)
