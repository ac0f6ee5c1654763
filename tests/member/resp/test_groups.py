"""A keyspace with partitions of its own: every command finds its entries there, and nowhere else."""

import asyncio

import pytest
import redis.asyncio

from stele.core.kv.keyslot import partition_of, slot_of
from stele.member.resp import slot_changes
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.resp.test_cluster_protocol import PARTITIONS, talk
from tests.member.resp.test_slot_changes import ON

OWN = range(PARTITIONS + 2, PARTITIONS + 5)
KEYS = [b"", *(b"k%d" % n for n in range(20))]


@pytest.fixture
def store():
    store = FakeKeyValueService(PARTITIONS)
    store.own_groups = {b"others": range(PARTITIONS, OWN.start), b"sessions": OWN}
    return store


def place(key: bytes) -> int:
    return OWN.start + partition_of(key, len(OWN))


def used(store) -> set[int]:
    return {partition for partition, keyspace in store.data if store.data[partition, keyspace]}


async def connected(server) -> redis.asyncio.Redis:
    client = redis.asyncio.Redis(port=server.port, single_connection_client=True)
    await client.execute_command("SELECT", "sessions")
    return client


async def test_each_command_finds_the_partition_of_its_keyspace(server, store):
    async with await connected(server) as client:
        await client.mset(dict.fromkeys(KEYS, b"v"))
        assert {(p, key) for p, _ in store.data for key in store.data[p, b"sessions"]} == {
            (place(key), key) for key in KEYS
        }
        assert await client.mget(KEYS) == [b"v"] * len(KEYS)
        sent = [(b"SELECT", b"sessions"), (b"INCR", b"n"), (b"INCR", b"n"), (b"DEL", b"n"), (b"STRLEN", b"n")]
        assert await talk(server.port, *sent) == [b"+OK", b":1", b":2", b":1", b":0"]
        assert await client.memory_usage("k1") == 3
        assert await client.execute_command("MSETNX", "{n}a", "1", "{n}b", "2") == 1
        assert await client.delete("{n}a", "{n}b") == 2
        assert used(store) <= set(OWN)
    async with redis.asyncio.Redis(port=server.port) as client:
        assert (await client.dbsize(), await client.get("k1")) == (0, None)


@pytest.mark.parametrize("count", [1, 3, 1000])
async def test_scan_counts_inside_of_the_group(server, store, count):
    async with await connected(server) as client:
        await client.mset(dict.fromkeys(KEYS, b"v"))
        assert sorted([key async for key in client.scan_iter(count=count)]) == sorted(KEYS)
        assert await client.dbsize() == len(KEYS)
        with pytest.raises(redis.ResponseError, match="invalid cursor"):
            await client.scan(len(OWN) << 49)


async def test_flushdb_clears_the_group_and_flushall_everything(server, store):
    async with await connected(server) as client, redis.asyncio.Redis(port=server.port) as outside:
        for _ in range(2):
            await client.mset(dict.fromkeys(KEYS, b"v"))
            await outside.mset(dict.fromkeys(KEYS, b"v"))
            await client.flushdb()
            assert 0 < len(used(store) & set(range(PARTITIONS))) == len(used(store))
            await client.set("k", "v")
            await outside.flushall()
            assert not used(store)


async def test_transactions_run_where_the_keys_are(server, store):
    begun = [(b"SELECT", b"sessions"), (b"SET", b"k", b"1"), (b"WATCH", b"k")]
    assert (await talk(server.port, *begun, (b"MULTI",), (b"INCR", b"k"), (b"EXEC",)))[-1] == b"*1"
    assert used(store) == {place(b"k")}
    touched = [*begun, (b"SET", b"k", b"3"), (b"MULTI",), (b"INCR", b"k"), (b"EXEC",)]
    assert (await talk(server.port, *touched))[-1] == b"*-1"


@pytest.mark.parametrize("port", ["port", "cluster_port"])
async def test_a_key_that_is_watched_in_another_keyspace_is_compared_there(server, store, port):
    """In the partitions of the other keyspace it is missing, so it would never be found changed."""
    begun = [(b"WATCH", b"k"), (b"SELECT", b"sessions"), (b"MULTI",)]
    port = getattr(server, port)
    assert (await talk(port, *begun, (b"EXEC",)))[-1] == b"*0"
    assert (await talk(port, *begun, (b"SET", b"k", b"1"), (b"EXEC",)))[-1].startswith(b"-CROSSSLOT ")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(map(encode_request, begun)))
    await asyncio.wait_for(reader.readuntil(b"+OK\r\n" * 3), 5)
    await talk(port, (b"SET", b"k", b"2"))
    writer.write(encode_request((b"EXEC",)))
    assert await asyncio.wait_for(reader.readline(), 5) == b"*-1\r\n"
    writer.close()


# -- the Redis Cluster protocol


async def test_the_cluster_port_redirects_by_the_keyspace_of_the_connection(server, store):
    store.elsewhere = {place(b"k1")}
    select, get = (b"SELECT", b"sessions"), (b"GET", b"k1")
    moved = b"-MOVED %d 10.0.0.2:%d" % (slot_of(b"k1"), server.cluster_port)
    assert await talk(server.cluster_port, get, select, get) == [b"$-1", b"+OK", moved]


async def test_the_map_is_that_of_the_keyspace_of_the_connection(server, store):
    store.elsewhere = {OWN[0]}
    async with redis.asyncio.Redis(port=server.cluster_port, single_connection_client=True) as client:
        outside = await client.execute_command("CLUSTER", "SLOTS")
        await client.execute_command("SELECT", "sessions")
        own = await client.execute_command("CLUSTER", "SLOTS")
    assert [(first, last) for first, last, *_ in outside] == [(0, 16383)]
    assert [(first, last) for first, last, *_ in own] == [(0, 5461), (5462, 16383)]


async def test_on_the_cluster_port_a_member_answers_for_its_own_partitions(server, store):
    async with await connected(server) as client, redis.asyncio.Redis(port=server.port) as outside:
        await client.mset(dict.fromkeys(KEYS, b"v"))
        await outside.mset(dict.fromkeys(KEYS, b"v"))
    store.elsewhere = {0, OWN[0]}
    mine = [key for key in KEYS if place(key) != OWN[0]]
    async with redis.asyncio.Redis(port=server.cluster_port, single_connection_client=True) as client:
        await client.execute_command("SELECT", "sessions")
        assert sorted([key async for key in client.scan_iter(count=2)]) == sorted(mine)
        assert await client.dbsize() == len(mine)
        await client.flushall()
    assert used(store) == {0, OWN[0]}


async def test_only_clients_of_the_keyspace_hear_that_its_slots_have_moved(server, store, monkeypatch):
    monkeypatch.setattr(slot_changes, "LOOK_SECONDS", 0.02)
    opened = [await asyncio.open_connection("127.0.0.1", server.cluster_port) for _ in range(2)]
    for (reader, writer), keyspace in zip(opened, (b"sessions", b"default"), strict=True):
        requests = [(b"HELLO", b"3"), (b"SELECT", keyspace), ON, (b"ECHO", b"now")]
        writer.write(b"".join(map(encode_request, requests)))
        await asyncio.wait_for(reader.readuntil(b"now\r\n"), 5)
    store.elsewhere = {OWN[0]}
    assert b"0-5461\r\n" in await asyncio.wait_for(opened[0][0].readuntil(b"5461\r\n"), 5)
    opened[1][1].write(encode_request((b"PING",)))
    assert await asyncio.wait_for(opened[1][0].readline(), 5) == b"+PONG\r\n"
    for _, writer in opened:
        writer.close()
