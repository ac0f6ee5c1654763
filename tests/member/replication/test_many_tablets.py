"""A member that begins to own thousands of tablets looks at each of them once."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from stele.adapters.memory.engine import MemoryEngine
from stele.core.tablet.follower import Tablet
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.log import Log
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.table_cache import TableCache
from stele.member.replication.tablet_store import TabletStore
from stele.wire.storage.volume import Consensus, TableFile


class Loop:
    """Collects what is to run soon."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], None], context: object = None) -> None:
        self.soon.append(callback)


def replicator_in(loop: Loop) -> Replicator:
    anything = cast(Any, None)
    return Replicator(
        TabletStore(MemoryEngine(), TableCache(TableFile())),
        anything,
        (LeaseGrantor(0.0, 1.0), LeaseHolder()),
        links={},
        delayed_replies=anything,
        gate=anything,
        loop=cast(Any, loop),
        serving=anything,
        wants_promise=anything,
    )


def replica(partition: int) -> Replica:
    return Replica(Tablet(partition, 0, Log(), 0), None, Consensus())


@pytest.mark.plain
def test_owners_that_begin_in_one_turn_are_visited_together() -> None:
    loop = Loop()
    replicator = replicator_in(loop)
    for partition in range(100):
        replicator.own(replica(partition))
    assert len(loop.soon) == 1
    loop.soon.pop()()
    replicator.own(replica(1))
    assert len(loop.soon) == 1


@pytest.mark.plain
def test_owners_that_begin_in_many_turns_are_visited_once_each() -> None:
    """Rows are adopted in parts: with a visit of all for each part the cost would be the square."""
    loop, visited = Loop(), list[int]()
    replicator = replicator_in(loop)
    replicator._visit = lambda found: visited.extend(each.partition for each in found)  # type: ignore[method-assign]
    for part in range(10):
        for partition in (0, 1, 1):
            replicator.own(replica(2 * part + partition))
        loop.soon.pop()()
    assert visited == list(range(20))
    replicator.tick()
    assert visited == 2 * list(range(20))
