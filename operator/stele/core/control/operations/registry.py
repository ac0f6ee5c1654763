"""All running operations: by id, and by kind and partition."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from stele.core.control.invariants import BrokenInvariant, hold
from stele.core.control.operations.cluster_state import StateChange
from stele.core.control.operations.copy_session import CopySession, Stage
from stele.core.control.operations.move import MigrationOperation, Step
from stele.core.control.operations.operation import Operation
from stele.core.control.operations.partition_reset import PartitionReset
from stele.core.control.operations.promotion import Promotion
from stele.core.table.ids import PartitionId
from stele.core.table.table import Partition

ROLLED_BACK_MAX = 1000
"""Migrations that are known to be rolled back; of older ones members are told when they know the table."""

RowOperation = MigrationOperation | Promotion | PartitionReset
"""An operation that changes the row of one partition."""


class Operations:
    """Invariant: at most one operation changes the row of a partition.

    The views by kind are in the order of the operations' start. The change of the cluster state is always
    present; it is not counted, and found by the ids of its locks.
    """

    def __init__(self, change: StateChange) -> None:
        self.change = change
        self._by_id: dict[str, RowOperation | CopySession] = {}
        self._by_row: dict[PartitionId, RowOperation] = {}
        self._sessions: dict[str, CopySession] = {}
        self._rolled_back: dict[str, None] = {}
        self._kinds: dict[type, dict[PartitionId, Any]] = {
            Promotion: {},
            PartitionReset: {},
            MigrationOperation: {},
        }
        self.by_row: Mapping[PartitionId, RowOperation] = MappingProxyType(self._by_row)
        self.promotions: Mapping[PartitionId, Promotion] = MappingProxyType(self._kinds[Promotion])
        self.resets: Mapping[PartitionId, PartitionReset] = MappingProxyType(self._kinds[PartitionReset])
        self.migrations: Mapping[PartitionId, MigrationOperation] = MappingProxyType(
            self._kinds[MigrationOperation]
        )
        self.sessions: Mapping[str, CopySession] = MappingProxyType(self._sessions)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def __iter__(self) -> Iterator[Operation]:
        """Iterate in the order in which commands are sent: those that clients wait for come first."""
        yield self.change
        for operations in self._kinds.values():
            yield from operations.values()
        yield from self._sessions.values()

    def get(self, id: str) -> Operation | None:
        """Return the operation that sent a command with this id; None when it has ended."""
        return self._by_id.get(id) or (self.change if self.change.has_sent(id) else None)

    def begin(self, operation: RowOperation | CopySession) -> None:
        """Add an operation. Raises BrokenInvariant when another one changes the row."""
        hold(self._by_id.setdefault(operation.id, operation) is operation, "{} is under way", operation.id)
        if isinstance(operation, CopySession):
            self._sessions[operation.id] = operation
            return
        other = self._by_row.setdefault(operation.partition, operation)
        hold(other is operation, "partition {}: {} is under way", operation.partition, other.id)
        self._kinds[type(operation)][operation.partition] = operation

    def end(self, operation: RowOperation | CopySession) -> None:
        """Remove an ended operation, whatever its result."""
        del self._by_id[operation.id]
        if isinstance(operation, CopySession):
            del self._sessions[operation.id]
        else:
            del self._by_row[operation.partition], self._kinds[type(operation)][operation.partition]

    def note_rolled_back(self, migration: MigrationOperation) -> None:
        """Remember that no destination was asked to accept it, nor will be."""
        self._rolled_back[migration.id] = None
        if len(self._rolled_back) > ROLLED_BACK_MAX:
            del self._rolled_back[next(iter(self._rolled_back))]

    def is_rolled_back(self, id: str) -> bool:
        return id in self._rolled_back

    def check(self, rows: Sequence[Partition]) -> None:
        """Raise BrokenInvariant for contradictions, also with the table; costs a step per operation."""
        counted = sum(len(operations) for operations in self._kinds.values())
        views = counted == len(self._by_row) and counted + len(self._sessions) == len(self._by_id)
        hold(views, "the views of {} operations differ", len(self._by_id))
        for number, operation in self._by_row.items():
            row, known = rows[number] if number < len(rows) else None, self._by_id.get(operation.id)
            if known is not operation or (operation.base is not row and operation.base != row):
                text = f"{operation.id} of partition {number} began on {operation.base}, not on {row}"
                raise BrokenInvariant(f"{text}; its id finds {known and known.id}")
        for migration in self.migrations.values():
            if migration.step is Step.COPY:
                session = self._sessions.get(migration.session)
                copied = session is not None and session.partitions.get(migration.partition) == migration.id
                hold(copied, "{} waits for a copy that {!r} does not make", migration.id, migration.session)
        for session in self._sessions.values():
            hold(session.stage is not Stage.CLOSE or session.closing, "{} waits for no member", session.id)
        self.change.check()
