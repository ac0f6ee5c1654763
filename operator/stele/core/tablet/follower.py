"""The follower's half of a tablet: which owner it follows, and which operations it accepts.

The rules are those of docs/reference/protocol.md, "One tablet's log". `core.tablet.owner.Owner` is the
owner's half; it exists while the published row names this member at index 0. Everything here decides on
values: the driver writes the log, then acknowledges.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from stele.core.table.steps import jump
from stele.core.table.table import EMPTY, Partition
from stele.core.tablet.log import Log, OpId
from stele.errors import Corrupt


class Code(IntEnum):
    """A member's answer to the owner; with any code but OK, nothing was accepted."""

    OK = 0
    STALE_TERM = 1
    STALE_VERSION = 2
    LOG_MISMATCH = 3
    NO_TABLET = 4
    ROW_NEEDED = 5


CODES = tuple(Code)
"""By their numbers: to call `Code` costs ten times as much, and there is one for each acknowledgement."""


class Place(NamedTuple):
    """Where received operations belong: drop the first `skip`, after truncating the log to `cut` (None:
    do not)."""

    code: Code
    skip: int = 0
    cut: int | None = None


class Tablet:
    """Follower's half. `promised` is the lowest term that is still accepted. It never decreases, except
    where what was promised is lost (`restore_promise`).

    `leader` is the owner that this process follows in `leader_term`; None before the first contact.
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
        """Adopt a published row. Return False when it is not newer than the present one."""
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
        """Reject terms below `term` from now on. Return False when that was the case already."""
        if term <= self.promised:
            return False
        self.promised = term
        self.leader = None
        return True

    def promise(self, term: int) -> None:
        """Reject terms below `term` from now on; a lower one than before changes nothing."""
        self.promised = max(self.promised, term)

    def restore_promise(self, version: int) -> None:
        """Replace a lost promise, in whose place every term is rejected, by a row's version.

        The caller knows that no owner of an older row can need this member: a newer row does not name it.
        """
        self.promised = version

    def replace_log(self, log: Log) -> None:
        """Replace the log by that of a copy, or by an empty one.

        The promise stays, or rises to the copy's last term: it never decreases. The row is not part of a
        copy: it comes from publication only.
        """
        self.log = log
        self.promise(log.last[0])

    def check(self, sender: int, version: int, term: int) -> Code:
        """Return whether a message of an owner is accepted."""
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
        """Follow a checked sender. Return whether it is a new leader or term."""
        self.promised = max(self.promised, term)
        if self.leader == sender and self.leader_term == term:
            return False
        self.leader, self.leader_term = sender, term
        return True

    def place(self, prev: OpId, terms: Sequence[int]) -> Place:
        """Return where operations with these terms, which follow `prev` in the owner's log, belong in this
        log.

        Raises Corrupt when they contradict applied operations, which is impossible in a legal history.
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
        """Place operations that begin before the applied end, where they must be equal as they are
        committed."""
        if known > len(terms):
            return Place(Code.OK, len(terms))
        if terms[known - 1] != self.log.applied[0]:
            raise Corrupt(
                f"partition {self.partition}: the owner has term {terms[known - 1]} at {self.log.applied}, "
                "which is applied here"
            )
        return self._from(prev[1], terms, known)

    def _from(self, before: int, terms: Sequence[int], skip: int) -> Place:
        """Skip operations that are in the log; cut at the first difference."""
        last = self.log.last[1]
        while skip < len(terms) and before + skip < last:
            if self.log.term_at(before + skip + 1) != terms[skip]:
                return Place(Code.OK, skip, before + skip)
            skip += 1
        return Place(Code.OK, skip)
