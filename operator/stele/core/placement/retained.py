"""The retained part of a row: the first step of an assignment."""

from collections.abc import Collection, Sequence

from stele.core.table.ids import MemberIndex
from stele.core.table.table import Replicas

Slots = list[MemberIndex | None]


def retained_slots(
    row: Replicas, stays: Collection[MemberIndex], leaves: Collection[MemberIndex], replicas: int
) -> Slots:
    """Return the row at its target length, with None at each index that needs a new member.

    Replicas keep their index, with two exceptions, neither of which copies data. An empty index 0 is taken by
    the hottest replica. A row that is too long keeps its hottest replica as owner (in place of a leaving
    owner: the hottest that loses its index anyway), and which others stay is left open. The index of a
    leaving member is None when another member can replace it; when there are too few members it stays,
    because a copy on a leaving member is better than none.
    """
    held = [member for member in row if member is not None and member in stays]
    if len(held) > replicas:
        return [_owner_of_shrunk(row, held, leaves, replicas), *[None] * (replicas - 1)]
    staying = _staying(row, leaves, replicas - len(stays))
    length = min(replicas, len(stays) + len(staying))
    slots: Slots = [member if member in stays or member in staying else None for member in row]
    slots += [None] * (length - len(slots))
    _move_up(row, slots, length, leaves)
    _fill_owner(row, slots, leaves)
    return slots[:length]


def with_owner(slots: Sequence[MemberIndex | None], owning: Collection[MemberIndex]) -> Slots:
    """Fill an empty owner's slot with the hottest backup of `owning`, when the row has all of these.

    Otherwise one that is not in the row can become the owner, and the slots stay as they are.
    """
    taken = [index for index, member in enumerate(slots) if member in owning]
    moved = list(slots)
    if moved and moved[0] is None and taken and len(taken) == len(owning):
        moved[0], moved[taken[0]] = moved[taken[0]], None
    return moved


def arranged(today: Replicas, row: Replicas) -> Replicas:
    """Return the same members, with those of today at their present index where the row is long enough.

    The remaining indexes go to members of today that move to a hotter one, then to new ones. The owner stays
    first.
    """
    kept = {member: index for index, member in enumerate(today) if 0 < index < len(row)}
    slots: Slots = [row[0], *[None] * (len(row) - 1)]
    others = []
    for member in row[1:]:
        if member in kept and member is not None:
            slots[kept[member]] = member
        else:
            others.append(member)
    others.sort(key=lambda member: member not in today)
    return tuple(others.pop(0) if member is None else member for member in slots)


def _owner_of_shrunk(
    row: Replicas, held: Sequence[MemberIndex], leaves: Collection[MemberIndex], replicas: int
) -> MemberIndex:
    """Return the owner of a shrunk row; a backup that keeps its index would be copied again if it took
    over."""
    return held[0] if row[0] not in leaves else next(m for m in held if row.index(m) >= replicas)


def _staying(row: Replicas, leaves: Collection[MemberIndex], room: int) -> list[MemberIndex]:
    """Return the coldest leaving members that no other member can replace."""
    leaving = [member for member in row if member is not None and member in leaves]
    return leaving[max(0, len(leaving) - room) :] if room > 0 else []


def _move_up(row: Replicas, slots: Slots, length: int, leaves: Collection[MemberIndex]) -> None:
    """Move members beyond the target length to free indexes, really empty ones first."""
    free = [index for index in range(length) if slots[index] is None]
    free.sort(key=lambda index: (index < len(row) and row[index] in leaves, index))
    for index in range(length, len(slots)):
        if slots[index] is not None:
            slots[free.pop(0)], slots[index] = slots[index], None


def _fill_owner(row: Replicas, slots: Slots, leaves: Collection[MemberIndex]) -> None:
    if slots and slots[0] is None and not (row and row[0] in leaves):
        hottest = next((index for index, member in enumerate(slots) if member is not None), None)
        if hottest is not None:
            slots[0], slots[hottest] = slots[hottest], None
