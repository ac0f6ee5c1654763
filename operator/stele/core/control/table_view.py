"""The partition table as known to one leadership: what is stored, staged and claimed."""

from collections.abc import Mapping
from types import MappingProxyType

from stele.core.control.invariants import hold
from stele.core.control.operations.registry import Operations
from stele.core.delta import DeltaLog
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.replica_index import ReplicaIndex
from stele.core.table.table import (
    Member,
    Partition,
    PartitionTable,
    Stamp,
    checked_version,
    version_for_epoch,
)


class TableView:
    """Written by its own methods only.

    Invariants: `claimed[p]` is the highest version that a member was asked to accept for p and that is not
    stored, so the next stored version is above it; `staged` are the rows that this decision wants stored;
    `stored` is the table as it is stored, `partitions` and `members` are its parts; `stamp`, `replica_index`
    and `stored_rows` include every stored row.
    """

    def __init__(self, epoch: int, table: PartitionTable) -> None:
        self._epoch = epoch
        self._set_stored(table)
        self.staged: dict[PartitionId, Partition] = {}
        self.claimed: dict[PartitionId, Version] = {}
        self.stamp = Stamp(row.version for row in table.partitions)
        self.replica_index = ReplicaIndex(table.partitions)
        self.stored_rows = DeltaLog[PartitionId, tuple[PartitionId, Partition]]()
        self.stored_rows.update({number: (number, row) for number, row in enumerate(table.partitions)})

    def _set_stored(self, table: PartitionTable) -> None:
        self.stored, self.partitions, self.members = table, table.partitions, table.members

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
            partitions[number] = row
            self.stamp.set(number, row.version)
            if self.claimed.get(number, 0) <= row.version:
                self.claimed.pop(number, None)
        self._set_stored(PartitionTable(tuple(partitions), self.members))
        self.stored_rows.update({number: (number, row) for number, row in rows.items()})

    def set_members(self, members: Mapping[MemberIndex, Member]) -> None:
        """Apply a stored member list."""
        self._set_stored(PartitionTable(self.partitions, MappingProxyType(dict(members))))

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
