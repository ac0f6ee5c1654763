"""Sharded channels on the cluster port, compared with the bytes of a redis-server in cluster mode."""

import pytest

from stele.core.kv.keyslot import partition_of, slot_of
from stele.member import limits
from tests.fakes.key_value_service import FakeKeyValueService

X, OTHER = slot_of(b"x"), slot_of(b"y")
SCRIPTS = {
    "channels of one slot": "a SSUBSCRIBE x {x}1 | b SPUBLISH x 1 | b SPUBLISH {x}1 2 | a SUNSUBSCRIBE x",
    "channels of several slots": "a SSUBSCRIBE x y | a SSUBSCRIBE x | a SUNSUBSCRIBE x y | a SSUBSCRIBE y",
    "all": "a SSUBSCRIBE x | a SSUBSCRIBE y | b PUBSUB SHARDNUMSUB x y | a SUNSUBSCRIBE x | a SUNSUBSCRIBE",
    "in a transaction": "a SSUBSCRIBE x | b MULTI ; SPUBLISH x 1 ; EXEC",
    "a slot that moves": (
        "a SSUBSCRIBE x | a SSUBSCRIBE y | a SUBSCRIBE x | b SSUBSCRIBE x | ! | b PING | a PING |"
        " c PUBSUB SHARDCHANNELS | c SPUBLISH y 1 | c PUBLISH x 2"
    ),
    "the last channel moves": "a SSUBSCRIBE x | ! | a SUNSUBSCRIBE | a ECHO y",
}


@pytest.fixture
async def store():
    return FakeKeyValueService()


async def conversation(clients, script, move):
    for step in script.split(" | "):
        name, *words = step.split()
        if name == "!":
            await move()
        else:
            await clients[name].send(*words)
    for client in clients.values():
        await client.settle()
    return {name: client.received for name, client in clients.items()}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_bytes_are_those_of_redis(server, cluster_reference, connect, name, protocol):
    manager = await connect(cluster_reference)

    async def move():
        await manager.send("CLUSTER", "DELSLOTS", str(X))

    found = []
    for port, moved in (
        (server.cluster_port, lambda: server.pubsub.end_slots([X])),
        (cluster_reference, move),
    ):
        clients = {name: await connect(port) for name in "abc"}
        for client in clients.values():
            await client.send("HELLO", str(protocol))
            client.received = b""
        found.append(await conversation(clients, SCRIPTS[name], moved))
    if "!" in SCRIPTS[name]:
        await manager.send("CLUSTER", "ADDSLOTS", str(X))
    assert found[0] == found[1]


async def test_channels_of_other_members_are_redirected(server, store, connect):
    store.elsewhere.add(partition_of(b"x", store.partitions))
    clients = [await connect(server.cluster_port), await connect(server.port)]
    for words in ("SPUBLISH x 1", "SSUBSCRIBE x", "SSUBSCRIBE x {x}1", "SSUBSCRIBE x y", "SUNSUBSCRIBE x y"):
        for client in clients:
            client.received = b""
            await client.send(*words.split())
        wanted = b"-CROSSSLOT" if "y" in words else b"-MOVED %d 10.0.0.2:%d" % (X, server.cluster_port)
        assert clients[0].received.startswith(wanted)
        assert not clients[1].received.startswith(b"-")


async def test_unsubscribing_is_never_redirected(server, store, connect):
    """redis-py unsubscribes at the old owner when it knows the new one, and passes errors on to its user."""
    client = await connect(server.cluster_port)
    await client.send("SSUBSCRIBE", "x")
    store.elsewhere.add(partition_of(b"x", store.partitions))
    client.received = b""
    await client.send("SUNSUBSCRIBE", "x")
    await client.send("SUNSUBSCRIBE", "x")
    assert client.received.count(b"$12\r\nsunsubscribe\r\n$1\r\nx\r\n:0\r\n") == 2


async def test_subscriptions_of_the_plain_port_stay(server, connect):
    plain, cluster = await connect(server.port), await connect(server.cluster_port)
    for client in (plain, cluster):
        await client.send("SSUBSCRIBE", "x")
    await server.pubsub.end_slots([OTHER])
    assert server.pubsub.subscribers(b"x", sharded=True) == 2
    await server.pubsub.end_slots([X])
    assert server.pubsub.subscribers(b"x", sharded=True) == 1
    assert await server.pubsub.publish(b"x", b"1", sharded=True) == 1


async def test_slots_with_many_channels_move_in_turns(server, connect):
    client, other = await connect(server.cluster_port), await connect(server.port)
    await client.send("SSUBSCRIBE", *(f"{{x}}{number}" for number in range(5_000)))
    client.received = b""
    await server.pubsub.end_slots([X])
    await other.send("PING")
    await client.settle(b"{x}4999\r\n:0\r\n")
    assert client.received.count(b"sunsubscribe") == 5_000
    assert server.turn_budget.entries_max <= limits.TURN_ENTRIES_MAX
    assert not server.pubsub.subscribed
    assert server.pubsub._held_bytes == 0
    assert not server.pubsub._slots
