"""Moves of single replicas that users request: which are granted, and what they do to a draft."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stele.core.placement.draft import DraftAssignment, PartitionsByRow, RowGroup, Slot
from stele.core.placement.members import MemberSets
from stele.core.table.ids import MemberIndex, PartitionId


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

NO_MEMBER = MoveFault("no member can take data")


def remove_given_up(
    draft: DraftAssignment, sets: MemberSets, by_row: PartitionsByRow, given_up: Sequence[Move]
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


def grant(draft: DraftAssignment, sets: MemberSets, moves: Sequence[Move]) -> Refused:
    """Put users' moves into the rows; balancing does not undo them."""
    if not moves:
        return ()
    refused: list[tuple[Move, MoveFault]] = []
    group_of = {partition: group for group in draft.groups.values() for partition in group.partitions}
    for move in moves:
        group = group_of.get(move.partition)
        fault = _move_fault(sets, group, move)
        if group is None or move.destination is None or fault is not None:
            refused.append((move, fault or NO_MEMBER))
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


def _move_fault(sets: MemberSets, group: RowGroup | None, move: Move) -> MoveFault | None:
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
