"""What stays of a row: the first step of an assignment, row by row."""

from collections.abc import Collection, Mapping

from stele.core.ids import MemberIndex
from stele.core.table import Replicas

Slots = list[MemberIndex | None]


def settle(
    row: Replicas,
    stays: Collection[MemberIndex],
    leaves: Collection[MemberIndex],
    replicas: int,
    load: Mapping[MemberIndex, int],
) -> Slots:
    """The row at its wanted length, None at each index that somebody new must take.

    Replicas keep their index, but for three cases, none of which copies data: an empty index 0 is taken by
    the hottest replica; a row that is too long gives up its most loaded backups (`load`: replicas per
    member); replicas beyond the wanted length move up. A leaving member's index is None when there is
    somebody who can replace it; when there are too few members it stays, because a copy on a leaving
    member is better than none.
    """
    staying = _staying(row, leaves, replicas - len(stays))
    length = min(replicas, len(stays) + len(staying))
    slots: Slots = [member if member in stays or member in staying else None for member in row]
    _shorten(slots, length, load)
    slots += [None] * (length - len(slots))
    _move_up(row, slots, length, leaves)
    _fill_owner(row, slots, leaves)
    return slots[:length]


def _staying(row: Replicas, leaves: Collection[MemberIndex], room: int) -> list[MemberIndex]:
    """The coldest leaving members for whom there is nobody to take their place."""
    leaving = [member for member in row if member is not None and member in leaves]
    return leaving[max(0, len(leaving) - room) :] if room > 0 else []


def _shorten(slots: Slots, length: int, load: Mapping[MemberIndex, int]) -> None:
    held = [index for index, member in enumerate(slots) if member is not None]
    for _ in range(len(held) - length):
        given_up = max(held[1:], key=lambda index: (load.get(slots[index] or 0, 0), index))
        slots[given_up] = None
        held.remove(given_up)


def _move_up(row: Replicas, slots: Slots, length: int, leaves: Collection[MemberIndex]) -> None:
    """Members beyond the wanted length take free indexes: really empty ones before those of leaving
    members.
    """
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
