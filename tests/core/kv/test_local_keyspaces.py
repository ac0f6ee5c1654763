"""Keyspaces with mode Invalidation: no hit older than an acknowledged write, whatever happens to messages."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest

from stele.core.kv.cover import Cover, Listing
from stele.core.kv.local_cache import LocalCache, Misses
from stele.core.kv.local_keyspaces import LocalKeyspaces
from tests.core.kv.local_world import LEASE, Member, StaleHitError, World, Write, walk

SEEDS = 150
STEPS = 400


def _walks(make: Callable[[int], World], seeds: int, *, lists: bool = False, restarts: bool = False) -> World:
    total = World(1)
    for seed in range(seeds):
        world = make(seed)
        walk(world, seed, STEPS, lists=lists, restarts=restarts)
        total.hits += world.hits
        total.done += world.done
        total.refused_fills += world.refused_fills
    return total


def test_no_hit_is_older_than_an_acknowledged_write() -> None:
    total = _walks(lambda seed: World(2 + seed % 2), SEEDS, restarts=True)
    assert total.hits > 1000
    assert total.done > 500
    assert total.refused_fills > 50


def test_nor_while_members_join_and_leave() -> None:
    total = _walks(lambda seed: World(5, joined=2), SEEDS, lists=True, restarts=True)
    assert total.hits > 200
    assert total.done > 200


class FromReceipt(World):
    """A lease counts from when it is read."""

    def asked_at(self, asked: float) -> float:
        return self.now


class ChangedLast(World):
    """A write is told first, and takes effect here when it is acknowledged."""

    def run(self, member: Member, args: Any, misses: Misses) -> tuple[object, list[bytes]]:
        if args[0] == b"GET" or args[-1] == b"NX":
            return super().run(member, args, misses)
        self.writes[args[1]].args = args  # type: ignore[attr-defined]
        return None, [args[1]]

    def acknowledged(self, member: Member, write: Write) -> None:
        super().run(member, write.args, Misses())  # type: ignore[attr-defined]


def _cover_ignored() -> AbstractContextManager[Any]:
    return patch.object(LocalKeyspaces, "covered", lambda self, now: True)


def _fills_not_guarded() -> AbstractContextManager[Any]:
    def fill(self: LocalCache, key: bytes, stored: Any, missed: int) -> bool:
        self._put(key, stored)
        return True

    return patch.object(LocalCache, "fill", fill)


def _entries_outlive_sessions() -> AbstractContextManager[Any]:
    return patch.object(LocalKeyspaces, "session_began", lambda self, member: None)


def _cover_of_any_list() -> AbstractContextManager[Any]:
    def until(self: Cover, granter: int) -> float:
        return self._leases.get(granter, (float("-inf"), 0))[0]

    return patch.object(Cover, "_until", until)


def _writes_of_strangers() -> AbstractContextManager[Any]:
    return patch.object(Listing, "takes_writes", lambda self, now, lease_seconds: True)


@pytest.mark.parametrize(
    ("plant", "lists"),
    [
        (_cover_ignored, False),
        (_fills_not_guarded, False),
        (_entries_outlive_sessions, False),
        (_writes_of_strangers, True),
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[], AbstractContextManager[Any]], lists: bool) -> None:
    make = (lambda seed: World(5, joined=2)) if lists else (lambda seed: World(2 + seed % 2))
    with plant(), pytest.raises(StaleHitError):
        _walks(make, 20 * SEEDS, lists=lists, restarts=True)


def test_a_lease_that_counts_from_its_receipt_is_found() -> None:
    with pytest.raises(StaleHitError):
        _walks(lambda seed: FromReceipt(2), 20 * SEEDS)


def _member_that_left() -> World:
    """Member 1 left a list on which member 2 is, and only member 0 knows of it; 1 has an entry."""
    world = World(3, joined=2)
    world.take_list(0)
    world.take_list(1)
    world.wait(LEASE)
    world.connected()
    world.read(1, b"0")
    world.fill(0)
    world.read(1, b"0")
    assert world.hits == 1
    world.lists.append(frozenset({0, 2}))
    for index in (0, 2):
        world.take_list(index)
    for _ in range(5):
        world.connected()
        world.wait(LEASE / 3)
    world.write(2, b"0", delete=True)
    world.connected()
    assert world.done == 1
    return world


def test_a_member_that_left_answers_no_hits() -> None:
    world = _member_that_left()
    world.read(1, b"0")
    assert world.hits == 1


def test_cover_by_a_later_list_is_found() -> None:
    with _cover_of_any_list():
        world = _member_that_left()
        with pytest.raises(StaleHitError):
            world.read(1, b"0")


# -- two writers of one key at once


def _two_writers(make: type[World], order: tuple[int, ...]) -> set[bytes]:
    """Run two SETs at two members, with the messages of both in this order; return the values that stay."""
    world = make(2, keys=2)
    for index in (0, 1):
        world.take_list(index)
    for one, other in ((0, 1), (1, 0)):
        world.dial(one, other)
        world.heartbeat(one)
        world.up(one, other)
    world.wait(LEASE)
    for one, other in ((0, 1), (1, 0)):
        world.heartbeat(one)
        world.up(one, other)
        world.down(one, other)
        world.down(one, other)
    # Each client has a name of its own for the one key that both write.
    steps: list[list[Callable[[], None]]] = [
        [lambda: _set(world, 0), lambda: world.down(1, 0), lambda: world.up(1, 0)],
        [lambda: _set(world, 1), lambda: world.down(0, 1), lambda: world.up(0, 1)],
    ]
    for place in order:
        steps[place].pop(0)()
    assert not world.writes
    caches = (member.state.caches[b"k"] for member in world.members)
    return {stored[0] for cache in caches if (stored := cache.get(b"x", 1)) is not None}


def _set(world: World, index: int) -> None:
    member = world.members[index]
    write = world.writes[b"x%d" % index] = Write(b"x", index, index)
    write_args = [b"SET", b"x", b"%d" % index]
    world.writes[b"x"] = write
    _, told = world.run(member, write_args, Misses())
    del world.writes[b"x"]
    world.acked[b"x"] = 0
    world.tell(member, write, told)


ORDERS = sorted({order for order in product((0, 1), repeat=6) if sum(order) == 3})


@pytest.mark.parametrize("order", ORDERS)
def test_two_writers_at_once_leave_no_two_values(order: tuple[int, ...]) -> None:
    assert len(_two_writers(World, order)) <= 1


def test_a_write_that_is_told_before_it_takes_effect_is_found() -> None:
    assert max(len(_two_writers(ChangedLast, order)) for order in ORDERS) == 2
