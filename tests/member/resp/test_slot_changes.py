"""CLIENT MAINT_NOTIFICATIONS: clients learn that slots have another owner before they are redirected."""

import asyncio
from pathlib import Path

import pytest
from redis.cluster import RedisCluster

from stele.member.resp import slot_changes
from stele.member.resp.server import start_resp_server
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.harness.cluster import cluster, eventually, key_in
from tests.member.resp.test_cluster_clients import CLUSTER_PORT
from tests.member.resp.test_cluster_protocol import PARTITIONS, talk


@pytest.fixture
def store():
    return FakeKeyValueService(PARTITIONS)


@pytest.fixture
async def server(store, monkeypatch):
    monkeypatch.setattr(slot_changes, "LOOK_SECONDS", 0.02)
    server = await start_resp_server(store, "127.0.0.1", 0)
    await server.listen_cluster("127.0.0.1", 0)
    yield server
    await server.close()


ON = (b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON", b"moving-endpoint-type", b"internal-ip")


async def test_a_client_hears_of_slots_that_have_another_owner(server, store):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.cluster_port)
    writer.write(encode_request((b"HELLO", b"3")) + encode_request(ON))
    await asyncio.wait_for(reader.readuntil(b"+OK\r\n"), 5)
    store.elsewhere = {6, 7}
    port = server.cluster_port
    source, target = b"10.0.0.1:%d" % port, b"10.0.0.2:%d" % port
    expected = b">3\r\n$9\r\nSMIGRATED\r\n:10\r\n*1\r\n*3\r\n"
    for word in (source, target, b"12288-16383"):
        expected += b"$%d\r\n%b\r\n" % (len(word), word)
    assert await asyncio.wait_for(reader.readexactly(len(expected)), 5) == expected
    writer.close()
    async with asyncio.timeout(5):
        while len(server.slot_changes):  # noqa: ASYNC110  its end is seen nowhere else
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("words", [(b"HELLO", b"2"), (b"RESET",)])
async def test_a_client_of_resp2_hears_of_nothing(server, store, words):
    """Not even once it speaks RESP3 again: it has to ask again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.cluster_port)
    writer.write(b"".join(map(encode_request, [(b"HELLO", b"3"), ON, words, (b"ECHO", b"now")])))
    await asyncio.wait_for(reader.readuntil(b"now\r\n"), 5)
    assert not len(server.slot_changes)
    store.elsewhere = {6, 7}
    await asyncio.sleep(0.1)
    writer.write(encode_request((b"PING",)))
    assert await asyncio.wait_for(reader.readline(), 5) == b"+PONG\r\n"
    writer.close()


async def test_one_timer_serves_a_client_that_asks_again_and_again(server, store):
    off = (b"CLIENT", b"MAINT_NOTIFICATIONS", b"OFF")
    requests = [(b"HELLO", b"3"), *[ON, off] * 50, ON, (b"ECHO", b"now")]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.cluster_port)
    writer.write(b"".join(map(encode_request, requests)))
    await asyncio.wait_for(reader.readuntil(b"now\r\n"), 5)
    maps = store.cluster_map
    looks = []
    store.cluster_map = lambda group: looks.append(1) or maps(group)
    await asyncio.sleep(0.1)
    assert len(looks) < 10
    writer.close()


async def test_who_may_ask(server):
    assert (await talk(server.cluster_port, ON))[0].startswith(b"-ERR CLIENT MAINT_NOTIFICATIONS needs RESP3")
    assert (await talk(server.port, ON))[0].startswith(b"-ERR unknown subcommand")
    (line,) = await talk(server.cluster_port, (b"CLIENT", b"MAINT_NOTIFICATIONS", b"MAYBE"))
    assert line == b"-ERR syntax error"


async def test_redis_py_knows_the_new_owner_before_it_is_redirected(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=6) as made:
        key = key_in(0, 6)
        host, port = made.members[0].host, made.ports[CLUSTER_PORT]
        with RedisCluster(host=host, port=port, protocol=3) as client:
            assert client.set(key, 1)
            slot, backup = client.keyslot(key), made.rows[0].replicas[1]
            assert backup is not None
            new_host = made.members[backup].host
            await made.swap(0, backup)

            async def owner() -> str:
                """Use the connections: the message is read with the next reply on one of them."""
                for number in range(1, 6):
                    await asyncio.to_thread(client.get, key_in(number, 6))
                return str(client.nodes_manager.get_node_from_slot(slot, None).host)

            assert await eventually(owner, lambda host: host == new_host, 10.0) == new_host
            assert client.get(key) == b"1"
