"""A keyspace with mode Invalidation at three real members: local hits, and writes that empty the others."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest

from stele.core.kv.keyspaces import Mode, Settings
from tests.fakes.resp_client import Error
from tests.member.harness.caching import Connection, close_all
from tests.member.harness.cluster import Cluster, eventually

LEASE_SECONDS = 0.5
"""Of the harness."""
CLUSTER_PORT = 5
READ_PORT = 6
LOCAL = Settings(mode=Mode.INVALIDATION, local_cache_bytes=1 << 20)


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Close the connections of a test."""
    yield
    await close_all()


@pytest.fixture
async def local(three: Cluster) -> Cluster:
    """Members that cover each other, and take writes of the keyspace "local"."""
    await three.declare({"local": LOCAL})
    for member in range(3):
        connection = await connect(three, member)
        assert await connection.call("SET", "warm", "x") is not None

        async def hits(connection: Connection = connection) -> bool:
            await connection.call("SET", "warm", "x")
            return bool(await connection.call("GET", "warm") == b"x")

        await eventually(hits, bool)
    return three


async def connect(made: Cluster, member: int, port: int = 0) -> Connection:
    connection = await Connection.open(made.ports[port], made.members[member].host)
    await connection.call("HELLO", "3")
    await connection.call("SELECT", "local")
    return connection


async def test_a_value_is_where_it_was_put_and_a_write_drops_it_elsewhere(local: Cluster) -> None:
    one, two, three = [await connect(local, member) for member in range(3)]
    await one.call("SET", "k", "1")
    assert [await each.call("GET", "k") for each in (one, two, three)] == [b"1", None, None]
    for each in (two, three):
        assert str(await each.call("SET", "k", "1", "NX")) == str(await each.call("PING")).replace(
            "PONG", "OK"
        )
    assert [await each.call("GET", "k") for each in (one, two, three)] == [b"1"] * 3
    await two.call("SET", "k", "2")
    assert [await each.call("GET", "k") for each in (one, two, three)] == [None, b"2", None]
    assert await three.call("DEL", "k") == 0
    assert [await each.call("GET", "k") for each in (one, two, three)] == [None] * 3
    assert [await each.call("DBSIZE") for each in (one, two, three)] == [0, 0, 1]  # "warm" of the last one.


async def test_a_fill_that_is_late_is_refused(local: Cluster) -> None:
    one, two = [await connect(local, member) for member in range(2)]
    assert await one.call("GET", "k") is None
    await two.call("DEL", "k")
    assert await one.call("SET", "k", "old", "NX") is None
    assert await one.call("GET", "k") is None
    assert await one.call("SETNX", "k", "new") == 1
    assert await one.call("GET", "k") == b"new"


async def test_transactions_and_many_keys_are_local(local: Cluster) -> None:
    one, two = [await connect(local, member) for member in range(2)]
    keys = [f"k{number}" for number in range(20)]
    await one.call("MSET", *[part for key in keys for part in (key, "1")])
    assert await one.call("MGET", *keys) == [b"1"] * 20
    assert await two.call("MGET", *keys) == [None] * 20
    await two.call("MULTI")
    for key in keys:
        await two.call("SET", key, "2")
        await two.call("GET", key)
    assert (await two.call("EXEC"))[1::2] == [b"2"] * 20
    assert await one.call("MGET", *keys) == [None] * 20
    assert await two.call("DEL", *keys) == 20


async def test_what_needs_the_value_before_is_refused(local: Cluster) -> None:
    one = await connect(local, 0)
    for request in (
        ("INCR", "k"),
        ("SET", "k", "v", "XX"),
        ("MSETNX", "k", "v"),
        ("WATCH", "k"),
        ("SCAN", "0"),
    ):
        reply = await one.call(*request)
        assert isinstance(reply, Error)
        assert "is not possible in a keyspace with mode Invalidation" in reply.text
    await one.call("MULTI")
    await one.call("APPEND", "k", "v")
    assert isinstance(await one.call("EXEC"), Error)


@pytest.mark.parametrize("port", [CLUSTER_PORT, READ_PORT])
async def test_any_member_answers_clients_of_the_cluster_protocol(local: Cluster, port: int) -> None:
    keys = [f"k{number}" for number in range(30)]
    for member in range(3):
        connection = await connect(local, member, port)
        for key in keys:
            assert not isinstance(await connection.call("SET", key, str(member)), Error)
            assert await connection.call("GET", key) == b"%d" % member


async def test_flushdb_empties_all_members_and_no_other_keyspace(local: Cluster) -> None:
    one, two = [await connect(local, member) for member in range(2)]
    await one.call("SET", "k1", "1")
    await two.call("SET", "k2", "2")
    await one.call("SELECT", "0")
    await one.call("SET", "k", "kept")
    await two.call("FLUSHDB")
    assert await one.call("GET", "k") == b"kept"
    await one.call("SELECT", "local")
    assert [await one.call("GET", "k1"), await two.call("GET", "k2")] == [None, None]
    await one.call("SET", "k1", "1")
    await two.call("FLUSHALL")
    assert await one.call("GET", "k1") is None
    await one.call("SELECT", "0")
    assert await one.call("GET", "k") is None


async def test_clients_with_near_caches_are_told(local: Cluster) -> None:
    reader, writer = await connect(local, 0), await connect(local, 1)
    await reader.call("SET", "k", "1")
    await reader.call("CLIENT", "TRACKING", "ON")
    assert await reader.call("GET", "k") == b"1"
    await writer.call("SET", "k", "2")
    async with asyncio.timeout(10):
        while not any(b"k" in (push.items[1] or ()) for push in reader.pushed):
            await reader.read(0.5)


async def test_entries_expire(local: Cluster) -> None:
    one = await connect(local, 0)
    await one.call("SET", "k", "1", "PX", "200")
    assert 0 < int(await one.call("PTTL", "k")) <= 200
    await asyncio.sleep(0.25)
    assert await one.call("GET", "k") is None


async def test_a_member_that_stopped_answers_nothing_old(local: Cluster) -> None:
    """The write waits for a lease; the member that was stopped reads what its buffers have, and misses."""
    one, two = [await connect(local, member) for member in range(2)]
    await two.call("GET", "k")
    await two.call("SET", "k", "old", "NX")
    assert await two.call("GET", "k") == b"old"
    local.members[1].signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        await one.call("SET", "k", "new")
        took = time.monotonic() - began
        pending = asyncio.ensure_future(two.call("GET", "k"))
        await asyncio.sleep(0.1)
    finally:
        local.members[1].signal(signal.SIGCONT)
    assert await pending is None
    assert LEASE_SECONDS * 0.3 < took < 5 * LEASE_SECONDS
    for _ in range(50):
        assert await two.call("GET", "k") is None
        await asyncio.sleep(0.02)


async def test_a_member_that_died_holds_writes_up_for_a_lease_only(local: Cluster) -> None:
    one = await connect(local, 0)
    await one.call("SET", "k", "1")
    await local.members[2].kill()
    began = time.monotonic()
    await one.call("SET", "k", "2")
    assert time.monotonic() - began < 5 * LEASE_SECONDS
    await asyncio.sleep(2 * LEASE_SECONDS)
    assert await one.call("GET", "k") is None  # Not covered: the member that died could take writes.
    await local.restart(2)
    two = await connect(local, 2)

    async def hits() -> bool:
        await two.call("SET", "k", "3")
        return bool(await two.call("GET", "k") == b"3")

    await eventually(hits, bool)
    assert await one.call("GET", "k") is None
