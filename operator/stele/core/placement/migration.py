"""One migration of one partition as a value, and its effect on a row.

| type       | effect on the row                                                            | copies |
|------------|------------------------------------------------------------------------------|--------|
| MOVE       | a new member takes the index of the source, which leaves the row             | yes    |
| COPY       | a new member takes an empty index                                            | yes    |
| SHIFT_UP   | a member takes a hotter index that is empty, or whose member leaves          | no     |
| SHIFT_DOWN | a new member takes the source's index, the source takes a colder empty one   | yes    |
| CLEAR      | the source leaves and its index becomes empty: the row shrinks               | no     |
| SWAP       | the owner and a backup exchange their indexes                                | no     |

Source: Hazelcast, Avoid Data Loss on Migration, 3.1, but for SWAP.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Replicas, trimmed
from stele.errors import Conflict

NO_INDEX = -1


class Type(StrEnum):
    """Kind of a migration. Users, metrics and stored migrations see the values."""

    MOVE = "MOVE"
    COPY = "COPY"
    SHIFT_UP = "SHIFT_UP"
    SHIFT_DOWN = "SHIFT_DOWN"
    CLEAR = "CLEAR"
    SWAP = "SWAP"


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration. Members are member indexes, the other numbers replica indexes (-1: none).

    `source` is the member whose index the destination takes: None for COPY, and for SHIFT_UP to an empty
    index. `destination` is None for CLEAR alone. Data is always copied from a replica in the row; which one
    is up to the master and not part of the plan.
    """

    partition: PartitionId
    type: Type
    source: MemberIndex | None
    source_current_index: int
    source_new_index: int
    destination: MemberIndex | None
    destination_current_index: int
    destination_new_index: int

    def of(self, partition: PartitionId) -> "Migration":
        """Return the same migration for another partition."""
        return Migration(
            partition,
            self.type,
            self.source,
            self.source_current_index,
            self.source_new_index,
            self.destination,
            self.destination_current_index,
            self.destination_new_index,
        )

    @property
    def copies(self) -> bool:
        """Whether data is copied to a member that has none of this partition."""
        return self.destination is not None and self.destination_current_index == NO_INDEX

    @property
    def adds(self) -> bool:
        """Whether the row gains a replica."""
        return self.type in (Type.COPY, Type.SHIFT_DOWN)

    @property
    def removes(self) -> bool:
        """Whether the row loses a replica."""
        return self.type is Type.CLEAR or (self.type is Type.SHIFT_UP and self.source is not None)

    @property
    def index(self) -> int:
        """Hottest replica index that changes."""
        return self.source_current_index if self.destination is None else self.destination_new_index

    @property
    def participants(self) -> frozenset[MemberIndex]:
        return frozenset(member for member in (self.source, self.destination) if member is not None)

    def __str__(self) -> str:
        return _TEXTS[self.type].format(m=self) + self._replaced()

    def _replaced(self) -> str:
        return f" in place of {self.source}" if self.type is Type.SHIFT_UP and self.source is not None else ""


_TEXTS = {
    Type.MOVE: "MOVE index {m.destination_new_index} from {m.source} to {m.destination}",
    Type.COPY: "COPY to {m.destination} at index {m.destination_new_index}",
    Type.SHIFT_UP: (
        "SHIFT_UP {m.destination} from index {m.destination_current_index} to {m.destination_new_index}"
    ),
    Type.SHIFT_DOWN: (
        "SHIFT_DOWN {m.source} from index {m.source_current_index} to {m.source_new_index}, "
        "index {m.destination_new_index} to {m.destination}"
    ),
    Type.CLEAR: "CLEAR index {m.source_current_index} of {m.source}",
    Type.SWAP: "SWAP owner {m.source} with {m.destination} at index {m.source_new_index}",
}


def move(partition: PartitionId, index: int, source: MemberIndex, destination: MemberIndex) -> Migration:
    return Migration(partition, Type.MOVE, source, index, NO_INDEX, destination, NO_INDEX, index)


def copy(partition: PartitionId, index: int, destination: MemberIndex) -> Migration:
    return Migration(partition, Type.COPY, None, NO_INDEX, NO_INDEX, destination, NO_INDEX, index)


def shift_up(
    partition: PartitionId,
    destination: MemberIndex,
    current: int,
    new: int,
    replaced: MemberIndex | None = None,
) -> Migration:
    source_index = NO_INDEX if replaced is None else new
    return Migration(partition, Type.SHIFT_UP, replaced, source_index, NO_INDEX, destination, current, new)


def shift_down(
    partition: PartitionId, source: MemberIndex, current: int, new: int, destination: MemberIndex
) -> Migration:
    return Migration(partition, Type.SHIFT_DOWN, source, current, new, destination, NO_INDEX, current)


def clear(partition: PartitionId, index: int, source: MemberIndex) -> Migration:
    return Migration(partition, Type.CLEAR, source, index, NO_INDEX, None, NO_INDEX, NO_INDEX)


def swap(partition: PartitionId, owner: MemberIndex, backup: MemberIndex, index: int) -> Migration:
    """Return the exchange of the owner with the backup at this index."""
    return Migration(partition, Type.SWAP, owner, 0, index, backup, index, 0)


def copying(
    partition: PartitionId, before: Replicas, after: Replicas, destination: MemberIndex
) -> Migration | None:
    """Return the migration that copies to `destination` and makes this row of that; None when there is none.

    The rows determine it: the destination's index was empty (COPY), or its member left (MOVE) or has another
    index now (SHIFT_DOWN).
    """
    if destination in before or destination not in after:
        return None
    index = after.index(destination)
    source = before[index] if index < len(before) else None
    if source is None:
        migration = copy(partition, index, destination)
    elif source in after:
        migration = shift_down(partition, source, index, after.index(source), destination)
    else:
        migration = move(partition, index, source, destination)
    try:
        return migration if step(before, migration) == after else None
    except Conflict:
        return None


def swapped(row: Replicas, backup: MemberIndex) -> Replicas:
    """Return the row in which the owner and this backup have changed places."""
    owner = row[0]
    assert owner is not None, "a row without an owner has nothing to exchange"
    return step(row, swap(PartitionId(0), owner, backup, row.index(backup)))


def step(row: Replicas, migration: Migration) -> Replicas:
    """Return the row after one migration. Raises Conflict when the migration was planned for another row."""
    slots: list[MemberIndex | None] = [*row, *[None] * (1 + _last_index(migration) - len(row))]
    fault = _fault(slots, migration)
    if fault is not None:
        raise Conflict(
            f"partition {migration.partition}: {migration} does not apply to the row {row}: {fault}"
        )
    if migration.source is not None:
        slots[migration.source_current_index] = None
    if migration.destination is not None:
        if migration.destination_current_index != NO_INDEX:
            slots[migration.destination_current_index] = None
        slots[migration.destination_new_index] = migration.destination
    if migration.source_new_index != NO_INDEX:
        slots[migration.source_new_index] = migration.source
    return trimmed(slots)


def replay(row: Replicas, migrations: Iterable[Migration]) -> Replicas:
    """Return the row after all migrations, which must be of one partition, in order."""
    for migration in migrations:
        row = step(row, migration)
    return row


def _last_index(migration: Migration) -> int:
    return max(
        migration.source_current_index,
        migration.source_new_index,
        migration.destination_current_index,
        migration.destination_new_index,
    )


def _fault(slots: list[MemberIndex | None], m: Migration) -> str | None:
    if m.source is not None and slots[m.source_current_index] != m.source:
        return f"index {m.source_current_index} is not held by {m.source}"
    if m.source_new_index not in (NO_INDEX, m.destination_current_index) and (
        slots[m.source_new_index] is not None
    ):
        return f"index {m.source_new_index} is not empty"
    if m.destination is None:
        return None
    if m.destination_current_index == NO_INDEX and m.destination in slots:
        return f"{m.destination} already has a replica"
    if m.destination_current_index != NO_INDEX and slots[m.destination_current_index] != m.destination:
        return f"index {m.destination_current_index} is not held by {m.destination}"
    if m.source is None and slots[m.destination_new_index] is not None:
        return f"index {m.destination_new_index} is not empty"
    return None
