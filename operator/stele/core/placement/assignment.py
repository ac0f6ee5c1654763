"""Assignment: which member should hold which replica, as a target row per partition.

Owners and replicas come within one of each member's fair share whenever rows allow it. A replica that may
stay keeps its index, so that the target costs one copy per new replica. Zones come before balance: members of
a small zone hold more each, rather than two replicas of a partition sharing a zone elsewhere. Nothing here is
random or depends on the order of a set: the same input gives the same rows. Partitions with equal rows are
decided together (see `draft`), so the cost is that of distinct rows and of changes.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from stele.core.placement.draft import DraftAssignment, PartitionsByRow, Row
from stele.core.placement.members import DataMember, Load, MemberSets, check_arguments
from stele.core.placement.quotas import member_quotas
from stele.core.placement.requested_moves import NO_MEMBER, Move, Refused, grant, remove_given_up
from stele.core.placement.retained import arranged, retained_slots, with_owner
from stele.core.placement.shares import balance
from stele.core.placement.topology import Topology
from stele.core.table.groups import Part
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import PartitionTable, Replicas, trimmed


class Change(NamedTuple):
    """Partitions whose row is `today` and should become `target`."""

    today: Replicas
    target: Replicas
    partitions: Sequence[PartitionId]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The changes of an assignment, and what a plan reports about it.

    `lower_bound` is the number of copies that every table with the same shares needs. `crowded` are the
    partitions with two replicas in one zone while another zone is free, `refused` the moves that could not be
    granted.
    """

    changes: tuple[Change, ...] = ()
    lower_bound: int = 0
    crowded: tuple[PartitionId, ...] = ()
    refused: Refused = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """All target rows; the other fields are those of `Outcome`."""

    rows: tuple[Replicas, ...]
    lower_bound: int
    crowded: tuple[PartitionId, ...] = ()
    refused: Refused = ()


def assign(
    table: PartitionTable, members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> tuple[Replicas, ...]:
    """Return the target row of every partition. Raises BadInput for invalid arguments.

    Members that a row names but `members` lacks are gone. With fewer members than replicas, rows are filled
    as far as possible. `replicas` is for the partitions outside of groups; each group has its own number.
    """
    rows = [partition.replicas for partition in table.partitions]
    parts = list(table.groups.parts(len(rows), replicas))
    return assign_rows(rows, members, replicas, moves, parts).rows


def assign_rows(
    rows: Sequence[Replicas],
    members: Sequence[DataMember],
    replicas: int,
    moves: Sequence[Move] = (),
    parts: Sequence[Part] = (),
) -> Assignment:
    """Run `assign` on bare rows, in these parts if they are given."""
    if all(member.leaving for member in members):
        check_arguments(members, replicas)
        return Assignment(tuple(rows), 0)
    targets, by_row = grouped_by_row(rows, members)
    outcome = assign_parts(by_row, members, parts or [Part(0, len(rows), replicas)], moves)
    for change in outcome.changes:
        for partition in change.partitions:
            targets[partition] = change.target
    return Assignment(tuple(targets), outcome.lower_bound, outcome.crowded, outcome.refused)


def grouped_by_row(
    rows: Iterable[Replicas], members: Iterable[DataMember]
) -> tuple[list[Replicas], PartitionsByRow]:
    """Return the rows without members that are gone, and the partitions of each distinct row."""
    stripped_rows, live = list(rows), frozenset(member.index for member in members)
    by_row = _by_row(stripped_rows)
    stripped = {
        row: trimmed(m if m in live else None for m in row) for row in by_row if not live.issuperset(row)
    }
    if not stripped:
        return stripped_rows, by_row
    stripped_rows = [stripped.get(row, row) for row in stripped_rows]
    return stripped_rows, _by_row(stripped_rows)


def _by_row(rows: Iterable[Replicas]) -> PartitionsByRow:
    by_row: PartitionsByRow = defaultdict(list)
    for partition, row in enumerate(rows):
        by_row[row].append(partition)
    return by_row


def assign_parts(
    by_row: PartitionsByRow,
    members: Sequence[DataMember],
    parts: Sequence[Part],
    moves: Sequence[Move] = (),
) -> Outcome:
    """Run `assign` on partitions by row, each part by itself; partitions that are in no list are left out.

    What the shares of a part leave open goes to members with less of the parts before. Consumes the lists.
    """
    if len(parts) == 1:
        return _assign_part(by_row, members, parts[0].replicas, moves)
    load, outcomes = Load(), []
    for part, rows in zip(parts, _in_parts(by_row, parts), strict=True):
        own = [move for move in moves if part.first <= move.partition < part.end]
        held = [(row, len(partitions)) for row, partitions in rows.items()]
        outcome = _assign_part(rows, members, part.replicas, own, load)
        held += [(change.today, -len(change.partitions)) for change in outcome.changes]
        held += [(change.target, len(change.partitions)) for change in outcome.changes]
        for row, partitions in held:
            load.add(row, partitions)
        outcomes.append(outcome)
    return Outcome(
        tuple(change for outcome in outcomes for change in outcome.changes),
        sum(outcome.lower_bound for outcome in outcomes),
        tuple(number for outcome in outcomes for number in outcome.crowded),
        tuple(refused for outcome in outcomes for refused in outcome.refused),
    )


def _in_parts(by_row: PartitionsByRow, parts: Sequence[Part]) -> list[PartitionsByRow]:
    """Return the partitions of each part by row. The first part is large, and cut off each list at once."""
    found: list[PartitionsByRow] = [defaultdict(list) for _ in parts]
    ends = [part.end for part in parts]
    for row, partitions in by_row.items():
        cut = bisect_left(partitions, parts[0].end)
        if cut:
            found[0][row] = partitions[:cut]
        for number in partitions[cut:]:
            found[bisect_right(ends, number)][row].append(number)
    return found


def _assign_part(
    by_row: PartitionsByRow,
    members: Sequence[DataMember],
    replicas: int,
    moves: Sequence[Move],
    load: Load | None = None,
) -> Outcome:
    """Run `assign` on partitions by row; `load` is what members have of other parts."""
    check_arguments(members, replicas)
    sets = MemberSets.of(members, replicas, load)
    if not sets.eligible:
        return Outcome(refused=tuple((move, NO_MEMBER) for move in moves))
    draft = DraftAssignment(sets.eligible, sets.topology)
    today = _held(sets, by_row)
    refused = _add_retained(draft, sets, by_row, [move for move in moves if move.destination is None])
    refused += grant(draft, sets, [move for move in moves if move.destination is not None])
    lower_bound = balance(draft, sets, today)
    changes = _changes(draft, sets)
    if sets.away:
        # Rows that wait for away members are not balanced yet.
        lower_bound = min(lower_bound, _copies(changes))
    return Outcome(changes, lower_bound, _crowded(draft, sets), refused)


def _copies(changes: Iterable[Change]) -> int:
    return sum(len({*each.target} - {*each.today, None}) * len(each.partitions) for each in changes)


class _EvictionChoice:
    """Chooses the replica that leaves a row with too many replicas in one zone."""

    def __init__(self, sets: MemberSets, by_row: PartitionsByRow) -> None:
        self._sets = sets
        self._by_row = by_row

    @cached_property
    def _excess(self) -> dict[MemberIndex, int]:
        """How far each member is above its share today."""
        held = _held(self._sets, self._by_row)
        rows = sum(map(len, self._by_row.values()))
        total = rows * min(self._sets.replicas, len(self._sets.staying))
        share = member_quotas(self._sets.tree, total, rows, lambda members, number: 0)
        return {member: held[member] - share[member].number for member in share}

    def __call__(self, slots: Sequence[MemberIndex | None], indexes: Sequence[int]) -> int:
        """Return the index, coldest first, of the member that is most above its share."""
        excess, members = self._excess, {index: slots[index] or 0 for index in indexes}
        chosen = max(indexes, key=lambda index: (index > 0, excess.get(members[index], 0), index))
        excess[members[chosen]] -= 1
        return chosen


def _held(sets: MemberSets, by_row: PartitionsByRow) -> Counter[MemberIndex]:
    held = Counter[MemberIndex]()
    for row, partitions in by_row.items():
        for member in row:
            if member in sets.staying:
                held[member] += len(partitions)
    return held


def _add_retained(
    draft: DraftAssignment, sets: MemberSets, by_row: PartitionsByRow, given_up: Sequence[Move]
) -> Refused:
    """Add the retained part of each row; nearly all rows are whole and stay as they are.

    Where replicas share a zone, the one that leaves is chosen per partition, unless a user chose it.
    """
    refused = remove_given_up(draft, sets, by_row, given_up)
    choice = _EvictionChoice(sets, by_row)
    crowded: list[tuple[PartitionId, Replicas, Row]] = []
    for row, partitions in by_row.items():
        whole = len(row) == sets.replicas and sets.staying.issuperset(row)
        retained_row = row if whole else _retained(sets, row)
        if sets.topology is not None and sets.topology.misplaced(retained_row):
            crowded += [(partition, row, retained_row) for partition in partitions]
        else:
            draft.add(row, retained_row, partitions)
    for partition, row, retained_row in sorted(crowded, key=itemgetter(0)):
        draft.add(row, _separated(sets, sets.topology, choice, retained_row), [partition])
    return refused


def _retained(sets: MemberSets, row: Replicas) -> Row:
    return tuple(with_owner(retained_slots(row, sets.staying, sets.leaving, sets.replicas), sets.owning))


def _separated(sets: MemberSets, topology: Topology | None, choice: _EvictionChoice, row: Row) -> Row:
    slots = list(row)
    while topology is not None:
        misplaced = [index for index in topology.misplaced(slots) if slots[index] in sets.eligible]
        if not misplaced:
            break
        slots[choice(slots, misplaced)] = None
    return tuple(slots)


def _crowded(draft: DraftAssignment, sets: MemberSets) -> tuple[PartitionId, ...]:
    topology = sets.topology
    if topology is None:
        return ()
    groups = [group for group in draft.groups.values() if group.partitions and topology.misplaced(group.row)]
    return tuple(sorted(partition for group in groups for partition in group.partitions))


def _changes(draft: DraftAssignment, sets: MemberSets) -> tuple[Change, ...]:
    """Return the groups whose row changes; indexes left open for away members are empty.

    A row that an open index would harm stays as it is until those members return or are given up, or until
    another member may own it.
    """
    away, changes = frozenset(sets.away), []
    for group in draft.groups.values():
        target = arranged(group.today, group.row) if group.shrinks else group.row
        if None in target or not away.isdisjoint(target):
            target = trimmed(m if m not in away or m in group.today else None for m in target)
            if _worsens(group.today, target, sets.replicas):
                continue
        if group.partitions and target != group.today:
            changes.append(Change(group.today, target, group.partitions))
    return tuple(changes)


def _worsens(today: Replicas, target: Replicas, replicas: int) -> bool:
    """Return whether the change leaves no owner, too few replicas, or moves a replica to a colder index
    for nothing."""
    before, after = (sum(member is not None for member in row) for row in (today, target))
    if after < min(before, replicas) or not target or target[0] is None:
        return True
    holes = {index for index in range(len(today)) if index >= len(target) or target[index] is None}
    return any(
        member is not None and target.index(member) > index and index in holes
        for index, member in enumerate(today)
        if member in target
    )
