"""The Redis Cluster protocol on its own port: what is redirected, in which order, and what the map says."""

import asyncio
from itertools import count, islice

import pytest
import redis.asyncio

from stele.core.kv.cluster_map import node_id
from stele.core.kv.keyslot import partition_of, slot_of
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService

PARTITIONS = 8


@pytest.fixture
def store():
    return FakeKeyValueService(PARTITIONS)


@pytest.fixture
async def client(server):
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.cluster_port) as client:
        yield client


def key_in(partition: int, number: int = 0) -> bytes:
    keys = (key for key in (b"k%d" % n for n in count()) if partition_of(key, PARTITIONS) == partition)
    return next(islice(keys, number, None))


async def talk(port: int, *requests: tuple[bytes, ...]) -> list[bytes]:
    """Pipeline all requests; one line for each, so none may have a longer reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(map(encode_request, requests)))
    lines = [await asyncio.wait_for(reader.readline(), 5) for _ in requests]
    writer.close()
    return [line.strip() for line in lines]


def moved(server, key: bytes) -> bytes:
    return b"-MOVED %d 10.0.0.2:%d" % (slot_of(key), server.cluster_port)


async def test_what_another_member_owns_is_redirected_in_the_order_of_requests(server, store):
    store.elsewhere = {3}
    here, there = key_in(0), key_in(3)
    sent = [(b"SET", here, b"1"), (b"SET", there, b"2"), (b"INCR", here), (b"incr", there), (b"INCR", here)]
    lines = await talk(server.cluster_port, *sent)
    assert lines == [b"+OK", moved(server, there), b":2", moved(server, there), b":3"]
    assert {partition for partition, _, _ in store.calls} == {0}
    assert (await talk(server.port, (b"SET", there, b"2"))) == [b"+OK"], "on the other port it is forwarded"


@pytest.mark.parametrize("name", [b"MGET", b"DEL", b"MSET", b"EXISTS"])
async def test_keys_of_two_slots_are_refused_even_here(server, name):
    one, other = key_in(0, 0), key_in(0, 1)
    request = (name, one, b"v", other, b"v") if name == b"MSET" else (name, one, other)
    assert await talk(server.cluster_port, request) == [
        b"-CROSSSLOT Keys in request don't hash to the same slot"
    ]


async def test_keys_of_one_slot_run_or_are_redirected_together(server, store):
    tagged = b"{%b}1" % key_in(3), b"{%b}2" % key_in(3)
    assert await talk(server.cluster_port, (b"MSET", tagged[0], b"1", tagged[1], b"2")) == [b"+OK"]
    store.elsewhere = {3}
    assert await talk(server.cluster_port, (b"DEL", *tagged)) == [moved(server, tagged[0])]
    many = [b"{%b}%d" % (key_in(3), n) for n in range(3000)]
    assert await talk(server.cluster_port, (b"DEL", *many)) == [moved(server, tagged[0])], "also in pieces"


async def test_wrong_arguments_are_an_error_before_they_are_redirected(server, store):
    store.elsewhere = set(range(PARTITIONS))
    lines = await talk(server.cluster_port, (b"MGET",), (b"NOSUCH", b"k"), (b"PING",))
    assert lines[0].startswith(b"-ERR wrong number of arguments")
    assert lines[1].startswith(b"-ERR unknown command")
    assert lines[2] == b"+PONG"


async def test_the_map_has_the_owners(server, store, client):
    store.elsewhere = {6, 7}
    slots = await client.execute_command("CLUSTER SLOTS")
    port = server.cluster_port
    assert slots == [
        [0, 12287, [b"10.0.0.1", port, node_id("uuid-0").encode(), []]],
        [12288, 16383, [b"10.0.0.2", port, node_id("uuid-1").encode(), []]],
    ]
    assert await client.execute_command("CLUSTER MYID") == node_id("uuid-0").encode()
    assert await client.execute_command("CLUSTER KEYSLOT", "{a}b") == slot_of(b"a")


async def test_the_map_in_the_text_of_nodes(server, store, client):
    store.elsewhere = {6, 7}
    nodes = await client.execute_command("CLUSTER NODES")
    port = server.cluster_port
    assert nodes[f"10.0.0.1:{port}"]["flags"] == "myself,master"
    assert nodes[f"10.0.0.1:{port}"]["slots"] == [["0", "12287"]]
    assert nodes[f"10.0.0.2:{port}"]["slots"] == [["12288", "16383"]]
    info = await client.execute_command("CLUSTER INFO")
    assert (info["cluster_state"], info["cluster_size"], info["cluster_known_nodes"]) == ("ok", "2", "2")


@pytest.mark.parametrize("protocol", [2, 3])
async def test_shards_are_maps(server, store, protocol):
    store.elsewhere = {6, 7}
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.cluster_port, protocol=protocol) as client:
        shards = await client.execute_command("CLUSTER SHARDS")
    first, second = map(as_dict, shards)
    assert sorted([first[b"slots"], second[b"slots"]]) == [[0, 12287], [12288, 16383]]
    (node,) = first[b"nodes"]
    assert as_dict(node)[b"role"] == b"master"
    assert isinstance(node, dict) == (protocol == 3)


def as_dict(found):
    return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))


async def test_scan_and_dbsize_are_of_this_member_alone(server, store, client):
    for partition in range(PARTITIONS):
        await client.set(key_in(partition), b"v")
    store.elsewhere = {0, 3, 7}
    assert await client.dbsize() == PARTITIONS - 3
    found = {key async for key in client.scan_iter(count=1)}
    assert found == {key_in(partition) for partition in set(range(PARTITIONS)) - store.elsewhere}
    store.elsewhere = set(range(PARTITIONS))
    assert await client.dbsize() == 0
    assert [key async for key in client.scan_iter()] == []


async def test_the_empty_key_is_scanned_by_its_owner_alone(server, store, client):
    await client.set(b"", b"v")
    assert [key async for key in client.scan_iter()] == [b""]
    store.elsewhere = {0}
    assert [key async for key in client.scan_iter()] == []


async def test_a_scan_of_one_key_at_a_time_goes_on_after_the_empty_key(server, store, client):
    await client.set(b"", b"v")
    await client.set(b"k", b"v")
    assert [key async for key in client.scan_iter(count=1)] == [b"", b"k"]


async def test_without_a_table_a_client_is_told_to_come_again(server, store):
    store.partitions = 0
    (line,) = await talk(server.cluster_port, (b"CLUSTER", b"SLOTS"))
    assert line.startswith(b"-CLUSTERDOWN ")


async def test_the_other_port_has_no_cluster(server):
    sent = (b"CLUSTER", b"SLOTS"), (b"READONLY",), (b"ASKING",)
    lines = await talk(server.port, *sent)
    assert all(line.startswith(b"-ERR This instance has cluster support disabled") for line in lines)
    assert await talk(server.cluster_port, (b"READONLY",), (b"READWRITE",), (b"ASKING",)) == [b"+OK"] * 3


async def test_modes_are_named(server, client):
    assert (await client.info())["cluster_enabled"] == 1
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.port) as plain:
        assert (await plain.info())["cluster_enabled"] == 0


@pytest.mark.parametrize("protocol", [2, 3])
async def test_info_has_the_sections_of_redis(server, client, protocol):
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.port, protocol=protocol) as plain:
        everything = await plain.execute_command("INFO", "everything")
        assert everything["redis_version"] == "7.4.0"
        assert everything["used_memory"] > 1_000_000
        assert everything["connected_clients"] == 1
        assert everything["role"] == "master"
        assert everything["stele_partitions"] == PARTITIONS
        assert set(await plain.info("replication")) == {"role", "connected_slaves"}
        assert set(await plain.execute_command("INFO", "CPU", "nosuch", "cluster")) == {
            "used_cpu_sys",
            "used_cpu_user",
            "cluster_enabled",
        }
        assert await plain.info("nosuch") == {}


async def test_a_wrong_subcommand_is_refused_and_help_has_the_right_ones(server, client):
    assert (await client.execute_command("CLUSTER HELP"))[1:-2] == [
        *(b"INFO", b"KEYSLOT", b"MYID", b"NODES", b"SHARDS", b"SLOTS")
    ]
    lines = await talk(
        server.cluster_port, (b"CLUSTER", b"FORGET", b"x"), (b"CLUSTER", b"KEYSLOT"), (b"CLUSTER",)
    )
    assert lines[0] == b"-ERR unknown subcommand 'FORGET'. Try CLUSTER HELP."
    assert b"wrong number of arguments for 'cluster|keyslot'" in lines[1]
    assert b"wrong number of arguments for 'cluster'" in lines[2]
