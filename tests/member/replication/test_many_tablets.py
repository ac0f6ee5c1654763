"""A member that begins to own thousands of tablets in one turn looks at all of them once."""

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


@pytest.mark.plain
def test_owners_that_begin_in_one_turn_share_one_tick() -> None:
    loop, anything = Loop(), cast(Any, None)
    leases = (LeaseGrantor(0.0, 1.0), LeaseHolder())
    replicator = Replicator(
        TabletStore(MemoryEngine(), TableCache(TableFile())),
        anything,
        leases,
        links={},
        delayed_replies=anything,
        gate=anything,
        loop=cast(Any, loop),
        serving=anything,
        wants_promise=anything,
    )
    for partition in range(100):
        replicator.own(Replica(Tablet(partition, 0, Log(), 0), None, Consensus()))
    assert len(loop.soon) == 1
    loop.soon.pop()()
    replicator.own(Replica(Tablet(1, 0, Log(), 0), None, Consensus()))
    assert len(loop.soon) == 1
