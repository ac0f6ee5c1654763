"""The partition table as known to one leadership: what is stored, staged and claimed."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from stele.core.control.commands import MemberInfo, Row
from stele.core.control.invariants import hold
from stele.core.control.operations.registry import Operations
from stele.core.delta import DeltaLog
from stele.core.table.digests import partitions_in, row_digests
from stele.core.table.groups import PartitionGroups
from stele.core.table.ids import MAX_REPLICAS, MemberIndex, PartitionId, Version
from stele.core.table.replica_index import ReplicaIndex
from stele.core.table.table import (
    Member,
    Partition,
    PartitionTable,
    Stamp,
    checked_version,
    version_for_epoch,
    version_sum,
)

SHARED_READS_MAX = 64
"""Answers of `rows_since` that are kept for others who ask the same, until rows change."""


def row_of(number: PartitionId, partition: Partition) -> Row:
    """Return a row as messages have it."""
    return Row(number, partition.version, partition.replicas)


def _member_list(members: Mapping[MemberIndex, Member]) -> tuple[MemberInfo, ...]:
    return tuple(
        MemberInfo(each.index, each.name, each.uuid, each.address, each.lite) for each in members.values()
    )


class TableView:
    """Written by its own methods only.

    Invariants: `claimed[p]` is the highest version that a member was asked to accept for p and that is not
    stored, so the next stored version is above it; `staged` are the rows that this decision wants stored,
    `staged_groups` the groups, None: unchanged; `stored` is the table as it is stored, `partitions`,
    `members` and `groups` are its parts; `stamp`, `version_sum`, `replica_index` and `changes` include every
    stored row, `unassigned` has the partitions of groups that never had one, `blank` counts those outside of
    groups; `member_list` are `members` as messages have them.
    """

    def __init__(self, epoch: int, table: PartitionTable) -> None:
        self._epoch = epoch
        self._set_stored(table)
        self.member_list = _member_list(table.members)
        self.staged: dict[PartitionId, Partition] = {}
        self.staged_groups: PartitionGroups | None = None
        self.claimed: dict[PartitionId, Version] = {}
        self._changes = DeltaLog[PartitionId, Row]()
        self._read: dict[int, tuple[int, tuple[Row, ...]]] = {}
        self._digests = 0, b""
        self._index(0)

    def _set_stored(self, table: PartitionTable) -> None:
        self.stored, self.partitions, self.members = table, table.partitions, table.members
        self.groups = table.groups

    def _index(self, first: PartitionId) -> None:
        """Build what is derived from the rows; those from `first` on are new."""
        rows, main = self.partitions, len(self.stored.main)
        self.stamp = Stamp(row.version for row in rows)
        self.version_sum = version_sum(self.stored)
        self.replica_index = ReplicaIndex(rows, self.groups)
        self.blank = sum(not rows[number].version for number in range(main))
        self.unassigned = {number for number in range(main, len(rows)) if not rows[number].version}
        self._note({number: rows[number] for number in range(first, len(rows))})

    def _note(self, rows: Mapping[PartitionId, Partition]) -> None:
        self._changes.update({number: row_of(number, row) for number, row in rows.items()})
        self._read.clear()

    @property
    def formed(self) -> bool:
        """Return whether any partition was ever assigned."""
        return self.version_sum > 0

    @property
    def changes(self) -> int:
        """Return the number of the last change of rows, for `rows_since`."""
        return self._changes.number

    def rows_since(self, number: int) -> tuple[int, tuple[Row, ...]]:
        """Return the rows that changed after `number`, and the number that they build on: 0 when these are
        all. Members that know the same share them."""
        found = self._read.get(number)
        if found is None:
            if len(self._read) >= SHARED_READS_MAX:
                self._read.clear()
            base, rows, _ = self._changes.since(number)
            found = self._read[number] = base, tuple(rows)
        return found

    @property
    def digests(self) -> bytes:
        """Return the digests of the stored rows, made once for each change of them."""
        if self._digests[0] != self.changes:
            self._digests = self.changes, row_digests(self.partitions)
        return self._digests[1]

    def rows_in(self, ranges: Iterable[int]) -> list[Row]:
        """Return all rows of these ranges, as far as the table has them."""
        rows = self.partitions
        return [row_of(number, rows[number]) for number in partitions_in(sorted(ranges), len(rows))]

    def stage_groups(self, groups: PartitionGroups) -> None:
        """Have this decision store the groups; their rows are staged by a later one."""
        self.staged_groups = groups

    def drop_staged_groups(self) -> None:
        """Forget the groups that could not be stored."""
        self.staged_groups = None

    def store_groups(self) -> None:
        """Apply the groups that this decision has stored."""
        if self.staged_groups is not None:
            first = len(self.partitions)
            self._set_stored(self.stored.extended(self.staged_groups))
            self.staged_groups = None
            self._index(first)

    def most_replicas(self, replicas: int) -> int:
        """Return the greatest number of copies that a partition should have; see `full`."""
        return max(part.replicas for part in self.groups.parts(len(self.partitions), replicas))

    def full(self, number: PartitionId, replicas: int, most: int) -> int:
        """Return how many copies a partition should have when `most` members can hold one; `replicas` is
        for those outside of groups."""
        return max(1, min(self.stored.replicas_of(number, replicas), most))

    def lacking(self, replicas: int, most: int = MAX_REPLICAS, less: int = 0) -> int:
        """Count the partitions that have fewer copies than they should, by more than `less`; see `full`."""
        parts = self.groups.parts(len(self.partitions), replicas)
        return sum(
            rows
            for part, copies in zip(parts, self.replica_index.copies, strict=True)
            for number, rows in copies.items()
            if number < max(1, min(part.replicas, most)) - less
        )

    def stage(self, number: PartitionId, row: Partition) -> None:
        """Have this decision store the row."""
        self.staged[number] = row

    def clear_staged(self) -> None:
        self.staged = {}

    def claim(self, number: PartitionId, version: Version) -> None:
        """Note that a member was, or may have been, asked to accept this version."""
        self.claimed[number] = max(self.claimed.get(number, 0), version)

    def next_version(self, number: PartitionId, least: Version = 0) -> Version:
        """Return the version for a change while an unreachable member may have accepted another; at least
        `least`."""
        free = max(self.partitions[number].version + 2, self.claimed.get(number, 0) + 1, least)
        return checked_version(number, version_for_epoch(self._epoch, free))

    def store(self, rows: Mapping[PartitionId, Partition]) -> None:
        """Apply rows that were stored."""
        if not rows:
            # An equal table stays the same object: plans compare it by identity.
            return
        partitions = list(self.partitions)
        for number, row in rows.items():
            self.replica_index.set(number, partitions[number], row)
            self.version_sum += row.version - partitions[number].version
            self.blank -= not partitions[number].version and number in self.stored.main
            partitions[number] = row
            self.stamp.set(number, row.version)
            if self.claimed.get(number, 0) <= row.version:
                self.claimed.pop(number, None)
        self.unassigned.difference_update(rows)
        self._set_stored(replace(self.stored, partitions=tuple(partitions)))
        self._note(rows)

    def set_members(self, members: Mapping[MemberIndex, Member]) -> None:
        """Apply a stored member list."""
        self._set_stored(replace(self.stored, members=MappingProxyType(dict(members))))
        self.member_list = _member_list(members)

    def check(self, operations: Operations) -> None:
        """Raise BrokenInvariant for contradictions, also with the running operations."""
        rows = self.partitions
        for number, version in self.claimed.items():
            known = rows[number].version
            hold(version > known, "partition {}: {} is claimed, {} is stored", number, version, known)
        for number, row in self.staged.items():
            operation = operations.by_row.get(number)
            agreed = operation is None or operation.makes(row)
            hold(agreed, "partition {}: {} is staged, not by {}", number, row, operation and operation.id)
