"""A plan: the ordered migrations of one rebalance, with their cost and everything that was refused.

`plan` combines assignment (targets), cycle elimination, ordering within each partition, and priorities across
partitions. It keeps no state: after a join, a leave, a failed migration or a changed spec, plan again from
the current table.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stele.core.placement.assignment import Change, assign_parts, grouped_by_row
from stele.core.placement.members import DataMember
from stele.core.placement.migration import Migration, Type, replay, step
from stele.core.placement.migration import move as move_at
from stele.core.placement.ordering import order_acyclic, without_cycles
from stele.core.placement.requested_moves import Move, MoveFault
from stele.core.table.groups import Part
from stele.core.table.ids import MAX_REPLICAS, VERSION_MAX, VERSIONS_RESERVED, MemberIndex, PartitionId
from stele.core.table.table import PartitionTable, Replicas

__all__ = [
    "Code", "DataMember", "Migration", "Move", "Plan", "Refusal", "Type", "plan", "replay", "step",
]  # fmt: skip

WHOLE_CLUSTER = -1

Priority = tuple[int, int, int]
"""Urgency, replicas of the row, replica index; lowest first."""

_NO_REPLICA = "no live member holds a replica to copy from"
_UNASSIGNED = "it was never assigned, so there is nothing to copy"
_NO_PARTITION = MoveFault("no such partition, or it has no live replica or no versions left")
_VERSION_LIMIT = (
    f"fewer than {VERSIONS_RESERVED} of {VERSION_MAX} versions are left; copy the data to a new cluster"
)
_ZONE_FULL = "two replicas share a zone, and no exchange of replicas separates them"


class Code(StrEnum):
    """Why a plan omits something; stable, for programs and the status of a TabletRebalance."""

    TOO_FEW_MEMBERS = "TOO_FEW_MEMBERS"
    """Fewer members can take data than replicas are configured."""
    ZONE_FULL = "ZONE_FULL"
    """Two replicas share a zone, and no exchange of replicas that separates them was found."""
    CYCLE = "CYCLE"
    """A permutation within a row, other than a SWAP, cannot run without dropping a replica: it stays."""
    NO_BACKUP = "NO_BACKUP"
    """No backup of the row can become the owner in place of a member that is to own nothing."""
    NO_REPLICA = "NO_REPLICA"
    """No live member is in the row, so there is nothing to copy from."""
    UNASSIGNED = "UNASSIGNED"
    """The partition was never assigned; it needs no migration."""
    NOT_ALLOWED = "NOT_ALLOWED"
    """A user's move breaks a rule."""
    MEMBER_LITE = "MEMBER_LITE"
    """A user's move to a lite member, which holds no data."""
    UNKNOWN_MEMBER = "UNKNOWN_MEMBER"
    """A user's move names a member that does not exist."""
    NOT_A_HOLDER = "NOT_A_HOLDER"
    """A user's move from a member that holds no replica of the partition."""
    HOLDS_IT = "HOLDS_IT"
    """A user's move to a member that already holds a replica of the partition."""
    REPLICA_COUNT = "REPLICA_COUNT"
    """A user's move would leave more or fewer replicas than configured."""
    VERSION_LIMIT = "VERSION_LIMIT"
    """The partition's last versions are reserved for failover."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A desired change that is not in the plan; `partition` is -1 for the whole cluster.

    `reason` is a Code, or the error code for which a running migration was rolled back.
    """

    partition: PartitionId
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan as values. Migrations of one partition run in order, those of different partitions in parallel.

    `copies` counts the replicas that need data, `lower_bound` the fewest that any table with the same shares
    needs; `copies` may be lower while rows wait for members that are away. `targets` are the rows after all
    migrations.
    """

    migrations: tuple[Migration, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    copies: int = 0
    lower_bound: int = 0
    targets: tuple[Replicas, ...] = ()

    def by_partition(self) -> dict[PartitionId, list[Migration]]:
        """Return the migrations of each partition in order; partitions are in the order of their first
        one."""
        migrations: dict[PartitionId, list[Migration]] = {}
        for migration in self.migrations:
            migrations.setdefault(migration.partition, []).append(migration)
        return migrations


def plan(
    table: PartitionTable,
    members: Sequence[DataMember],
    replicas: int,
    moves: Sequence[Move] = (),
    *,
    first: bool = False,
    most: int = MAX_REPLICAS,
) -> Plan:
    """Return the migrations that balance the table over `members`. Raises BadInput for invalid arguments.

    Repair the table first: members that rows name but `members` lacks count as gone, and their indexes as
    empty. Rows without any live replica get no migrations, and neither do rows that were never assigned,
    unless `first` asks for their initial assignment: then each replica is a COPY without a source. Rows that
    name an away member do not change until it is back. `replicas` is for the partitions outside of groups;
    each group has its own number. No row gets more than `most`.
    """
    away = frozenset(member.index for member in members if member.away)
    rows, by_row = grouped_by_row([partition.replicas for partition in table.partitions], members)
    empty, exhausted = by_row.pop((), []), _version_exhausted(table)
    for number in exhausted.difference(empty):
        by_row[rows[number]].remove(number)
    fresh = [number for number in empty if first and not table.partitions[number].version]
    if fresh:
        by_row[()] = fresh
    unplanned = exhausted.union(empty).difference(fresh)
    accepted: list[Move] = []
    refused: list[tuple[Move, MoveFault]] = []
    for move in moves:
        if not away.isdisjoint((move.source, move.destination)):
            continue
        if 0 <= move.partition < len(rows) and move.partition not in unplanned:
            accepted.append(move)
        else:
            refused.append((move, _NO_PARTITION))
    parts = [
        each._replace(replicas=min(each.replicas, most)) for each in table.groups.parts(len(rows), replicas)
    ]
    outcome = assign_parts(by_row, members, parts, accepted)
    names = {index: member.name for index, member in table.members.items()}
    migrations, cycles = _order(rows, outcome.changes, names, away)
    crowded = [Refusal(number, Code.ZONE_FULL, _ZONE_FULL) for number in outcome.crowded]
    row_refusals = _row_refusals(
        table, [number for number in empty if not rows[number]], exhausted, [*refused, *outcome.refused]
    )
    return Plan(
        tuple(migrations),
        (*_cluster_refusals(members, parts), *row_refusals, *crowded, *cycles),
        sum(migration.copies for migration in migrations),
        outcome.lower_bound,
        tuple(rows),
    )


def _version_exhausted(table: PartitionTable) -> frozenset[PartitionId]:
    """Return the partitions whose remaining versions are reserved for failover."""
    last = VERSION_MAX - VERSIONS_RESERVED
    return frozenset(number for number, row in enumerate(table.partitions) if row.version > last)


def _order(
    rows: list[Replicas],
    changes: Sequence[Change],
    names: Mapping[MemberIndex, str],
    away: frozenset[MemberIndex],
) -> tuple[list[Migration], list[Refusal]]:
    """Return the migrations, most urgent first, and the refusals; sets `rows` to the rows after them.

    Rows that name an away member stay as they are. Partitions with the same change have the same steps, which
    are computed once.
    """
    ranked: dict[Priority, list[tuple[PartitionId, int, Migration]]] = defaultdict(list)
    refusals: list[Refusal] = []
    for row, target, partitions in changes:
        only = _only_move(row, target)
        runnable = target if only else without_cycles(row, target)
        if runnable != target:
            shown = ", ".join("-" if m is None else names.get(m, f"member {m}") for m in row)
            text = f"members of the row ({shown}) cannot exchange indexes without temporarily dropping a copy"
            refusals += [Refusal(number, Code.CYCLE, text) for number in partitions]
        if not away.isdisjoint(row):
            continue
        for number in partitions:
            rows[number] = runnable
        steps = _ranked(row, only or order_acyclic(0, row, runnable))
        for at, (priority, migration) in enumerate(steps):
            ranked[priority] += [(number, at, migration) for number in partitions]
    # No two entries have the same partition and step, so migrations are never compared.
    ordered = [entry for priority in sorted(ranked) for entry in sorted(ranked[priority])]
    return [migration.of(number) for number, _, migration in ordered], refusals


def _only_move(row: Replicas, target: Replicas) -> tuple[Migration, ...]:
    """Return the single MOVE to a new member that suffices in most cases, or an empty tuple."""
    changed = [index for index, pair in enumerate(zip(row, target, strict=False)) if pair[0] != pair[1]]
    if len(row) != len(target) or len(changed) != 1:
        return ()
    source, destination = row[changed[0]], target[changed[0]]
    if source is None or destination is None or destination in row:
        return ()
    return (move_at(0, changed[0], source, destination),)


def _ranked(row: Replicas, migrations: Sequence[Migration]) -> list[tuple[Priority, Migration]]:
    """Return each migration with its priority, lowest first.

    First come additions of a replica to the row with the fewest, at the hottest index. A migration never
    ranks before an earlier one of its partition.
    """
    ranked: list[tuple[Priority, Migration]] = []
    replicas = len(row) - row.count(None)
    priority = (0, 0, 0)
    for migration in migrations:
        priority = max(priority, (_urgency(migration), replicas, migration.index))
        ranked.append((priority, migration))
        replicas += migration.adds - migration.removes
    return ranked


def _urgency(migration: Migration) -> int:
    if migration.removes:
        return 2
    return 1 if migration.type in (Type.MOVE, Type.SWAP) else 0


def _cluster_refusals(members: Sequence[DataMember], parts: Iterable[Part]) -> list[Refusal]:
    able = sum(not member.leaving for member in members)
    return [
        Refusal(WHOLE_CLUSTER, Code.TOO_FEW_MEMBERS, _too_few(part, able))
        for part in parts
        if able < part.replicas
    ]


def _too_few(part: Part, able: int) -> str:
    where = f"keyspace {part.keyspace}: " if part.keyspace else ""
    text = f"{part.replicas} replicas are configured but {able} members can take data"
    return f"{where}{text}; add members or lower replicas"


def _row_refusals(
    table: PartitionTable,
    empty: Iterable[PartitionId],
    exhausted: Iterable[PartitionId],
    refused: Iterable[tuple[Move, MoveFault]],
) -> list[Refusal]:
    refusals = [_refused_move(table, move, fault) for move, fault in refused]
    refusals += [Refusal(number, Code.VERSION_LIMIT, _VERSION_LIMIT) for number in sorted(exhausted)]
    for number in empty:
        if table.partitions[number].version > 0:
            refusals.append(Refusal(number, Code.NO_REPLICA, _NO_REPLICA))
        else:
            refusals.append(Refusal(number, Code.UNASSIGNED, _UNASSIGNED))
    return refusals


def _refused_move(table: PartitionTable, move: Move, fault: MoveFault) -> Refusal:
    member = None if move.destination is None else table.members.get(move.destination)
    if member is not None and member.lite:
        return Refusal(move.partition, Code.MEMBER_LITE, f"{member.name} is a lite member and holds no data")
    names = {index: member.name for index, member in table.members.items()}
    return Refusal(move.partition, Code.NOT_ALLOWED, fault.message(names))
