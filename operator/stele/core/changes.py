"""A change of one partition as a value: what it requires (a version), what it makes of the row, and why.

Each change adds 1 to the version; a repair or a failed commit adds 2, because a member that cannot be
asked may have accepted the version in between, and must take the master's word when it returns
(30-master.md, "Migration" 5).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stele.core.errors import Conflict, Refused
from stele.core.ids import VERSION_MAX, MemberIndex, PartitionId, Version
from stele.core.plan import Migration, step
from stele.core.table import Partition, PartitionTable, Replicas, row_fault, trimmed

NORMAL_STEP = 1
SKIPPING_STEP = 2


@dataclass(frozen=True, slots=True)
class Change:
    """Holds for the row of `partition` when its version is `base_version`; makes it `replicas` at
    `result_version`.
    """

    partition: PartitionId
    base_version: Version
    result_version: Version
    replicas: Replicas
    reason: str

    @property
    def row(self) -> Partition:
        """The row as it is once the change is applied."""
        return Partition(self.result_version, self.replicas)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a change was not applied; the table is as it was. Codes: STALE_VERSION, UNKNOWN_PARTITION,
    BAD_STEP, BAD_ROW.
    """

    reason: str
    detail: str
    partition: PartitionId


def apply(table: PartitionTable, change: Change) -> PartitionTable | Rejected:
    """The changed table, or why not. The given table is never changed."""
    return apply_all(table, (change,))


def apply_all(table: PartitionTable, changes: Sequence[Change]) -> PartitionTable | Rejected:
    """All changes in order, or none of them: the first that does not hold is the answer."""
    rows = list(table.partitions)
    for change in changes:
        rejected = _rejection(table, rows, change)
        if rejected is not None:
            return rejected
        rows[change.partition] = change.row
    return PartitionTable(tuple(rows), table.members)


def _rejection(table: PartitionTable, rows: list[Partition], change: Change) -> Rejected | None:
    number = change.partition
    if not 0 <= number < len(rows):
        return Rejected("UNKNOWN_PARTITION", f"the table has partitions 0 to {len(rows) - 1}", number)
    present = rows[number]
    if present.version != change.base_version:
        detail = f"the row has version {present.version}, the change was decided on {change.base_version}"
        return Rejected("STALE_VERSION", detail, number)
    added = change.result_version - change.base_version
    if added not in (NORMAL_STEP, SKIPPING_STEP) or change.result_version > VERSION_MAX:
        return Rejected(
            "BAD_STEP", f"version {change.base_version} cannot become {change.result_version}", number
        )
    fault = row_fault(change.replicas, table.members)
    return None if fault is None else Rejected("BAD_ROW", f"the new row {fault}", number)


def commit_of(migration: Migration, partition: Partition) -> Change:
    """The change that a finished migration makes; raises Conflict when the row is not what it was planned
    on.
    """
    return Change(
        migration.partition,
        partition.version,
        partition.version + NORMAL_STEP,
        trimmed(step(partition.replicas, migration)),
        migration.type.value,
    )


def failed_commit(number: PartitionId, partition: Partition, reason: str = "FAILED_COMMIT") -> Change:
    """The same row, two versions on: whatever a destination may have accepted is void."""
    return Change(number, partition.version, partition.version + SKIPPING_STEP, partition.replicas, reason)


def without(
    number: PartitionId,
    partition: Partition,
    gone: Collection[MemberIndex],
    new_owner: MemberIndex | None = None,
    reason: str = "MEMBER_GONE",
) -> Change:
    """Empty the slots of members that are gone; when the owner is among them, `new_owner` moves to index 0.

    The other replicas stay at their indexes (the planner fills the gaps). Raises Refused: OWNER_NEEDED
    when the owner is gone and no successor is given, LAST_REPLICA when nobody would be left (the volumes
    may come back).
    """
    slots = [None if member in gone else member for member in partition.replicas]
    if all(member is None for member in slots):
        raise Refused(f"partition {number}: no replica would be left of {partition.replicas}", "LAST_REPLICA")
    if new_owner is not None:
        _promote(number, slots, new_owner)
    if slots[0] is None:
        raise Refused(f"partition {number}: its owner is gone, name a new one of {slots[1:]}", "OWNER_NEEDED")
    return Change(number, partition.version, partition.version + SKIPPING_STEP, trimmed(slots), reason)


def _promote(number: PartitionId, slots: list[MemberIndex | None], new_owner: MemberIndex) -> None:
    if new_owner not in slots:
        raise Conflict(f"partition {number}: member {new_owner} holds no replica, it cannot become the owner")
    if slots[0] not in (None, new_owner):
        raise Conflict(f"partition {number}: its owner {slots[0]} is not gone")
    slots[slots.index(new_owner)] = None
    slots[0] = new_owner


def first_assignment(number: PartitionId, partition: Partition, replicas: Replicas) -> Change:
    """Version 0 to 1: nobody has data yet, so no migration is needed. Raises Conflict when it was assigned
    before.
    """
    if partition.version != 0:
        raise Conflict(f"partition {number} was assigned before (version {partition.version})")
    return Change(number, 0, NORMAL_STEP, trimmed(replicas), "FIRST_ASSIGNMENT")


def reassignment(number: PartitionId, partition: Partition, replicas: Replicas) -> Change:
    """After the loss of all replicas, when the user chose to go on with an empty partition (data is given
    up).
    """
    return Change(
        number,
        partition.version,
        partition.version + SKIPPING_STEP,
        trimmed(replicas),
        "REASSIGNED_AFTER_LOSS",
    )
