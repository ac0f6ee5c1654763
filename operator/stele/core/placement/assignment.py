"""Which member should hold which replica: a target row per partition.

Owners and replicas come within one of each member's fair share whenever rows allow it; a replica that may
stay stays, at its index, so that the target is reached with one copy per replica that is new. Zones go before
balance: members of a small zone hold more each, rather than two replicas of a partition elsewhere. Nothing
here is random and nothing depends on the order of a set: the same input gives the same rows. Partitions with
equal rows are decided together (see `balance`): the cost is that of the different rows and of what changes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import NamedTuple

from stele.core.placement.balancer import Board, Cell, Level, Row, Slot, places, relievable
from stele.core.placement.quotas import Domain, Quota, Shares, fair_shares, quotas, rounded
from stele.core.placement.retained import arranged, settle
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
    """A user's wish: the replica of `partition` on `source` should be on `destination`.

    Without a source a missing replica is made there; without a destination a replica too many is given up.
    When both are the same member, its replica stays there.
    """

    partition: PartitionId
    source: MemberIndex | None
    destination: MemberIndex | None


class Fault(NamedTuple):
    """Why a move cannot be granted. `text` has `{}` where the name of `member` belongs."""

    text: str
    member: MemberIndex | None = None

    def said(self, names: Mapping[MemberIndex, str]) -> str:
        return self.text.format(names.get(self.member or 0, f"member {self.member}"))


Refused = tuple[tuple[Move, Fault], ...]
Groups = dict[Replicas, list[PartitionId]]

_NOBODY = Fault("there is no member to take data")


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
    targets, groups = grouped(rows, members)
    found = assign_groups(groups, members, replicas, moves)
    for change in found.changes:
        for partition in change.partitions:
            targets[partition] = change.target
    return Assignment(tuple(targets), found.lower_bound, found.crowded, found.refused)


def grouped(rows: Iterable[Replicas], members: Iterable[DataMember]) -> tuple[list[Replicas], Groups]:
    """The rows without members that are gone, and the partitions of each different row."""
    found, live = list(rows), frozenset(member.index for member in members)
    groups = _groups(found)
    stripped = {
        row: trimmed(m if m in live else None for m in row) for row in groups if not live.issuperset(row)
    }
    if not stripped:
        return found, groups
    found = [stripped.get(row, row) for row in found]
    return found, _groups(found)


def _groups(rows: Iterable[Replicas]) -> Groups:
    groups: Groups = defaultdict(list)
    for partition, row in enumerate(rows):
        groups[row].append(partition)
    return groups


def assign_groups(
    groups: Groups, members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> Outcome:
    """As `assign`, on `grouped` partitions; those without a group are left out. The lists are used up."""
    _check(members, replicas)
    cast = _Cast.of(members, replicas)
    if not cast.able:
        return Outcome(refused=tuple((move, _NOBODY) for move in moves))
    board = Board(cast.able, cast.topology)
    today = _held(cast, groups)
    refused = _settle(board, cast, groups, [move for move in moves if move.destination is None])
    refused += _grant(board, cast, [move for move in moves if move.destination is not None])
    lower_bound = _balance(board, cast, today)
    changes = _changes(board, cast)
    if cast.away:
        # Rows that wait for them are not balanced yet.
        lower_bound = min(lower_bound, _copies(changes))
    return Outcome(changes, lower_bound, _crowded(board, cast), refused)


def _copies(changes: Iterable[Change]) -> int:
    return sum(len({*each.target} - {*each.today, None}) * len(each.partitions) for each in changes)


@dataclass(frozen=True, slots=True)
class _Cast:
    """The members by what may happen to them: `able` ones take data (with their weights), `staying` ones keep
    what they have.
    """

    able: Mapping[MemberIndex, int]
    staying: frozenset[MemberIndex]
    away: tuple[MemberIndex, ...]
    leaving: frozenset[MemberIndex]
    tree: Domain
    topology: Topology | None
    replicas: int

    @staticmethod
    def of(members: Sequence[DataMember], replicas: int) -> "_Cast":
        staying = sorted((m for m in members if not m.leaving), key=attrgetter("index"))
        weights = {member.index: member.weight for member in staying}
        topology = Topology({member.index: member.path for member in staying})
        return _Cast(
            able={member.index: member.weight for member in staying if not member.away},
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


class _Choice:
    """Which replica leaves a row that has too many of them in one zone."""

    def __init__(self, cast: _Cast, groups: Groups) -> None:
        self._cast = cast
        self._groups = groups

    @cached_property
    def _excess(self) -> dict[MemberIndex, int]:
        """By how much each member is above its share today."""
        held = _held(self._cast, self._groups)
        rows = sum(map(len, self._groups.values()))
        total = rows * min(self._cast.replicas, len(self._cast.staying))
        share = quotas(self._cast.tree, total, rows, lambda members, number: 0)
        return {member: held[member] - share[member].number for member in share}

    def __call__(self, slots: Sequence[MemberIndex | None], indexes: Sequence[int]) -> int:
        """The index with the member that is most above its share; the coldest one."""
        excess, members = self._excess, {index: slots[index] or 0 for index in indexes}
        chosen = max(indexes, key=lambda index: (index > 0, excess.get(members[index], 0), index))
        excess[members[chosen]] -= 1
        return chosen


def _held(cast: _Cast, groups: Groups) -> Counter[MemberIndex]:
    held = Counter[MemberIndex]()
    for row, partitions in groups.items():
        for member in row:
            if member in cast.staying:
                held[member] += len(partitions)
    return held


def _settle(board: Board, cast: _Cast, groups: Groups, given_up: Sequence[Move]) -> Refused:
    """Rows that are whole are kept as they are (nearly all of them, nearly always). Where replicas share a
    zone, it is chosen for each partition by itself which one leaves, unless a user chose that.
    """
    refused = _give_up(board, cast, groups, given_up)
    choice = _Choice(cast, groups)
    mixed: list[tuple[PartitionId, Replicas, Row]] = []
    for row, partitions in groups.items():
        whole = len(row) == cast.replicas and cast.staying.issuperset(row)
        settled = row if whole else tuple(settle(row, cast.staying, cast.leaving, cast.replicas))
        if cast.topology is not None and cast.topology.misplaced(settled):
            mixed += [(partition, row, settled) for partition in partitions]
        else:
            board.add(row, settled, partitions)
    for partition, row, settled in sorted(mixed, key=itemgetter(0)):
        board.add(row, _unmixed(cast, cast.topology, choice, settled), [partition])
    return refused


def _give_up(board: Board, cast: _Cast, groups: Groups, given_up: Sequence[Move]) -> Refused:
    """Take the replicas that users named out of rows with too many; the others of the row stay."""
    refused: list[tuple[Move, Fault]] = []
    named: dict[PartitionId, list[Move]] = {}
    for move in given_up:
        named.setdefault(move.partition, []).append(move)
    rows = {partition: row for row, some in groups.items() for partition in some} if given_up else {}
    for partition, moves in named.items():
        row = rows.get(partition, ())
        rest, granted = [member for member in row if member in cast.staying], False
        for move in moves:
            left = [member for member in rest if member != move.source]
            if move.source not in row or len(left) < cast.replicas:
                refused.append((move, Fault(f"without it there are {len(left)} of {cast.replicas} replicas")))
            else:
                rest, granted = left, True
        if granted:
            groups[row].remove(partition)
            kept = tuple(rest[: cast.replicas])
            board.add(row, kept, [partition], frozenset(range(len(kept))))
    return tuple(refused)


def _unmixed(cast: _Cast, topology: Topology | None, choice: _Choice, row: Row) -> Row:
    slots = list(row)
    while topology is not None:
        misplaced = [index for index in topology.misplaced(slots) if slots[index] in cast.able]
        if not misplaced:
            break
        slots[choice(slots, misplaced)] = None
    return tuple(slots)


def _grant(board: Board, cast: _Cast, moves: Sequence[Move]) -> Refused:
    """Put users' moves into the rows. What was granted is not taken back by this balancing."""
    if not moves:
        return ()
    refused: list[tuple[Move, Fault]] = []
    cells = {partition: cell for cell in board.cells.values() for partition in cell.partitions}
    for move in moves:
        cell = cells.get(move.partition)
        fault = _move_fault(cast, cell, move)
        if cell is None or move.destination is None or fault is not None:
            refused.append((move, fault or _NOBODY))
        else:
            slot = Slot(cell, _index_of(cell, move.source))
            cells[move.partition] = board.fix(slot, move.destination, move.partition)
    return tuple(refused)


def _index_of(cell: Cell, member: MemberIndex | None) -> int:
    """Where the member has its replica, or had it and leaves (None: the hottest empty place); -1: nowhere."""
    if member in cell.row:
        return cell.row.index(member)
    index = cell.today.index(member) if member in cell.today else len(cell.row)
    return index if index < len(cell.row) and cell.row[index] is None else -1


def _move_fault(cast: _Cast, cell: Cell | None, move: Move) -> Fault | None:
    if cell is None or move.destination is None:
        return Fault(f"there is no partition {move.partition}")
    index = _index_of(cell, move.source)
    if move.destination not in cast.able:
        return Fault("{} is not there to take data", move.destination)
    if index == -1 and move.source is None:
        return Fault(f"it has its {cast.replicas} replicas; say which member gives one up")
    if index == -1:
        return Fault("{} holds no replica of it that stays", move.source)
    if move.source in cast.away:
        return Fault("{} is away and its place is kept for it", move.source)
    if move.destination in cell.row and move.source != move.destination:
        return Fault("{} holds a replica of it", move.destination)
    others = (*cell.row[:index], *cell.row[index + 1 :])
    if cast.topology is not None and not cast.topology.apart(others, move.destination):
        return Fault(
            "{} is in the zone of another replica of it, and another zone has room", move.destination
        )
    return None


def _balance(board: Board, cast: _Cast, today: Mapping[MemberIndex, int]) -> int:
    """Owners, then backups with what the owners left of each share. Returns the lower bound of copies."""
    vacant, *holes = [places(board.open_slots(index)) for index in range(cast.replicas)]
    held = {member: board.held[member] for member in cast.staying}
    owned = {member: board.owned[member] for member in cast.able}
    shares = _owner_shares(cast, sum(owned.values()) + vacant)
    price = _Price(held, owned, relievable(board.cells.values()), shares)
    slots = sum(held.values()) + vacant + sum(holes)
    rows = board.partitions
    total = quotas(cast.tree, slots, rows, price.of)
    fewest = quotas(
        cast.tree, slots, rows, lambda members, number: max(0, number - sum(today[m] for m in members))
    )
    _reserve(board, cast, total)
    needed = sum(
        places(slot for slot in board.open_slots(index) if not board.spares(slot.cell))
        for index in range(cast.replicas)
    )
    _balance_owners(board, cast, price, total)
    backups = Level(
        board,
        owners=False,
        quota={member: total[member].less(board.owned[member]) for member in cast.able},
        total=total,
    )
    for index in range(1, cast.replicas):
        backups.fill(index)
    backups.level_out()
    backups.insist()
    bound = max(needed, sum(max(0, fewest[member].number - today[member]) for member in cast.able))
    # Where rows do not allow the shares, those that were reached instead may need less.
    return min(bound, sum(max(0, board.held[member] - today[member]) for member in cast.able))


def _reserve(board: Board, cast: _Cast, total: Mapping[MemberIndex, Quota]) -> None:
    """Leave empty backup indexes open for members that are away: they stand there as if they held it."""
    for member in cast.away:
        for index in range(1, cast.replicas):
            for slot in board.open_slots(index):
                number = min(total[member].number - board.held[member], len(slot.cell.partitions))
                if number > 0 and not slot.cell.occupied(index) and board.fits(slot, member):
                    board.give(slot, member, number)


def _owner_shares(cast: _Cast, number: int) -> Shares:
    return fair_shares(number, number, cast.able)


def _balance_owners(board: Board, cast: _Cast, price: "_Price", total: dict[MemberIndex, Quota]) -> None:
    number = sum(price.owned.values()) + places(board.open_slots(0))
    numbers = rounded(number, price.owners, lambda m, owners: price.copies(m, total[m].number, owners))
    choice = len(cast.staying) > cast.replicas
    quota = {
        member: Quota(numbers[member], *_tolerated(numbers[member], *price.owners[member], choice))
        for member in numbers
    }
    owners = Level(board, owners=True, quota=quota, total=total)
    owners.fill(0)
    owners.level_out()
    owners.insist()


def _tolerated(number: int, down: int, up: int, choice: bool) -> tuple[int, int]:
    """The fewest and the most owners that a member is left with rather than paid for with copies.

    Within 1 of its fair share; of the rounded share where each row has every member, so that there is no
    choice.
    """
    return (down, up) if down < up and choice else (number - 1, number + 1)


@dataclass(frozen=True, slots=True)
class _Price:
    """Copies that quotas cost, from what members hold and own before anything is passed on.

    `relievable` counts owned rows with a hole: their owner can become a backup without a copy.
    """

    held: Mapping[MemberIndex, int]
    owned: Mapping[MemberIndex, int]
    relievable: Mapping[MemberIndex, int]
    owners: Shares

    def of(self, members: tuple[MemberIndex, ...], number: int) -> int:
        """Copies for a share of replicas, with the share of owners that goes best with it."""
        if len(members) > 1 or members[0] not in self.owners:
            return 4 * self.fewest(members, number)
        member = members[0]
        copies = min(self.copies(member, number, owners) for owners in self.owners[member])
        # At equal cost more replicas for who does not have to give owners away.
        return 4 * copies + number * max(0, min(self.owned[member] - self.owners[member][0], 3))

    def copies(self, member: MemberIndex, total: int, owners: int) -> int:
        """Copies that `member` needs to have `total` replicas and own `owners` of them."""
        owned = self.owned[member]
        relieved = min(max(0, owned - owners), self.relievable.get(member, 0))
        backups = self.held[member] - owned + relieved
        return (
            max(0, owners - owned)
            + max(0, total - owners - backups)
            + len(self.owned) * max(0, owners - total)
        )

    def fewest(self, members: tuple[MemberIndex, ...], number: int) -> int:
        return max(0, number - sum(self.held[member] for member in members))


def _crowded(board: Board, cast: _Cast) -> tuple[PartitionId, ...]:
    topology = cast.topology
    if topology is None:
        return ()
    cells = [cell for cell in board.cells.values() if cell.partitions and topology.misplaced(cell.row)]
    return tuple(sorted(partition for cell in cells for partition in cell.partitions))


def _changes(board: Board, cast: _Cast) -> tuple[Change, ...]:
    """The cells whose row changes; indexes that were left open for members that are away are empty.

    A row whose open index would cost it something stays as it is until those members are back or given up.
    """
    away, changes = frozenset(cast.away), []
    for cell in board.cells.values():
        target = arranged(cell.today, cell.row) if board.spares(cell) else cell.row
        if None in target or not away.isdisjoint(target):
            target = trimmed(m if m not in away or m in cell.today else None for m in target)
            if away and _loses(cell.today, target, cast.replicas):
                continue
        if cell.partitions and target != cell.today:
            changes.append(Change(cell.today, target, cell.partitions))
    return tuple(changes)


def _loses(today: Replicas, target: Replicas, replicas: int) -> bool:
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
