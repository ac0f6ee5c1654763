"""Fragments: what of a tablet travels together, in which order, and what its replicas held.

A *namespace* is a part of a tablet that can be told apart: a keyspace, or what a service keeps. Services that
know no namespaces of their own share one fragment; every other namespace is a fragment by itself.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from stele.core.table.ids import MemberIndex
from stele.core.table.table import Replicas

N = TypeVar("N")

UNKNOWN = -1
"""In a version vector: nothing is known of that replica index, or no member has it."""

FRAGMENTS_MAX = 1024
"""Fragments of one tablet; namespaces beyond it travel in the last one."""


def group(namespaces: Iterable[N], alone: Callable[[N], bool]) -> list[tuple[N, ...]]:
    """The fragments: first, together, what is not `alone` (if there is any), then each other by itself.

    Every namespace is in exactly one fragment, and order is kept.
    """
    given = list(namespaces)
    together = tuple(each for each in given if not alone(each))
    made: list[tuple[N, ...]] = [together] if together else []
    made += [(each,) for each in given if alone(each)]
    rest = made[FRAGMENTS_MAX - 1 :]
    return [*made[: FRAGMENTS_MAX - 1], tuple(each for some in rest for each in some)] if rest else made


def gather(
    fragments: Sequence[tuple[N, ...]], bytes_of: Callable[[N], int], bytes_max: int
) -> list[tuple[N, ...]]:
    """Neighbours that hold no more than `bytes_max` together go in one: each file costs a sync and a request.

    A larger fragment stays as it is, and order is kept.
    """
    made: list[tuple[N, ...]] = []
    room = -1
    for fragment in fragments:
        size = sum(map(bytes_of, fragment))
        if made and size <= room:
            made[-1] = (*made[-1], *fragment)
            room -= size
        else:
            made.append(fragment)
            room = bytes_max - size
    return made


def versions(
    replicas: Replicas, applied: int, source: MemberIndex, held: Mapping[MemberIndex, int]
) -> tuple[int, ...]:
    """The replica version vector: by replica index, the last operation that its member is known to hold.

    `applied` is that of the snapshot of the member `source`; `held` is what the source knows of the others.
    All namespaces of a tablet share one log, hence one vector. What a replica holds beyond the snapshot does
    not count: it is not part of what is sent.
    """
    known = {**held, source: applied}
    return tuple(
        UNKNOWN if member is None or member not in known else min(known[member], applied)
        for member in replicas
    )


def vector_fault(vector: Sequence[int], applied: int) -> str | None:
    """Why the vector cannot be that of a snapshot at operation `applied`; None when it can."""
    if all(UNKNOWN <= version <= applied for version in vector):
        return None
    return f"versions {list(vector)}: expected {UNKNOWN} to {applied}, the last operation of the snapshot"


def round_robin(turns: Collection[N], take_turn: Callable[[N], bool], width: int) -> None:
    """Give each its turns, `width` of them at a time, until `take_turn` tells True: that one is over.

    One after the other, so that whoever has many turns holds up nobody behind it for more than its one.
    """
    waiting = list(reversed(list(turns)))
    active: list[N] = []
    while waiting or active:
        while waiting and len(active) < width:
            active.append(waiting.pop())
        first = active.pop(0)
        if not take_turn(first):
            active.append(first)
