"""Which member should hold which replica: a target row per partition.

Owners and replicas come within one of each member's fair share whenever rows allow it; a replica that may
stay stays, at its index, so that the target is reached with one copy per replica that is new. Nothing here
is random and nothing depends on the order of a set: the same input gives the same rows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from stele.core.balance import Board, Level, Place, Slots
from stele.core.errors import BadInput
from stele.core.ids import MAX_REPLICAS, MEMBERS_MAX, MemberIndex, PartitionId
from stele.core.settle import settle
from stele.core.shares import Shares, fair_shares, quotas, within_one
from stele.core.table import PartitionTable, Replicas, trimmed
from stele.core.zones import separate

WEIGHT_MAX = 1_000_000
"""The weight of one member; weights are compared with each other only."""


@dataclass(frozen=True, slots=True)
class DataMember:
    """A live member that holds data; leaving ones count as full copies until they are replaced, and get
    nothing.
    """

    index: MemberIndex
    weight: int = 1
    zone: str | None = None
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A user's wish: the replica of `partition` on `source` should be on `destination`."""

    partition: PartitionId
    source: MemberIndex
    destination: MemberIndex


@dataclass(frozen=True, slots=True)
class Assignment:
    """Target rows, and what a plan has to tell about them.

    `lower_bound` is the number of copies that no table with the same shares can do without. `crowded` are the
    partitions with two replicas in one zone while another zone is free, `refused` the moves that could not
    be granted.
    """

    rows: tuple[Replicas, ...]
    lower_bound: int
    crowded: tuple[PartitionId, ...] = ()
    refused: tuple[tuple[Move, str], ...] = ()


def assign(
    table: PartitionTable, members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> tuple[Replicas, ...]:
    """The target row of every partition. Raises BadInput for impossible arguments.

    Members that are in a row and not in `members` are gone. With fewer members than replicas, what can be
    filled is.
    """
    rows = tuple(partition.replicas for partition in table.partitions)
    return assign_rows(rows, members, replicas, moves).rows


def assign_rows(
    rows: Sequence[Replicas], members: Sequence[DataMember], replicas: int, moves: Sequence[Move] = ()
) -> Assignment:
    """As `assign`, on bare rows."""
    _check(members, replicas)
    weights = {member.index: member.weight for member in members if not member.leaving}
    if not weights:
        return Assignment(tuple(rows), 0)
    leaves = frozenset(member.index for member in members if member.leaving)
    origin = _without_gone(rows, leaves.union(weights))
    settled = _settled(origin, weights, leaves, replicas)
    pinned, refused = _granted(settled, weights, moves)
    zones = {member.index: member.zone for member in members if not member.leaving}
    board = Board(settled, origin, zones, pinned)
    lower_bound = _balance(board, weights)
    crowded = separate(board)
    return Assignment(tuple(map(trimmed, board.rows)), lower_bound, crowded, refused)


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


def _without_gone(rows: Sequence[Replicas], live: frozenset[MemberIndex]) -> list[Replicas]:
    return [row if live.issuperset(row) else trimmed(m if m in live else None for m in row) for row in rows]


def _settled(
    rows: Sequence[Replicas], stays: Mapping[MemberIndex, int], leaves: frozenset[MemberIndex], replicas: int
) -> list[Slots]:
    """Rows that are whole are kept as they are (nearly all of them, nearly always); the others are
    settled.
    """
    alive = frozenset(stays)
    shrinks = any(len(row) > replicas for row in rows)
    load = _count(chain.from_iterable(rows)) if shrinks else Counter()
    settled: list[Slots] = []
    for row in rows:
        if len(row) == replicas and alive.issuperset(row):
            settled.append(row)
            continue
        slots = settle(row, alive, leaves, replicas, load)
        if shrinks:
            load.subtract(member for member in row if member is not None and member not in slots)
        settled.append(slots)
    return settled


def _granted(
    rows: list[Slots], stays: Mapping[MemberIndex, int], moves: Sequence[Move]
) -> tuple[frozenset[Place], tuple[tuple[Move, str], ...]]:
    """Put users' moves into the rows. What was granted is not taken back by this balancing."""
    pinned: set[Place] = set()
    refused: list[tuple[Move, str]] = []
    for move in moves:
        fault = _move_fault(rows, stays, move)
        if fault is not None:
            refused.append((move, fault))
            continue
        row = list(rows[move.partition])
        index = row.index(move.source)
        row[index] = move.destination
        rows[move.partition] = row
        pinned.add((move.partition, index))
    return frozenset(pinned), tuple(refused)


def _move_fault(rows: Sequence[Slots], stays: Mapping[MemberIndex, int], move: Move) -> str | None:
    if not 0 <= move.partition < len(rows):
        return f"there is no partition {move.partition}"
    if move.destination not in stays:
        return f"member {move.destination} is not there to take data"
    if move.source not in rows[move.partition]:
        return f"member {move.source} holds no replica of it that stays"
    if move.destination in rows[move.partition]:
        return f"member {move.destination} holds a replica of it"
    return None


def _count(members: Iterable[MemberIndex | None]) -> Counter[MemberIndex]:
    return Counter(member for member in members if member is not None)


def _balance(board: Board, weights: Mapping[MemberIndex, int]) -> int:
    """Owners, then backups with what the owners left of each share. Returns the lower bound of copies."""
    held = _Held.of(board, weights)
    cap = len(board.rows)
    replica_shares = fair_shares(sum(held.all.values()) + len(held.empty), cap, weights)
    owner_shares = fair_shares(sum(held.owned.values()) + len(held.vacant), cap, weights)
    total = held.replica_quotas(replica_shares, owner_shares)
    owned = _balance_owners(board, held, total, owner_shares)
    _balance_backups(board, held, {member: total[member] - owned[member] for member in weights})
    return held.lower_bound(replica_shares)


def _balance_owners(
    board: Board, held: "_Held", total: Mapping[MemberIndex, int], shares: Shares
) -> dict[MemberIndex, int]:
    """Returns how many partitions each member owns afterwards."""
    number = sum(held.owned.values()) + len(held.vacant)
    owners = Level(
        board,
        owners=True,
        quota=quotas(number, shares, lambda member, owners: held.cost(member, total[member], owners)),
        count=held.owned,
        tolerated=within_one(shares),
        surplus={member: held.all[member] - total[member] for member in total},
    )
    owners.fill(held.vacant)
    owners.level_out()
    return owners.count


def _balance_backups(board: Board, held: "_Held", quota: Mapping[MemberIndex, int]) -> None:
    count = _count(member for row in board.rows for member in row[1:] if member in quota)
    backups = Level(board, owners=False, quota=quota, count=count)
    backups.fill(place for place in held.empty if place[1] > 0)
    backups.level_out()


@dataclass(frozen=True, slots=True)
class _Held:
    """What each member that stays holds before anything is passed on, and the slots that are empty.

    `relievable` counts owned rows with a hole: their owner can become a backup without a copy. `empty`
    goes index by index, so that each column of the table is evenly mixed by itself: who is first in line
    to be promoted matters more than who is second.
    """

    all: Counter[MemberIndex]
    owned: Counter[MemberIndex]
    relievable: Counter[MemberIndex]
    empty: list[Place]

    @staticmethod
    def of(board: Board, weights: Mapping[MemberIndex, int]) -> "_Held":
        gaps = [(partition, row) for partition, row in enumerate(board.rows) if None in row]
        empty = [(partition, index) for partition, row in gaps for index, m in enumerate(row) if m is None]
        return _Held(
            all=_count(member for row in board.rows for member in row if member in weights),
            owned=_count(row[0] for row in board.rows if row and row[0] in weights),
            relievable=_count(
                row[0] for number, row in gaps if row[0] in weights and board.hole(number) != -1
            ),
            empty=sorted(empty, key=itemgetter(1)),
        )

    @property
    def vacant(self) -> list[Place]:
        """The empty slots of owners."""
        return [place for place in self.empty if place[1] == 0]

    def replica_quotas(self, replicas: Shares, owners: Shares) -> dict[MemberIndex, int]:
        """How many replicas each should hold, rounded so that the owners' shares cost little, too."""
        number = sum(self.all.values()) + len(self.empty)
        return quotas(number, replicas, lambda m, total: min(self.cost(m, total, n) for n in owners[m]))

    def lower_bound(self, replicas: Shares) -> int:
        """Copies that no table with these shares of replicas can do without, however it is rounded."""
        number = sum(self.all.values()) + len(self.empty)
        fewest = quotas(number, replicas, lambda member, total: max(0, total - self.all[member]))
        return sum(max(0, fewest[member] - self.all[member]) for member in fewest)

    def cost(self, member: MemberIndex, total: int, owners: int) -> int:
        """Copies that `member` needs to have `total` replicas and own `owners` of them."""
        relieved = min(max(0, self.owned[member] - owners), self.relievable[member])
        backups = self.all[member] - self.owned[member] + relieved
        return max(0, owners - self.owned[member]) + max(0, total - owners - backups)
