"""Reads from backups as clients ask for them: READONLY, the port for reads, `Available` keyspaces."""

import asyncio

import pytest
import redis.asyncio

from stele.core.kv.announce import Announce
from stele.core.kv.cluster_map import backup_id, node_id
from stele.core.kv.keyslot import slot_of
from stele.member.resp.server import start_resp_server
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.resp.test_cluster_protocol import PARTITIONS, key_in, moved, talk

HERE, THERE, BACKED_UP = 0, 3, 6
"""Partitions: of this member, of another one, of another one with a backup here."""


@pytest.fixture
def store():
    store = FakeKeyValueService(PARTITIONS)
    store.elsewhere, store.backed_up = {THERE, BACKED_UP}, {BACKED_UP}
    for partition in (HERE, THERE, BACKED_UP):
        store.data[partition, b"default"] = {key_in(partition): (b"stored", 0)}
    return store


@pytest.fixture
async def server(store):
    server = await start_resp_server(store, "127.0.0.1", 0)
    await server.listen_cluster("127.0.0.1", 0)
    await server.listen_reads("127.0.0.1", 0)
    yield server
    await server.close()


GETS = [(b"STRLEN", key_in(partition)) for partition in (HERE, THERE, BACKED_UP)]


async def test_a_backup_answers_on_the_port_for_reads(server, store):
    lines = await talk(server.read_port, *GETS)
    assert lines == [b":6", moved(server, key_in(THERE)), b":6"]
    assert await talk(server.read_port, GETS[2]) == [b":6"]
    assert store.read_at_once == [(HERE, key_in(HERE)), (BACKED_UP, key_in(BACKED_UP))]


async def test_without_readonly_the_port_of_owners_redirects(server, store):
    redirected = [b":6", moved(server, key_in(THERE)), moved(server, key_in(BACKED_UP))]
    assert await talk(server.cluster_port, *GETS) == redirected
    lines = await talk(server.cluster_port, (b"READONLY",), *GETS, (b"READWRITE",), *GETS)
    assert lines == [b"+OK", b":6", redirected[1], b":6", b"+OK", *redirected]


async def test_reset_ends_readonly_but_on_the_port_for_reads(server):
    get = GETS[2]
    assert (await talk(server.cluster_port, (b"READONLY",), (b"RESET",), get))[2].startswith(b"-MOVED")
    assert (await talk(server.read_port, (b"READWRITE",), get))[1].startswith(b"-MOVED")
    assert (await talk(server.read_port, (b"READWRITE",), (b"RESET",), get))[2] == b":6"


async def test_writes_and_transactions_are_redirected_to_the_owner(server, store):
    key = key_in(BACKED_UP)
    lines = await talk(server.read_port, (b"SET", key, b"v"), (b"GETDEL", key), (b"WATCH", key), (b"MULTI",))
    assert lines == [moved(server, key)] * 3 + [b"+OK"]
    assert await talk(server.read_port, (b"MULTI",), (b"GET", key)) == [b"+OK", moved(server, key)]


async def test_what_the_backup_cannot_answer_yet_is_forwarded(server, store):
    """The client's map is right: it must not be redirected."""
    store.fresh = False
    lines = await talk(server.read_port, *GETS)
    assert lines == [b":6", moved(server, key_in(THERE)), b":6"]
    assert {partition for partition, *_ in store.calls} == {HERE, BACKED_UP}


async def test_many_keys_are_read_here_too(server, store):
    key = key_in(BACKED_UP)
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.read_port) as client:
        assert await client.mget(b"{%b}1" % key, b"{%b}2" % key) == [None, None]
        assert await client.exists(key) == 1


@pytest.mark.parametrize("command", [b"READONLY", b"READWRITE", b"ASKING"])
async def test_plain_clients_have_no_readonly(server, command):
    (line,) = await talk(server.port, (command,))
    assert line.startswith(b"-ERR This instance has cluster support disabled")


async def test_reads_of_an_available_keyspace_are_answered_here_on_every_port(server, store):
    assert await talk(server.port, GETS[2]) == [b":6"]
    assert store.read_at_once == []
    store.available.add(b"default")
    lines = await talk(server.port, GETS[2], (b"SELECT", b"other"), GETS[2])
    assert lines == [b":6", b"+OK", b":0"]
    assert store.read_at_once == [(BACKED_UP, key_in(BACKED_UP))]
    assert (await talk(server.cluster_port, GETS[2]))[0] == b":6"


async def test_the_map_names_backups_at_their_port(server, store):
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.cluster_port) as client:
        slots = await client.execute_command("CLUSTER SLOTS")
        nodes = await client.execute_command("CLUSTER NODES")
    assert slots[3] == [
        12288,
        14335,
        [b"10.0.0.2", server.cluster_port, node_id("uuid-1").encode(), []],
        [b"10.0.0.1", server.read_port, backup_id("uuid-0").encode(), []],
    ]
    assert [each["flags"] for each in nodes.values()] == ["myself,master", "master"]


async def test_announced_addresses_are_in_every_answer(server, store):
    store.announce = Announce("redis-{ordinal}.example.com", 7000, 8000, 1)
    (line,) = await talk(server.cluster_port, (b"SET", key_in(THERE), b"v"))
    assert line == b"-MOVED %d redis-1.example.com:7001" % slot_of(key_in(THERE))
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.cluster_port) as client:
        slots = await client.execute_command("CLUSTER SLOTS")
        nodes = await client.execute_command("CLUSTER NODES")
    assert [each[:2] for each in slots[3][2:]] == [
        [b"redis-1.example.com", 7001],
        [b"redis-0.example.com", 8000],
    ]
    assert set(nodes) == {"redis-0.example.com:7000", "redis-1.example.com:7001"}


async def test_what_a_connection_has_seen_is_given_back_with_it(server, store):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.read_port)
    writer.write(b"STRLEN %b\r\n" % key_in(HERE))
    assert await reader.readline() == b":6\r\n"
    (session,) = server.sessions()
    session.seen.saw(HERE, (1, 1), 0.0)
    assert server._seen_total.partitions == 1
    writer.close()
    async with asyncio.timeout(5):
        while server.facts()["connected_clients"]:  # noqa: ASYNC110  its end is seen nowhere else
            await asyncio.sleep(0.01)
    assert server._seen_total.partitions == 0
