"""Which member should hold which replica: a target row per partition.

Owners and replicas come within one of each member's fair share whenever rows allow it; a replica that may
stay stays, at its index, so that the target is reached with one copy per replica that is new. Zones go before
balance: members of a small zone hold more each, rather than two replicas of a partition elsewhere. Nothing
here is random and nothing depends on the order of a set: the same input gives the same rows. Partitions with
equal rows are decided together (see `draft`): the cost is that of the different rows and of what changes.
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
from stele.core.placement.quotas import Domain, Quota, QuotaBounds, member_quotas, quota_bounds, round_quotas
from stele.core.placement.retained import arranged, retained_slots
from stele.core.placement.topology import Path, Topology
from stele.core.table.ids import MAX_REPLICAS, MEMBERS_MAX, MemberIndex, PartitionId
from stele.core.table.table import PartitionTable, Replicas, trimmed
from stele.errors import BadInput

WEIGHT_MAX = 1_000_000
"""The weight of one member; weights are compared with each other only."""


@dataclass(frozen=True, slots=True)
class DataMember:
    """A member that holds data.

    A `leaving` one counts as a full copy until it is replaced, and gets nothing. An `away` one is expected
    back: it keeps its share and the replicas that rows still name, empty backup indexes are left open for
    what it lacks, and no migration has to do with it. `zone` is its domain per topology key, widest first;
    a text is one domain.
    """

    index: MemberIndex
    weight: int = 1
    zone: str | Path | None = None
    leaving: bool = False
    away: bool = False

    @property
    def path(self) -> Path:
        if self.zone is None:
            return ()
        return (self.zone,) if isinstance(self.zone, str) else self.zone


@dataclass(frozen=True, slots=True)
class Move:
    """A user's request: the replica of `partition` on `source` should be on `destination`.

    Without a source a missing replica is made there; without a destination a replica too many is given up.
    When both are the same member, its replica stays there.
    """

    partition: PartitionId
    source: MemberIndex | None
    destination: MemberIndex | None


class MoveFault(NamedTuple):
    """Why a move cannot be granted. `text` has `{}` where the name of `member` belongs."""

    text: str
    member: MemberIndex | None = None

    def message(self, names: Mapping[MemberIndex, str]) -> str:
        return self.text.format(names.get(self.member or 0, f"member {self.member}"))


Refused = tuple[tuple[Move, MoveFault], ...]
PartitionsByRow = dict[Replicas, list[PartitionId]]

_NO_MEMBER = MoveFault("there is no member to take data")


class Change(NamedTuple):
    """Partitions that have the row `today` and should have the row `target`."""

    today: Replicas
    target: Replicas
    partitions: Sequence[PartitionId]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What changes, and what a plan has to tell about it.

    `lower_bound` is the number of copies that no table with the same shares can do without. `crowded` are the
    partitions with two replicas in one zone while another zone is free, `refused` the moves that could not
    be granted.
    """

    changes: tuple[Change, ...] = ()
    lower_bound: int = 0
    crowded: tuple[PartitionId, ...] = ()
    refused: Refused = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """All target rows; the rest is as in `Outcome`."""

    rows: tuple[Replicas, ...]
    lower_bound: int
    crowded: tuple[PartitionId, ...] = ()
    refused: Refused = ()


def assign(
    table: PartitionTable, members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> tuple[Replicas, ...]:
    """The target row of every partition. Raises BadInput for impossible arguments.

    Members that are in a row and not in `members` are gone. With fewer members than replicas, what can be
    filled is.
    """
    rows = [partition.replicas for partition in table.partitions]
    return assign_rows(rows, members, replicas, moves).rows


def assign_rows(
    rows: Sequence[Replicas], members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> Assignment:
    """As `assign`, on bare rows."""
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
    """The rows without members that are gone, and the partitions of each different row."""
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
    """As `assign`, on partitions by row; those without a group are left out. The lists are used up."""
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
        # Rows that wait for them are not balanced yet.
        lower_bound = min(lower_bound, _copies(changes))
    return Outcome(changes, lower_bound, _crowded(draft, sets), refused)


def _copies(changes: Iterable[Change]) -> int:
    return sum(len({*each.target} - {*each.today, None}) * len(each.partitions) for each in changes)


@dataclass(frozen=True, slots=True)
class _MemberSets:
    """The members by what may happen to them: `eligible` ones take data (with their weights), `staying` ones
    keep what they have.
    """

    eligible: Mapping[MemberIndex, int]
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
        return _MemberSets(
            eligible={member.index: member.weight for member in staying if not member.away},
            staying=frozenset(weights),
            away=tuple(member.index for member in staying if member.away),
            leaving=frozenset(member.index for member in members if member.leaving),
            tree=topology.tree(weights),
            topology=topology if topology.matters else None,
            replicas=replicas,
        )


def _check(members: Sequence[DataMember], replicas: int) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadInput(f"replicas is {replicas}; it must be 1 to {MAX_REPLICAS}")
    if len(members) > MEMBERS_MAX:
        raise BadInput(f"there are {len(members)} members; at most {MEMBERS_MAX} can be planned for")
    if len({member.index for member in members}) != len(members):
        raise BadInput("two members have the same index; each needs its own")
    for member in members:
        if not 1 <= member.weight <= WEIGHT_MAX:
            raise BadInput(f"member {member.index} has weight {member.weight}; it must be 1 to {WEIGHT_MAX}")


class _EvictionChoice:
    """Choose the replica that leaves a row with too many of them in one zone."""

    def __init__(self, sets: _MemberSets, by_row: PartitionsByRow) -> None:
        self._sets = sets
        self._by_row = by_row

    @cached_property
    def _excess(self) -> dict[MemberIndex, int]:
        """By how much each member is above its share today."""
        held = _held(self._sets, self._by_row)
        rows = sum(map(len, self._by_row.values()))
        total = rows * min(self._sets.replicas, len(self._sets.staying))
        share = member_quotas(self._sets.tree, total, rows, lambda members, number: 0)
        return {member: held[member] - share[member].number for member in share}

    def __call__(self, slots: Sequence[MemberIndex | None], indexes: Sequence[int]) -> int:
        """The index with the member that is most above its share; the coldest one."""
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
    """Add what is retained of each row; nearly all rows, nearly always, are whole and kept as they are.

    Where replicas share a zone, it is chosen for each partition by itself which one leaves, unless a user
    chose that.
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
    """Remove the replicas that users gave up from rows with too many; the others of the row stay."""
    refused: list[tuple[Move, MoveFault]] = []
    named: dict[PartitionId, list[Move]] = {}
    for move in given_up:
        named.setdefault(move.partition, []).append(move)
    rows = (
        {partition: row for row, partitions in by_row.items() for partition in partitions} if given_up else {}
    )
    for partition, moves in named.items():
        row = rows.get(partition, ())
        rest, granted = [member for member in row if member in sets.staying], False
        for move in moves:
            left = [member for member in rest if member != move.source]
            if move.source not in row or len(left) < sets.replicas:
                refused.append(
                    (move, MoveFault(f"without it there are {len(left)} of {sets.replicas} replicas"))
                )
            else:
                rest, granted = left, True
        if granted:
            by_row[row].remove(partition)
            kept = tuple(rest[: sets.replicas])
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
    """Put users' moves into the rows. What was granted is not taken back by this balancing."""
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
    """Where the member has its replica, or had it and leaves (None: the hottest empty place); -1: nowhere."""
    if member in group.row:
        return group.row.index(member)
    index = group.today.index(member) if member in group.today else len(group.row)
    return index if index < len(group.row) and group.row[index] is None else -1


def _move_fault(sets: _MemberSets, group: RowGroup | None, move: Move) -> MoveFault | None:
    if group is None or move.destination is None:
        return MoveFault(f"there is no partition {move.partition}")
    index = _index_of(group, move.source)
    if move.destination not in sets.eligible:
        return MoveFault("{} is not there to take data", move.destination)
    if index == -1 and move.source is None:
        return MoveFault(f"it has its {sets.replicas} replicas; say which member gives one up")
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
    """Owners, then backups with what the owners left of each share. Returns the lower bound of copies."""
    vacant, *holes = [partition_count(draft.open_slots(index)) for index in range(sets.replicas)]
    held = {member: draft.held[member] for member in sets.staying}
    owned = {member: draft.owned[member] for member in sets.eligible}
    owner_bounds = _owner_bounds(sets, sum(owned.values()) + vacant)
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
    bound = max(needed, sum(max(0, fewest[member].number - today[member]) for member in sets.eligible))
    # Where rows do not allow the shares, those that were reached instead may need less.
    return min(bound, sum(max(0, draft.held[member] - today[member]) for member in sets.eligible))


def _reserve(draft: DraftAssignment, sets: _MemberSets, total: Mapping[MemberIndex, Quota]) -> None:
    """Leave empty backup indexes open for members that are away: they stand there as if they held it."""
    for member in sets.away:
        for index in range(1, sets.replicas):
            for slot in draft.open_slots(index):
                number = min(total[member].number - draft.held[member], len(slot.group.partitions))
                if number > 0 and not slot.group.occupied(index) and draft.fits(slot, member):
                    draft.assign(slot, member, number)


def _owner_bounds(sets: _MemberSets, number: int) -> QuotaBounds:
    return quota_bounds(number, number, sets.eligible)


def _balance_owners(
    draft: DraftAssignment, sets: _MemberSets, copy_cost: "_CopyCost", total: dict[MemberIndex, Quota]
) -> None:
    number = sum(copy_cost.owned.values()) + partition_count(draft.open_slots(0))
    numbers = round_quotas(
        number, copy_cost.owners, lambda m, owners: copy_cost.copies(m, total[m].number, owners)
    )
    choice = len(sets.staying) > sets.replicas
    quota = {
        member: Quota(numbers[member], *_tolerated(numbers[member], *copy_cost.owners[member], choice))
        for member in numbers
    }
    owners = IndexBalancer(draft, owners=True, quota=quota, total=total)
    owners.fill(0)
    owners.level_out()
    owners.enforce()


def _tolerated(number: int, down: int, up: int, choice: bool) -> tuple[int, int]:
    """The fewest and the most owners that a member is left with rather than paid for with copies.

    Within 1 of its fair share; of the rounded share where each row has every member, so that there is no
    choice.
    """
    return (down, up) if down < up and choice else (number - 1, number + 1)


@dataclass(frozen=True, slots=True)
class _CopyCost:
    """Copies that quotas cost, from what members hold and own before anything is passed on.

    `demotable` counts owned rows with a free backup index: their owner can become a backup without a copy.
    """

    held: Mapping[MemberIndex, int]
    owned: Mapping[MemberIndex, int]
    demotable: Mapping[MemberIndex, int]
    owners: QuotaBounds

    def of(self, members: tuple[MemberIndex, ...], number: int) -> int:
        """Copies for a share of replicas, with the share of owners that goes best with it."""
        if len(members) > 1 or members[0] not in self.owners:
            return 4 * self.fewest(members, number)
        member = members[0]
        copies = min(self.copies(member, number, owners) for owners in self.owners[member])
        # At equal cost more replicas for members that keep all that they own.
        return 4 * copies + number * max(0, min(self.owned[member] - self.owners[member][0], 3))

    def copies(self, member: MemberIndex, total: int, owners: int) -> int:
        """Copies that `member` needs to have `total` replicas and own `owners` of them."""
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
    """The groups whose row changes; indexes that were left open for members that are away are empty.

    A row whose open index would cost it something stays as it is until those members are back or given up.
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
    """Whether the row has no owner afterwards, fewer replicas than it should, or one at a colder index for
    nothing.
    """
    before, after = (sum(member is not None for member in row) for row in (today, target))
    if after < min(before, replicas) or not target or target[0] is None:
        return True
    holes = {index for index in range(len(today)) if index >= len(target) or target[index] is None}
    return any(
        member is not None and target.index(member) > index and index in holes
        for index, member in enumerate(today)
        if member in target
    )
