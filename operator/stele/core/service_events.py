"""What services on a member are told of migrations, and when one that was begun is over.

A migration that feeds a member which is new to the row is begun when it starts, at the owner and at the
destination. Every other change of a member's own replica index (replaced, shifted, cleared, promoted) is told
when the row says so: begun and committed at once. Either way one commit or rollback follows each begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stele.core.placement.migration import NO_INDEX, Type
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.table import Partition, Replicas


class Endpoint(Enum):
    """Which side of a migration this member is. The owner that feeds a destination is its source."""

    SOURCE = "SOURCE"
    DESTINATION = "DESTINATION"


@dataclass(frozen=True, slots=True)
class PartitionMigrationEvent:
    """One migration as one member sees it. Replica indexes are this member's own; -1: it has none.

    `id` is the same at before, commit and rollback, and, of a migration that feeds a destination, at both
    members.
    """

    endpoint: Endpoint
    partition: PartitionId
    current_replica_index: int
    new_replica_index: int
    type: Type
    id: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A migration that services were told of and that is not over. `base`: the row's version before it."""

    event: PartitionMigrationEvent
    base: Version
    destination: MemberIndex

    def outcome(self, row: Partition) -> bool | None:
        """Whether it was committed, when the row tells: the destination was new to the row, and is in it."""
        return None if row.version <= self.base else self.destination in row.replicas

    def index_after(self, committed: bool) -> int:
        return self.event.new_replica_index if committed else self.event.current_replica_index


def index_of(row: Sequence[MemberIndex | None], member: MemberIndex) -> int:
    """The replica index of a member, -1 when it has none."""
    return row.index(member) if member in row else NO_INDEX


def begun(
    id: str,
    type: Type,
    partition: PartitionId,
    *,
    row: Partition,
    result: Replicas,
    destination: MemberIndex,
    me: MemberIndex,
) -> Begun:
    """A migration from `row` to `result` that starts now, at its destination or at the owner."""
    endpoint = Endpoint.DESTINATION if me == destination else Endpoint.SOURCE
    indexes = (index_of(row.replicas, me), index_of(result, me))
    return Begun(PartitionMigrationEvent(endpoint, partition, *indexes, type, id), row.version, destination)


def event_of_row(
    partition: PartitionId, before: Partition, row: Partition, me: MemberIndex, known: int
) -> PartitionMigrationEvent | None:
    """The change of this member's index from `known` that a newer row tells; None when there is none.

    The first row of a partition moves nothing: what it names is made empty.
    """
    now = index_of(row.replicas, me)
    if now == known or not before.version:
        return None
    endpoint, type = _kind(before.replicas, row.replicas, known, now)
    return PartitionMigrationEvent(endpoint, partition, known, now, type, f"row-{row.version}")


def _kind(before: Replicas, row: Replicas, known: int, now: int) -> tuple[Endpoint, Type]:
    if now == NO_INDEX:
        taker = row[known] if known < len(row) else None
        if taker is None:
            return Endpoint.SOURCE, Type.CLEAR
        return Endpoint.SOURCE, Type.SHIFT_UP if taker in before else Type.MOVE
    if known == NO_INDEX:
        replaced = now < len(before) and before[now] is not None
        return Endpoint.DESTINATION, Type.MOVE if replaced else Type.COPY
    if now < known:
        return Endpoint.DESTINATION, Type.SHIFT_UP
    return Endpoint.SOURCE, Type.SHIFT_DOWN
