"""Fragments: the parts of a tablet that travel by themselves, their order, and their version vectors.

A *namespace* is a distinguishable part of a tablet: a keyspace, or the data of one service. Services without
namespaces share one fragment; every other namespace is a fragment by itself. Source: Hazelcast, Gigantic
Cache Migration Enhancements.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from stele.core.table.ids import MemberIndex
from stele.core.table.table import Replicas

N = TypeVar("N")

UNKNOWN = -1
"""Entry of a version vector whose replica index is unassigned, or whose member's state is unknown."""

FRAGMENTS_MAX = 1024
"""Most fragments of one tablet; further namespaces travel in the last one."""


def group(namespaces: Iterable[N], alone: Callable[[N], bool]) -> list[tuple[N, ...]]:
    """Return the fragments: first one of all namespaces that are not `alone`, then one for each other.

    Every namespace is in exactly one fragment, and order is kept.
    """
    all_namespaces = list(namespaces)
    shared = tuple(namespace for namespace in all_namespaces if not alone(namespace))
    fragments: list[tuple[N, ...]] = [shared] if shared else []
    fragments += [(namespace,) for namespace in all_namespaces if alone(namespace)]
    rest = fragments[FRAGMENTS_MAX - 1 :]
    return (
        [*fragments[: FRAGMENTS_MAX - 1], tuple(namespace for fragment in rest for namespace in fragment)]
        if rest
        else fragments
    )


def gather(
    fragments: Sequence[tuple[N, ...]], bytes_of: Callable[[N], int], bytes_max: int
) -> list[tuple[N, ...]]:
    """Join neighbours that hold at most `bytes_max` together: each file costs a sync and a request.

    A larger fragment stays as it is, and order is kept.
    """
    joined: list[tuple[N, ...]] = []
    room = -1
    for fragment in fragments:
        size = sum(map(bytes_of, fragment))
        if joined and size <= room:
            joined[-1] = (*joined[-1], *fragment)
            room -= size
        else:
            joined.append(fragment)
            room = bytes_max - size
    return joined


def versions(
    replicas: Replicas, applied: int, source: MemberIndex, held: Mapping[MemberIndex, int]
) -> tuple[int, ...]:
    """Return the version vector: by replica index, the last operation that its member is known to hold.

    `applied` is the last operation of the snapshot at member `source`; `held` is what the source knows of the
    others. All namespaces of a tablet share one log, hence one vector. Operations beyond the snapshot do not
    count, since they are not sent.
    """
    known = {**held, source: applied}
    return tuple(
        UNKNOWN if member is None or member not in known else min(known[member], applied)
        for member in replicas
    )


def vector_fault(vector: Sequence[int], applied: int) -> str | None:
    """Return why this cannot be the vector of a snapshot at operation `applied`; None when it can."""
    if all(UNKNOWN <= version <= applied for version in vector):
        return None
    return f"versions {list(vector)}: expected {UNKNOWN} to {applied}, the last operation of the snapshot"


def round_robin(turns: Collection[N], take_turn: Callable[[N], bool], width: int) -> None:
    """Call `take_turn` for each item in rotation, `width` items at a time, until it returns True for each.

    An item with many turns delays those behind it by one turn at most.
    """
    waiting = list(reversed(list(turns)))
    active: list[N] = []
    while waiting or active:
        while waiting and len(active) < width:
            active.append(waiting.pop())
        item = active.pop(0)
        if not take_turn(item):
            active.append(item)
