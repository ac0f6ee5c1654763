"""A plan: the ordered migrations of one rebalance, with what it costs and what it had to refuse.

`plan` = assignment (targets), cycle elimination, ordering inside each partition, priorities across
partitions. It keeps no state: after a join, a leave, a failed migration or a changed wish, plan again on
the table as it is then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stele.core.assignment import Assignment, DataMember, Move, assign_rows
from stele.core.ids import VERSION_MAX, VERSIONS_RESERVED, PartitionId
from stele.core.migration import Migration, Type, replay, step
from stele.core.ordering import order_acyclic, without_cycles
from stele.core.table import PartitionTable, Replicas, trimmed

__all__ = ["Code", "DataMember", "Migration", "Move", "Plan", "Refusal", "Type", "plan", "replay", "step"]

WHOLE_CLUSTER = -1

_NO_REPLICA = "no live member holds it: there is nothing to copy from"
_UNASSIGNED = "it was never assigned: assign it, nothing has to be copied"
_NO_PARTITION = "there is no such partition with a live replica and versions left"
_VERSION_LIMIT = f"less than {VERSIONS_RESERVED} of {VERSION_MAX} versions are left; copy the data elsewhere"
_ZONE_FULL = "two replicas share a zone; the members of the other zones have their share"


class Code(StrEnum):
    """Why a plan leaves something out; stable, for programs and for the status of a TabletRebalance."""

    TOO_FEW_MEMBERS = "TOO_FEW_MEMBERS"
    """Fewer members can take data than there are replicas."""
    ZONE_FULL = "ZONE_FULL"
    """Two replicas share a zone: the members of the others have their share."""
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
    VERSION_LIMIT = "VERSION_LIMIT"
    """The partition was changed so often that its last versions are kept for its rescue."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was wished or aimed at and is not in the plan; `partition` is -1 for the whole cluster.

    `reason` is a Code, or the error code for which a migration under way was rolled back.
    """

    partition: PartitionId
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Values only. Migrations of one partition run in order, those of different partitions in parallel.

    `copies` counts the replicas that get data they do not have, `lower_bound` the fewest that any table
    with the same shares needs. `targets` are the rows after all migrations.
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
    assignment: then each of their replicas is a COPY from nobody.
    """
    live = frozenset(member.index for member in members)
    rows = _live_rows(table, live)
    worn = _worn(table)
    planned = [number for number, row in enumerate(rows) if row and number not in worn]
    if first:
        planned = sorted({*planned, *(p for p, row in enumerate(table.partitions) if not row.version)})
    wished, refused = _on_planned(planned, moves)
    assignment = assign_rows([rows[number] for number in planned], members, replicas, wished)
    migrations, refusals, targets = _order(rows, planned, assignment)
    refused += [(Move(planned[m.partition], m.source, m.destination), text) for m, text in assignment.refused]
    return Plan(
        tuple(migrations),
        (*_cluster_refusals(members, replicas), *_row_refusals(table, targets, refused, worn), *refusals),
        sum(migration.copies for migration in migrations),
        assignment.lower_bound,
        tuple(targets),
    )


def _on_planned(
    planned: Sequence[PartitionId], moves: Sequence[Move]
) -> tuple[list[Move], list[tuple[Move, str]]]:
    """The moves, with the place of their partition among the planned ones, and those that cannot be
    planned.
    """
    place = {number: at for at, number in enumerate(planned)} if moves else {}
    wished = [Move(place[m.partition], m.source, m.destination) for m in moves if m.partition in place]
    return wished, [(move, _NO_PARTITION) for move in moves if move.partition not in place]


def _worn(table: PartitionTable) -> frozenset[PartitionId]:
    """Partitions whose last versions are kept for rescue."""
    last = VERSION_MAX - VERSIONS_RESERVED
    return frozenset([number for number, row in enumerate(table.partitions) if row.version > last])


def _live_rows(table: PartitionTable, live: frozenset[int]) -> list[Replicas]:
    """The rows without members that are gone. Many partitions have the same row: each is looked at once."""
    rows = [partition.replicas for partition in table.partitions]
    shorter = {
        row: trimmed(member if member in live else None for member in row)
        for row in set(rows)
        if not live.issuperset(row)
    }
    return [shorter.get(row, row) for row in rows] if shorter else rows


Priority = tuple[int, int, int]


def _order(
    rows: Sequence[Replicas], planned: Sequence[PartitionId], assignment: Assignment
) -> tuple[list[Migration], list[Refusal], list[Replicas]]:
    """The migrations in the order in which they should start, what was refused, and the rows they make.

    Steps depend on the row and its target alone, which many partitions share: they are ordered once for each
    such pair, and taken over for the others.
    """
    known: dict[tuple[Replicas, Replicas], _Steps] = {}
    groups: dict[Priority, list[Migration]] = {}
    refusals = [Refusal(planned[at], Code.ZONE_FULL, _ZONE_FULL) for at in assignment.crowded]
    targets = list(rows)
    for number, target in zip(planned, assignment.rows, strict=True):
        row = rows[number]
        if row == target:
            continue
        steps = known.get((row, target))
        if steps is None:
            steps = known[row, target] = _steps(row, target)
        targets[number] = steps.runnable
        if steps.runnable != target:
            text = f"{row} cannot become {target}, {steps.runnable} is aimed at"
            refusals.append(Refusal(number, Code.CYCLE, text))
        for priority, migration in steps.ranked:
            groups.setdefault(priority, []).append(migration.of(number))
    return [migration for priority in sorted(groups) for migration in groups[priority]], refusals, targets


@dataclass(frozen=True, slots=True)
class _Steps:
    """What makes `runnable` of a row, in order; the partition of these migrations is not set yet."""

    runnable: Replicas
    ranked: tuple[tuple[Priority, Migration], ...]


def _steps(row: Replicas, target: Replicas) -> _Steps:
    """Each with its priority, lowest first: what adds a replica, to the row that has the fewest, at the
    hottest index.

    A migration is never ranked before an earlier one of its partition; those of one rank keep their order.
    """
    runnable = without_cycles(row, target)
    ranked: list[tuple[Priority, Migration]] = []
    replicas = sum(member is not None for member in row)
    priority = (0, 0, 0)
    for migration in order_acyclic(0, row, runnable):
        priority = max(priority, (_urgency(migration), replicas, migration.index))
        ranked.append((priority, migration))
        replicas += migration.adds - migration.removes
    return _Steps(runnable, tuple(ranked))


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
    rows: Sequence[Replicas],
    refused: Sequence[tuple[Move, str]],
    worn: frozenset[PartitionId],
) -> list[Refusal]:
    found = [_refused_move(table, move, text) for move, text in refused]
    found += [Refusal(number, Code.VERSION_LIMIT, _VERSION_LIMIT) for number in sorted(worn)]
    for number, row in enumerate(rows):
        if row:
            continue
        if table.partitions[number].version > 0:
            found.append(Refusal(number, Code.NO_REPLICA, _NO_REPLICA))
        else:
            found.append(Refusal(number, Code.UNASSIGNED, _UNASSIGNED))
    return found


def _refused_move(table: PartitionTable, move: Move, text: str) -> Refusal:
    member = table.members.get(move.destination)
    if member is not None and member.lite:
        return Refusal(move.partition, Code.MEMBER_LITE, f"{member.name} is a lite member and holds no data")
    return Refusal(move.partition, Code.NOT_ALLOWED, text)
