"""Assignment: which member should hold which replica, as a target row per partition.

Owners and replicas come within one of each member's fair share whenever rows allow it. A replica that may
stay keeps its index, so that the target costs one copy per new replica. Zones come before balance: members of
a small zone hold more each, rather than two replicas of a partition sharing a zone elsewhere. Nothing here is
random or depends on the order of a set: the same input gives the same rows. Partitions with equal rows are
decided together (see `draft`), so the cost is that of distinct rows and of changes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import NamedTuple

from stele.core.placement.balancer import IndexBalancer
from stele.core.placement.draft import (
    DraftAssignment,
    Row,
    RowGroup,
    Slot,
    demotable_owners,
    partition_count,
)
from stele.core.placement.owners import even_owners
from stele.core.placement.quotas import Domain, Quota, QuotaBounds, member_quotas, quota_bounds, round_quotas
from stele.core.placement.retained import arranged, retained_slots
from stele.core.placement.topology import Path, Topology
from stele.core.table.ids import MAX_REPLICAS, MEMBERS_MAX, MemberIndex, PartitionId
from stele.core.table.table import PartitionTable, Replicas, trimmed
from stele.errors import BadInput

WEIGHT_MAX = 1_000_000
"""Greatest weight of one member; weights are only compared with each other."""


@dataclass(frozen=True, slots=True)
class DataMember:
    """A member that holds data.

    A `leaving` member counts as a full copy until it is replaced, and receives nothing. An `away` member is
    expected back: it keeps its share and the replicas that rows still name, backup indexes that it lacks are
    left open for it, and it takes part in no migration. A `demoted` member holds its share, and is given
    nothing to own. `zone` is its domain per topology key, widest first; a string is a single domain.
    """

    index: MemberIndex
    weight: int = 1
    zone: str | Path | None = None
    leaving: bool = False
    away: bool = False
    demoted: bool = False

    @property
    def path(self) -> Path:
        if self.zone is None:
            return ()
        return (self.zone,) if isinstance(self.zone, str) else self.zone


@dataclass(frozen=True, slots=True)
class Move:
    """A user's request to move the replica of `partition` from `source` to `destination`.

    Without a source, a missing replica is created at the destination; without a destination, a surplus
    replica is dropped. With the same member as both, its replica is pinned.
    """

    partition: PartitionId
    source: MemberIndex | None
    destination: MemberIndex | None


class MoveFault(NamedTuple):
    """Why a move was refused. `text` has `{}` in place of the name of `member`."""

    text: str
    member: MemberIndex | None = None

    def message(self, names: Mapping[MemberIndex, str]) -> str:
        return self.text.format(names.get(self.member or 0, f"member {self.member}"))


Refused = tuple[tuple[Move, MoveFault], ...]
PartitionsByRow = dict[Replicas, list[PartitionId]]

_NO_MEMBER = MoveFault("no member can take data")


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
    as far as possible.
    """
    rows = [partition.replicas for partition in table.partitions]
    return assign_rows(rows, members, replicas, moves).rows


def assign_rows(
    rows: Sequence[Replicas], members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> Assignment:
    """Run `assign` on bare rows."""
    if all(member.leaving for member in members):
        _check(members, replicas)
        return Assignment(tuple(rows), 0)
    targets, by_row = grouped_by_row(rows, members)
    outcome = assign_groups(by_row, members, replicas, moves)
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


def assign_groups(
    by_row: PartitionsByRow, members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> Outcome:
    """Run `assign` on partitions grouped by row; partitions without a group are left out.

    Consumes the lists.
    """
    _check(members, replicas)
    sets = _MemberSets.of(members, replicas)
    if not sets.eligible:
        return Outcome(refused=tuple((move, _NO_MEMBER) for move in moves))
    draft = DraftAssignment(sets.eligible, sets.topology)
    today = _held(sets, by_row)
    refused = _add_retained(draft, sets, by_row, [move for move in moves if move.destination is None])
    refused += _grant(draft, sets, [move for move in moves if move.destination is not None])
    lower_bound = _balance(draft, sets, today)
    changes = _changes(draft, sets)
    if sets.away:
        # Rows that wait for away members are not balanced yet.
        lower_bound = min(lower_bound, _copies(changes))
    return Outcome(changes, lower_bound, _crowded(draft, sets), refused)


def _copies(changes: Iterable[Change]) -> int:
    return sum(len({*each.target} - {*each.today, None}) * len(each.partitions) for each in changes)


@dataclass(frozen=True, slots=True)
class _MemberSets:
    """Members by what may happen to them.

    `eligible` members take data (mapped to their weights), those of `owning` also what is to be owned;
    `staying` members keep what they have.
    """

    eligible: Mapping[MemberIndex, int]
    owning: Mapping[MemberIndex, int]
    staying: frozenset[MemberIndex]
    away: tuple[MemberIndex, ...]
    leaving: frozenset[MemberIndex]
    tree: Domain
    topology: Topology | None
    replicas: int

    @staticmethod
    def of(members: Sequence[DataMember], replicas: int) -> "_MemberSets":
        staying = sorted((m for m in members if not m.leaving), key=attrgetter("index"))
        weights = {member.index: member.weight for member in staying}
        topology = Topology({member.index: member.path for member in staying})
        eligible = {member.index: member.weight for member in staying if not member.away}
        demoted = {member.index for member in staying if member.demoted}
        owning = {member: weight for member, weight in eligible.items() if member not in demoted}
        return _MemberSets(
            eligible=eligible,
            owning=owning or eligible,
            staying=frozenset(weights),
            away=tuple(member.index for member in staying if member.away),
            leaving=frozenset(member.index for member in members if member.leaving),
            tree=topology.tree(weights),
            topology=topology if topology.matters else None,
            replicas=replicas,
        )


def _check(members: Sequence[DataMember], replicas: int) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadInput(f"replicas is {replicas}; expected 1 to {MAX_REPLICAS}")
    if len(members) > MEMBERS_MAX:
        raise BadInput(f"there are {len(members)} members; at most {MEMBERS_MAX} can be planned for")
    if len({member.index for member in members}) != len(members):
        raise BadInput("two members have the same index; each needs its own")
    for member in members:
        if not 1 <= member.weight <= WEIGHT_MAX:
            raise BadInput(f"member {member.index} has weight {member.weight}; expected 1 to {WEIGHT_MAX}")


class _EvictionChoice:
    """Chooses the replica that leaves a row with too many replicas in one zone."""

    def __init__(self, sets: _MemberSets, by_row: PartitionsByRow) -> None:
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


def _held(sets: _MemberSets, by_row: PartitionsByRow) -> Counter[MemberIndex]:
    held = Counter[MemberIndex]()
    for row, partitions in by_row.items():
        for member in row:
            if member in sets.staying:
                held[member] += len(partitions)
    return held


def _add_retained(
    draft: DraftAssignment, sets: _MemberSets, by_row: PartitionsByRow, given_up: Sequence[Move]
) -> Refused:
    """Add the retained part of each row; nearly all rows are whole and stay as they are.

    Where replicas share a zone, the one that leaves is chosen per partition, unless a user chose it.
    """
    refused = _remove_given_up(draft, sets, by_row, given_up)
    choice = _EvictionChoice(sets, by_row)
    crowded: list[tuple[PartitionId, Replicas, Row]] = []
    for row, partitions in by_row.items():
        whole = len(row) == sets.replicas and sets.staying.issuperset(row)
        retained_row = row if whole else tuple(retained_slots(row, sets.staying, sets.leaving, sets.replicas))
        if sets.topology is not None and sets.topology.misplaced(retained_row):
            crowded += [(partition, row, retained_row) for partition in partitions]
        else:
            draft.add(row, retained_row, partitions)
    for partition, row, retained_row in sorted(crowded, key=itemgetter(0)):
        draft.add(row, _separated(sets, sets.topology, choice, retained_row), [partition])
    return refused


def _remove_given_up(
    draft: DraftAssignment, sets: _MemberSets, by_row: PartitionsByRow, given_up: Sequence[Move]
) -> Refused:
    """Remove the replicas that users drop from rows with too many; the rest of those rows stays."""
    refused: list[tuple[Move, MoveFault]] = []
    moves_of: dict[PartitionId, list[Move]] = {}
    for move in given_up:
        moves_of.setdefault(move.partition, []).append(move)
    rows = (
        {partition: row for row, partitions in by_row.items() for partition in partitions} if given_up else {}
    )
    for partition, moves in moves_of.items():
        row = rows.get(partition, ())
        remaining, granted = [member for member in row if member in sets.staying], False
        for move in moves:
            left = [member for member in remaining if member != move.source]
            if move.source not in row or len(left) < sets.replicas:
                refused.append(
                    (move, MoveFault(f"without it {len(left)} of {sets.replicas} replicas would be left"))
                )
            else:
                remaining, granted = left, True
        if granted:
            by_row[row].remove(partition)
            kept = tuple(remaining[: sets.replicas])
            draft.add(row, kept, [partition], frozenset(range(len(kept))))
    return tuple(refused)


def _separated(sets: _MemberSets, topology: Topology | None, choice: _EvictionChoice, row: Row) -> Row:
    slots = list(row)
    while topology is not None:
        misplaced = [index for index in topology.misplaced(slots) if slots[index] in sets.eligible]
        if not misplaced:
            break
        slots[choice(slots, misplaced)] = None
    return tuple(slots)


def _grant(draft: DraftAssignment, sets: _MemberSets, moves: Sequence[Move]) -> Refused:
    """Put users' moves into the rows; balancing does not undo them."""
    if not moves:
        return ()
    refused: list[tuple[Move, MoveFault]] = []
    group_of = {partition: group for group in draft.groups.values() for partition in group.partitions}
    for move in moves:
        group = group_of.get(move.partition)
        fault = _move_fault(sets, group, move)
        if group is None or move.destination is None or fault is not None:
            refused.append((move, fault or _NO_MEMBER))
        else:
            slot = Slot(group, _index_of(group, move.source))
            group_of[move.partition] = draft.fix(slot, move.destination, move.partition)
    return tuple(refused)


def _index_of(group: RowGroup, member: MemberIndex | None) -> int:
    """Return the index that the member holds, or held and leaves, -1 for none.

    For None return the hottest empty index.
    """
    if member in group.row:
        return group.row.index(member)
    index = group.today.index(member) if member in group.today else len(group.row)
    return index if index < len(group.row) and group.row[index] is None else -1


def _move_fault(sets: _MemberSets, group: RowGroup | None, move: Move) -> MoveFault | None:
    if group is None or move.destination is None:
        return MoveFault(f"there is no partition {move.partition}")
    index = _index_of(group, move.source)
    if move.destination not in sets.eligible:
        return MoveFault("{} is not available to take data", move.destination)
    if index == -1 and move.source is None:
        return MoveFault(f"it has its {sets.replicas} replicas; name the member that gives one up")
    if index == -1:
        return MoveFault("{} holds no replica of it that stays", move.source)
    if move.source in sets.away:
        return MoveFault("{} is away and its place is kept for it", move.source)
    if move.destination in group.row and move.source != move.destination:
        return MoveFault("{} holds a replica of it", move.destination)
    others = (*group.row[:index], *group.row[index + 1 :])
    if sets.topology is not None and not sets.topology.apart(others, move.destination):
        return MoveFault(
            "{} is in the zone of another replica of it, and another zone has room", move.destination
        )
    return None


def _balance(draft: DraftAssignment, sets: _MemberSets, today: Mapping[MemberIndex, int]) -> int:
    """Balance owners, then backups with what owners left of each share. Return the lower bound of copies."""
    vacant, *holes = [partition_count(draft.open_slots(index)) for index in range(sets.replicas)]
    held = {member: draft.held[member] for member in sets.staying}
    owned = {member: draft.owned[member] for member in sets.eligible}
    owner_bounds = _owner_bounds(sets, sum(owned[member] for member in sets.owning) + vacant)
    copy_cost = _CopyCost(held, owned, demotable_owners(draft.groups.values()), owner_bounds)
    slots = sum(held.values()) + vacant + sum(holes)
    rows = draft.partitions
    total = member_quotas(sets.tree, slots, rows, copy_cost.of)
    fewest = member_quotas(
        sets.tree, slots, rows, lambda members, number: max(0, number - sum(today[m] for m in members))
    )
    _reserve(draft, sets, total)
    needed = sum(
        partition_count(slot for slot in draft.open_slots(index) if not draft.shrinks(slot.group))
        for index in range(sets.replicas)
    )
    _balance_owners(draft, sets, copy_cost, total)
    backups = IndexBalancer(
        draft,
        owners=False,
        quota={member: total[member].minus(draft.owned[member]) for member in sets.eligible},
        total=total,
    )
    for index in range(1, sets.replicas):
        backups.fill(index)
    backups.level_out()
    backups.enforce()
    _even_owners(draft, sets)
    bound = max(needed, sum(max(0, fewest[member].number - today[member]) for member in sets.eligible))
    # Where rows do not allow the shares, the shares that were reached may need fewer copies.
    return min(bound, sum(max(0, draft.held[member] - today[member]) for member in sets.eligible))


def _reserve(draft: DraftAssignment, sets: _MemberSets, total: Mapping[MemberIndex, Quota]) -> None:
    """Leave empty backup indexes open for members that are away, by counting them as held."""
    for member in sets.away:
        for index in range(1, sets.replicas):
            for slot in draft.open_slots(index):
                number = min(total[member].number - draft.held[member], len(slot.group.partitions))
                if number > 0 and not slot.group.occupied(index) and draft.fits(slot, member):
                    draft.assign(slot, member, number)


def _owner_bounds(sets: _MemberSets, number: int) -> QuotaBounds:
    return quota_bounds(number, number, sets.owning)


def _balance_owners(
    draft: DraftAssignment, sets: _MemberSets, copy_cost: "_CopyCost", total: dict[MemberIndex, Quota]
) -> None:
    number = sum(copy_cost.owned[member] for member in sets.owning) + partition_count(draft.open_slots(0))
    numbers = round_quotas(
        number, copy_cost.owners, lambda m, owners: copy_cost.copies(m, total[m].number, owners)
    )
    quota = {member: Quota(numbers[member], *copy_cost.owners[member]) for member in numbers}
    owners = IndexBalancer(draft, owners=True, quota=quota, total=total)
    owners.fill(0)
    owners.level_out()
    _even_owners(draft, sets)
    owners.recount()
    owners.enforce()


def _even_owners(draft: DraftAssignment, sets: _MemberSets) -> None:
    """Even out owners by SWAPs; not while a member is away, which will get its share back."""
    if not sets.away:
        even_owners(draft, _owner_bounds(sets, sum(draft.owned[member] for member in sets.owning)))


@dataclass(frozen=True, slots=True)
class _CopyCost:
    """Copies that quotas cost, given what members hold and own before balancing.

    `demotable` counts owned rows with a free backup index: their owner can become a backup without a copy.
    """

    held: Mapping[MemberIndex, int]
    owned: Mapping[MemberIndex, int]
    demotable: Mapping[MemberIndex, int]
    owners: QuotaBounds

    def of(self, members: tuple[MemberIndex, ...], number: int) -> int:
        """Return the copies for a share of replicas, with the best matching share of owners."""
        if len(members) > 1 or members[0] not in self.owners:
            return 4 * self.fewest(members, number)
        member = members[0]
        copies = min(self.copies(member, number, owners) for owners in self.owners[member])
        # At equal cost, more replicas go to members that keep all that they own.
        return 4 * copies + number * max(0, min(self.owned[member] - self.owners[member][0], 3))

    def copies(self, member: MemberIndex, total: int, owners: int) -> int:
        """Return the copies that `member` needs to hold `total` replicas and own `owners` of them."""
        owned = self.owned[member]
        relieved = min(max(0, owned - owners), self.demotable.get(member, 0))
        backups = self.held[member] - owned + relieved
        return (
            max(0, owners - owned)
            + max(0, total - owners - backups)
            + len(self.owned) * max(0, owners - total)
        )

    def fewest(self, members: tuple[MemberIndex, ...], number: int) -> int:
        return max(0, number - sum(self.held[member] for member in members))


def _crowded(draft: DraftAssignment, sets: _MemberSets) -> tuple[PartitionId, ...]:
    topology = sets.topology
    if topology is None:
        return ()
    groups = [group for group in draft.groups.values() if group.partitions and topology.misplaced(group.row)]
    return tuple(sorted(partition for group in groups for partition in group.partitions))


def _changes(draft: DraftAssignment, sets: _MemberSets) -> tuple[Change, ...]:
    """Return the groups whose row changes; indexes left open for away members are empty.

    A row that an open index would harm stays as it is until those members return or are given up.
    """
    away, changes = frozenset(sets.away), []
    for group in draft.groups.values():
        target = arranged(group.today, group.row) if draft.shrinks(group) else group.row
        if None in target or not away.isdisjoint(target):
            target = trimmed(m if m not in away or m in group.today else None for m in target)
            if away and _worsens(group.today, target, sets.replicas):
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
