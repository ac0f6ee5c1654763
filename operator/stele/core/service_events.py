"""Events that a member's services receive about migrations of its partitions.

A migration to a member that is new to the row starts with a `before` event at the owner and at the
destination, a SWAP with one at the owner. Every other change of a member's own replica index (replaced,
shifted, cleared, promoted) is reported when the row changes, as before and commit at once. Each `before` is
followed by exactly one commit or rollback, as in Hazelcast's Avoid Data Loss on Migration,
`PartitionMigrationEvent`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stele.core.placement.migration import NO_INDEX, Type
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.table import Partition, Replicas


class Endpoint(Enum):
    """Side of a migration that this member is on. The owner that feeds a destination is its source."""

    SOURCE = "SOURCE"
    DESTINATION = "DESTINATION"


@dataclass(frozen=True, slots=True)
class PartitionMigrationEvent:
    """One migration as one member sees it. Replica indexes are this member's own; -1 means none.

    `id` is the same for before, commit and rollback, and at both members when the migration feeds a
    destination.
    """

    endpoint: Endpoint
    partition: PartitionId
    current_replica_index: int
    new_replica_index: int
    type: Type
    id: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A migration that was announced to services and has not ended. `base` is the row's version before it."""

    event: PartitionMigrationEvent
    base: Version
    destination: MemberIndex

    def outcome(self, row: Partition) -> bool | None:
        """Return whether it was committed: the row names the destination, a SWAP's as the owner.

        None while the row is unchanged.
        """
        if row.version <= self.base:
            return None
        named = row.replicas[:1] if self.event.type is Type.SWAP else row.replicas
        return self.destination in named

    def index_after(self, committed: bool) -> int:
        return self.event.new_replica_index if committed else self.event.current_replica_index


def index_of(row: Sequence[MemberIndex | None], member: MemberIndex) -> int:
    """Return the replica index of a member, -1 when it has none."""
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
    """Describe a migration from `row` to `result` that starts now, as its destination or as the owner."""
    endpoint = Endpoint.DESTINATION if me == destination else Endpoint.SOURCE
    indexes = (index_of(row.replicas, me), index_of(result, me))
    return Begun(PartitionMigrationEvent(endpoint, partition, *indexes, type, id), row.version, destination)


def event_of_row(
    partition: PartitionId, before: Partition, row: Partition, me: MemberIndex, known: int
) -> PartitionMigrationEvent | None:
    """Return the change of this member's index from `known` to that in a newer row; None when it is the same.

    A partition's first row moves no data, since its tablets are created empty: it yields no event.
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
    endpoint = Endpoint.DESTINATION if now < known else Endpoint.SOURCE
    if before[now : now + 1] == row[known : known + 1]:
        return endpoint, Type.SWAP
    return endpoint, Type.SHIFT_UP if now < known else Type.SHIFT_DOWN
