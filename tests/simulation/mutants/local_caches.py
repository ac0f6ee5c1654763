"""Bugs planted in keyspaces with mode Invalidation."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.core.kv.local_cache import LocalCache
from stele.core.kv.local_keyspaces import LocalKeyspaces
from stele.member.tracking.local_caches import LocalCaches
from tests.simulation.local_clients import CURRENT
from tests.simulation.mutants.plant import Mutants


def hits_without_cover() -> AbstractContextManager[Any]:
    """A member answers hits although it hears of nobody."""
    return patch.object(LocalKeyspaces, "covered", lambda self, now: True)


def fills_overtake_changes() -> AbstractContextManager[Any]:
    """A fill is stored whatever has changed since its connection missed the key."""

    def fill(self: LocalCache, key: bytes, stored: Any, missed: int) -> bool:
        self._put(key, stored)
        return True

    return patch.object(LocalCache, "fill", fill)


def answered_before_others_dropped() -> AbstractContextManager[Any]:
    """A write waits for no member."""
    real = LocalCaches._tell_members

    async def tell(self: LocalCaches, keyspace: bytes, keys: Any) -> None:
        self._background.loop.create_task(real(self, keyspace, keys))

    return patch.object(LocalCaches, "_tell_members", tell)


LOCAL_CACHES: Mutants = {
    hits_without_cover: ("invalidation", 0, CURRENT),
    fills_overtake_changes: ("invalidation", 0, CURRENT),
    answered_before_others_dropped: ("invalidation", 0, CURRENT),
}
