"""A plan: the ordered migrations of one rebalance, with what it costs and what it had to refuse.

`plan` = assignment (targets), cycle elimination, ordering inside each partition, priorities across
partitions. It keeps no state: after a join, a leave, a failed migration or a changed spec, plan again on
the table as it is then.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stele.core.placement.assignment import Change, DataMember, Move, MoveFault, assign_groups, grouped_by_row
from stele.core.placement.migration import Migration, Type, replay, step
from stele.core.placement.migration import move as move_at
from stele.core.placement.ordering import order_acyclic, without_cycles
from stele.core.table.ids import VERSION_MAX, VERSIONS_RESERVED, MemberIndex, PartitionId
from stele.core.table.table import PartitionTable, Replicas

__all__ = [
    "Code", "DataMember", "Migration", "Move", "Plan", "Refusal", "Type", "plan", "replay", "step",
]  # fmt: skip

WHOLE_CLUSTER = -1

Priority = tuple[int, int, int]
"""Urgency, replicas of the row, replica index: the lowest first."""

_NO_REPLICA = "no live member holds it: there is nothing to copy from"
_UNASSIGNED = "it was never assigned: assign it, nothing has to be copied"
_NO_PARTITION = MoveFault("there is no such partition with a live replica and versions left")
_VERSION_LIMIT = f"less than {VERSIONS_RESERVED} of {VERSION_MAX} versions are left; copy the data elsewhere"
_ZONE_FULL = "two replicas share a zone; no exchange of replicas was found that separates them"


class Code(StrEnum):
    """Why a plan leaves something out; stable, for programs and for the status of a TabletRebalance."""

    TOO_FEW_MEMBERS = "TOO_FEW_MEMBERS"
    """Fewer members can take data than there are replicas."""
    ZONE_FULL = "ZONE_FULL"
    """Two replicas share a zone, and no exchange of replicas was found that separates them."""
    CYCLE = "CYCLE"
    """A permutation inside a row cannot run without dropping a replica, so it stays as it is."""
    NO_REPLICA = "NO_REPLICA"
    """No live member is in the row: there is nothing to copy from."""
    UNASSIGNED = "UNASSIGNED"
    """The partition was never assigned: that needs no migration."""
    NOT_ALLOWED = "NOT_ALLOWED"
    """A user's move that breaks a rule."""
    MEMBER_LITE = "MEMBER_LITE"
    """A user's move to a member that holds no data."""
    UNKNOWN_MEMBER = "UNKNOWN_MEMBER"
    """A user's move names a member that is not there."""
    NOT_A_HOLDER = "NOT_A_HOLDER"
    """A user's move from a member that holds no replica of the partition."""
    HOLDS_IT = "HOLDS_IT"
    """A user's move to a member that holds a replica of the partition already."""
    REPLICA_COUNT = "REPLICA_COUNT"
    """A user's move would leave more or fewer replicas than are desired."""
    VERSION_LIMIT = "VERSION_LIMIT"
    """The partition was changed so often that its last versions are kept for its rescue."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was desired or aimed at and is not in the plan; `partition` is -1 for the whole cluster.

    `reason` is a Code, or the error code for which a migration under way was rolled back.
    """

    partition: PartitionId
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Values only. Migrations of one partition run in order, those of different partitions in parallel.

    `copies` counts the replicas that get data they do not have, `lower_bound` the fewest that any table
    with the same shares needs; `copies` may be less while rows wait for members that are away. `targets` are
    the rows after all migrations.
    """

    migrations: tuple[Migration, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    copies: int = 0
    lower_bound: int = 0
    targets: tuple[Replicas, ...] = ()

    def by_partition(self) -> dict[PartitionId, list[Migration]]:
        """The migrations of each partition in order; partitions in the order of their first one."""
        found: dict[PartitionId, list[Migration]] = {}
        for migration in self.migrations:
            found.setdefault(migration.partition, []).append(migration)
        return found


def plan(
    table: PartitionTable,
    members: Sequence[DataMember],
    replicas: int,
    moves: Sequence[Move] = (),
    *,
    first: bool = False,
) -> Plan:
    """The migrations that balance the table over `members`; raises BadInput for impossible arguments.

    Repair the table first: members in rows that are not in `members` are taken as gone, their indexes as
    empty, and migrations are made for the rows without them. Rows without any live replica get none (there
    is nothing to copy). Neither do rows that were never assigned, unless this plan is to show their `first`
    assignment: then each of their replicas is a COPY from nobody. Nothing is asked of members that are away
    and nothing is done to rows that name one: those wait until it is back.
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
    outcome = assign_groups(by_row, members, replicas, accepted)
    names = {index: member.name for index, member in table.members.items()}
    migrations, cycles = _order(rows, outcome.changes, names, away)
    crowded = [Refusal(number, Code.ZONE_FULL, _ZONE_FULL) for number in outcome.crowded]
    row_refusals = _row_refusals(
        table, [number for number in empty if not rows[number]], exhausted, [*refused, *outcome.refused]
    )
    return Plan(
        tuple(migrations),
        (*_cluster_refusals(members, replicas), *row_refusals, *crowded, *cycles),
        sum(migration.copies for migration in migrations),
        outcome.lower_bound,
        tuple(rows),
    )


def _version_exhausted(table: PartitionTable) -> frozenset[PartitionId]:
    """Partitions whose last versions are kept for rescue."""
    last = VERSION_MAX - VERSIONS_RESERVED
    return frozenset(number for number, row in enumerate(table.partitions) if row.version > last)


def _order(
    rows: list[Replicas],
    changes: Sequence[Change],
    names: Mapping[MemberIndex, str],
    away: frozenset[MemberIndex],
) -> tuple[list[Migration], list[Refusal]]:
    """The migrations, most urgent first, and what is taken back; `rows` become what the migrations make.

    Rows that name a member that is away stay as they are. Partitions with one change have the same steps, so
    these are ordered once.
    """
    ranked: dict[Priority, list[tuple[PartitionId, int, Migration]]] = defaultdict(list)
    refusals: list[Refusal] = []
    for row, target, partitions in changes:
        only = _only_move(row, target)
        runnable = target if only else without_cycles(row, target)
        if runnable != target:
            shown = ", ".join("-" if m is None else names.get(m, f"member {m}") for m in row)
            text = f"members of the row ({shown}) cannot change places without a moment with fewer copies"
            refusals += [Refusal(number, Code.CYCLE, text) for number in partitions]
        if not away.isdisjoint(row):
            continue
        for number in partitions:
            rows[number] = runnable
        steps = _ranked(row, only or order_acyclic(0, row, runnable))
        for at, (priority, migration) in enumerate(steps):
            ranked[priority] += [(number, at, migration) for number in partitions]
    # No two entries have the same partition and place, so migrations are never compared.
    ordered = [entry for priority in sorted(ranked) for entry in sorted(ranked[priority])]
    return [migration.of(number) for number, _, migration in ordered], refusals


def _only_move(row: Replicas, target: Replicas) -> tuple[Migration, ...]:
    """The MOVE that is all there is to do, as mostly: one index goes to a member that is new; or nothing."""
    changed = [index for index, pair in enumerate(zip(row, target, strict=False)) if pair[0] != pair[1]]
    if len(row) != len(target) or len(changed) != 1:
        return ()
    source, destination = row[changed[0]], target[changed[0]]
    if source is None or destination is None or destination in row:
        return ()
    return (move_at(0, changed[0], source, destination),)


def _ranked(row: Replicas, migrations: Sequence[Migration]) -> list[tuple[Priority, Migration]]:
    """Each with its priority, lowest first: what adds a replica, to the row that has the fewest, at the
    hottest index.

    A migration is never ranked before an earlier one of its partition.
    """
    ranked: list[tuple[Priority, Migration]] = []
    replicas = sum(member is not None for member in row)
    priority = (0, 0, 0)
    for migration in migrations:
        priority = max(priority, (_urgency(migration), replicas, migration.index))
        ranked.append((priority, migration))
        replicas += migration.adds - migration.removes
    return ranked


def _urgency(migration: Migration) -> int:
    if migration.removes:
        return 2
    return 1 if migration.type is Type.MOVE else 0


def _cluster_refusals(members: Sequence[DataMember], replicas: int) -> list[Refusal]:
    able = sum(not member.leaving for member in members)
    if able >= replicas:
        return []
    text = (
        f"{replicas} replicas are wanted and {able} members can take data; add members or lower the replicas"
    )
    return [Refusal(WHOLE_CLUSTER, Code.TOO_FEW_MEMBERS, text)]


def _row_refusals(
    table: PartitionTable,
    empty: Iterable[PartitionId],
    exhausted: Iterable[PartitionId],
    refused: Iterable[tuple[Move, MoveFault]],
) -> list[Refusal]:
    found = [_refused_move(table, move, fault) for move, fault in refused]
    found += [Refusal(number, Code.VERSION_LIMIT, _VERSION_LIMIT) for number in sorted(exhausted)]
    for number in empty:
        if table.partitions[number].version > 0:
            found.append(Refusal(number, Code.NO_REPLICA, _NO_REPLICA))
        else:
            found.append(Refusal(number, Code.UNASSIGNED, _UNASSIGNED))
    return found


def _refused_move(table: PartitionTable, move: Move, fault: MoveFault) -> Refusal:
    member = None if move.destination is None else table.members.get(move.destination)
    if member is not None and member.lite:
        return Refusal(move.partition, Code.MEMBER_LITE, f"{member.name} is a lite member and holds no data")
    names = {index: member.name for index, member in table.members.items()}
    return Refusal(move.partition, Code.NOT_ALLOWED, fault.message(names))
