"""One suite for the `KeyValueService` of tablets: a member's own, and in memory.

The one in memory answers each command by the same `core.kv.commands`; the rest is a fake.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from stele.core.kv.commands import Failure, Reply, Simple
from stele.core.kv.keyspaces import Catalog, Settings
from stele.core.kv.transaction import EXEC
from stele.member.serving.router import RequestRouter
from stele.ports.key_value_service import KeyValueService
from stele.wire.transaction import encode_transaction
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.harness.single_member import ME, SingleMember

P = 0
KEYSPACE = b"default"
OK = Simple("OK")


class Owner(SingleMember):
    """It owns all partitions alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows = {p: m.Row(p, 1, (ME,)) for p in self.rows}
        self.format = SPOKEN.most


@pytest.fixture(params=["memory", "member"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyValueService]:
    if request.param == "memory":
        yield FakeKeyValueService(2)
        return
    member = Owner(tmp_path)
    await member.start()
    yield member.node.router
    await member.stop()


class Outcome:
    """As much of a future as a store tells."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def done(self) -> bool:
        return bool(self.told)

    def set_result(self, result: list[Reply]) -> None:
        self.told.append(result)

    def set_exception(self, exception: BaseException) -> None:
        self.told.append(exception)


async def do(
    store: KeyValueService, *commands: bytes, keyspace: bytes = KEYSPACE, partition: int = P
) -> list[Reply]:
    return await store.execute(partition, keyspace, [each.split() for each in commands])


async def test_commands_are_answered_one_by_one_and_in_order(store: KeyValueService) -> None:
    told = await do(store, b"SET k 1", b"GET k", b"INCR k", b"DEL k", b"GET k", b"DEL k")
    assert told == [OK, b"1", 2, 1, None, 0]


async def test_a_command_that_fails_says_why_and_the_others_are_done(store: KeyValueService) -> None:
    told = await do(store, b"SET k text", b"INCR k", b"GET k")
    assert (told[0], told[2]) == (OK, b"text")
    assert isinstance(told[1], Failure)


async def test_a_later_read_finds_what_was_written(store: KeyValueService) -> None:
    await do(store, b"SET k 1")
    assert await do(store, b"GET k") == [b"1"]
    now = store.read_now(KEYSPACE, [P, P], [b"k", b"none"])
    assert now in (None, [b"1", None])


async def test_keyspaces_and_partitions_are_apart(store: KeyValueService) -> None:
    assert store.group(KEYSPACE) == range(2)
    assert store.groups() == [range(2)]
    await do(store, b"SET k here")
    await do(store, b"SET k there", keyspace=b"other")
    await do(store, b"SET k beside", partition=1)
    assert await do(store, b"GET k") == [b"here"]
    assert await do(store, b"GET k", keyspace=b"other") == [b"there"]
    assert await do(store, b"GET k", partition=1) == [b"beside"]
    assert [await store.count(p, KEYSPACE) for p in (0, 1)] == [1, 1]


async def test_a_scan_goes_page_by_page_in_order(store: KeyValueService) -> None:
    keys = [b"k%d" % number for number in range(5)]
    for key in reversed(keys):
        await do(store, b"SET " + key + b" v")
    assert await store.scan(P, KEYSPACE, b"", 3) == (keys[:3], keys[2])
    assert await store.scan(P, KEYSPACE, keys[2], 3) == (keys[3:], None)
    assert await store.scan(P, KEYSPACE, b"", 5) == (keys, keys[-1]), "nobody looked further"
    assert await store.scan(P, KEYSPACE, keys[4], 5) == ([], None)
    assert await store.scan(P, b"other", b"", 5) == ([], None)
    assert (await store.count(P, KEYSPACE), await store.count(P, b"other")) == (5, 0)


async def test_what_expired_is_not_read(store: KeyValueService) -> None:
    await do(store, b"SET k v PX 1", b"SET l v PX 100000")
    for _ in range(100):
        if (await do(store, b"GET k")) == [None]:
            break
        await asyncio.sleep(0.002)
    assert await do(store, b"GET k", b"GET l") == [None, b"v"]


async def test_who_does_not_wait_is_told_once(store: KeyValueService) -> None:
    outcome: Any = Outcome()
    store.start(P, KEYSPACE, [[b"SET", b"k", b"1"], [b"GET", b"k"]], outcome)
    for _ in range(100):
        await do(store, b"GET k")
        await asyncio.sleep(0)
    assert outcome.told == [[OK, b"1"]]


async def test_facts_are_told_with_the_number_of_partitions(store: KeyValueService) -> None:
    facts = store.info()
    assert all(isinstance(value, str | int) for value in facts.values())


async def test_entries_get_the_expiry_of_their_keyspace(store: KeyValueService) -> None:
    """Whichever way they are written: as most of them are, in a transaction, or once."""
    declare(store, b"short", Settings(ttl_seconds=60))
    exec_body = encode_transaction([], [[b"SET", b"t", b"v"]])
    keyspace = b"short"
    await store.execute(
        P, keyspace, [[b"SET", b"a", b"v"], [b"INCR", b"n"], [b"SET", b"b", b"v", b"EX", b"9"]]
    )
    await store.execute(P, keyspace, [[EXEC, b"t", exec_body]])
    found = await store.execute(P, keyspace, [[b"TTL", key] for key in (b"a", b"n", b"b", b"t")])
    assert found == [60, 60, 9, 60]
    await store.execute(P, keyspace, [[b"PERSIST", b"n"], [b"INCR", b"n"]])
    assert await store.execute(P, keyspace, [[b"TTL", b"n"]]) == [-1]
    await store.execute(P, KEYSPACE, [[b"SET", b"a", b"v"]])
    assert await store.execute(P, KEYSPACE, [[b"TTL", b"a"]]) == [-1], "another keyspace"


def declare(store: KeyValueService, name: bytes, settings: Settings) -> None:
    if isinstance(store, FakeKeyValueService):
        store.keyspaces[name] = settings
    else:
        assert isinstance(store, RequestRouter)
        store._table.keyspaces.use(Catalog(1, {name.decode(): settings}))


async def test_a_cleared_keyspace_is_empty_and_others_are_as_they_were(store: KeyValueService) -> None:
    await do(store, b"SET a 1", b"SET b 2")
    await do(store, b"SET a 1", keyspace=b"other")
    await do(store, b"SET c 1", partition=1)
    await store.clear(P, KEYSPACE)
    assert await do(store, b"GET a", b"GET b", b"SET a 3") == [None, None, OK]
    assert await store.scan(P, KEYSPACE, b"", 5) == ([b"a"], None)
    assert [await store.count(p, KEYSPACE) for p in (0, 1)] == [1, 1]
    assert await do(store, b"GET a", keyspace=b"other") == [b"1"]


async def test_all_keyspaces_are_cleared_at_once(store: KeyValueService) -> None:
    await do(store, b"SET a 1")
    await do(store, b"SET a 1", keyspace=b"other")
    await store.clear(P, b"")
    assert [await store.count(P, name) for name in (KEYSPACE, b"other")] == [0, 0]
    await store.clear(P, b"")
    assert await do(store, b"GET a") == [None]
