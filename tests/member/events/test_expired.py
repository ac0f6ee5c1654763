"""Which expired entries services are informed of, when, and how many may wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stele.core.tablet.log import Log
from stele.member import limits
from stele.member.events.expired import ExpiredEntries
from stele.wire.storage.log_record import Change

P, TERM = 3, 4


class Tablet:
    """A replica of an owner, with one operation for each that is appended."""

    def __init__(self) -> None:
        self.log = Log()
        self.replica: Any = SimpleNamespace(
            partition=P, owner=SimpleNamespace(term=TERM), tablet=SimpleNamespace(log=self.log)
        )
        self.heard: list[tuple[int, str, list[bytes]]] = []
        tablets: Any = SimpleNamespace(replicas={P: self.replica})
        background: Any = SimpleNamespace(spawn=asyncio.ensure_future)
        self.entries = ExpiredEntries(tablets, self.hear, True, background)

    async def hear(self, partition: int, keyspace: str, keys: list[bytes]) -> None:
        self.heard.append((partition, keyspace, keys))

    def remove(self, *keys: bytes) -> None:
        self.log.append(TERM, 1, 10)
        self.entries.removed(self.replica, [Change(b"default", key, None) for key in keys])

    async def second(self) -> list[tuple[int, str, list[bytes]]]:
        self.entries.every_second()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found, self.heard = self.heard, []
        return found


async def test_they_are_reported_once_when_their_removal_is_applied() -> None:
    tablet = Tablet()
    tablet.remove(b"a", b"b")
    assert await tablet.second() == []
    tablet.log.commit(1)
    tablet.log.apply(1)
    tablet.remove(b"c")
    assert await tablet.second() == [(P, "default", [b"a", b"b"])]
    assert await tablet.second() == []
    tablet.log.commit(2)
    tablet.log.apply(2)
    assert await tablet.second() == [(P, "default", [b"c"])]
    assert tablet.entries._held_bytes == 0


@pytest.mark.parametrize("owner", [None, SimpleNamespace(term=TERM + 1)])
async def test_what_waits_is_forgotten_when_the_owner_changes(owner: object) -> None:
    tablet = Tablet()
    tablet.remove(b"a")
    tablet.replica.owner = owner
    tablet.log.commit(1)
    tablet.log.apply(1)
    assert await tablet.second() == []
    assert tablet.entries._held_bytes == 0


async def test_many_come_in_pages_and_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tablet = Tablet()
    monkeypatch.setattr(limits, "EXPIRED_BYTES_MAX", 70 * limits.SCAN_KEYS_MAX)
    tablet.remove(*(b"%03d" % n for n in range(limits.SCAN_KEYS_MAX + 1)))
    tablet.remove(b"x" * 5000)
    tablet.log.commit(2)
    tablet.log.apply(2)
    assert [len(keys) for _, _, keys in await tablet.second()] == [limits.SCAN_KEYS_MAX, 1]
    tablet.remove(b"x" * 5000)
    tablet.log.commit(3)
    tablet.log.apply(3)
    assert len(await tablet.second()) == 1
