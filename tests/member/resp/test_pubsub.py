"""SUBSCRIBE, PUBLISH and PUBSUB, compared with redis-server's own bytes; what a subscriber may cost."""

import asyncio
import re

import pytest
import redis.asyncio

from stele.member import limits
from stele.member.resp import pubsub
from stele.member.resp.pubsub_commands import CHANNELS_BYTES_MAX
from stele.member.resp.server import start_resp_server
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService

SCRIPTS = {
    "one channel": "a SUBSCRIBE x | b PUBLISH x 1 | b PUBLISH y 1 | a UNSUBSCRIBE x | b PUBLISH x 2",
    "several channels": "a SUBSCRIBE x y x | b PUBLISH y 1 | a UNSUBSCRIBE y z | a SUBSCRIBE y",
    "a pattern": "a PSUBSCRIBE n?w* | b PUBLISH news 1 | a PUNSUBSCRIBE n?w* | b PUBLISH new 2",
    "a channel and patterns": "a SUBSCRIBE x | a PSUBSCRIBE x* | a PSUBSCRIBE y* | b PUBLISH x 1",
    "reset": "a SUBSCRIBE x | a PSUBSCRIBE x* | a RESET | a GET k | b PUBLISH x 1",
    "escaped patterns": r"a PSUBSCRIBE h\*llo h[a-d]llo | b PUBLISH hbllo 1 | b PUBLISH h*llo 2",
    "negated patterns": "a PSUBSCRIBE h[^x]llo | b PUBLISH hxllo 1 | b PUBLISH hello 2",
    "all at once": "a SUBSCRIBE x | a UNSUBSCRIBE | a UNSUBSCRIBE | a PUNSUBSCRIBE | a GET k",
    "other patterns": "a PSUBSCRIBE x* | a UNSUBSCRIBE | a PUNSUBSCRIBE nothing | a PUNSUBSCRIBE | a SET k 1",
    "not allowed": "a SUBSCRIBE x | a GET k | a SET k | a DISCARD | a PUBLISH y 1 | a pInG | a NOSUCH",
    "ping": "a PING | a PING x | a PSUBSCRIBE x | a PING | a PING x | a PING x y | a PUNSUBSCRIBE x | a PING",
    "wrong numbers": "a SUBSCRIBE | a PSUBSCRIBE | b PUBLISH | b PUBLISH x | b PUBLISH x y z | b PUBSUB",
    "pubsub": (
        "a SUBSCRIBE x | b SUBSCRIBE x | a PSUBSCRIBE x* | b PSUBSCRIBE x* | c PUBSUB CHANNELS |"
        " c PUBSUB CHANNELS y* | c PUBSUB NUMSUB x y | c PUBSUB NUMSUB | c PUBSUB NUMPAT | c PUBLISH x 1"
    ),
    "pubsub, wrong": "c PUBSUB NUMPAT x | c PUBSUB HELP x | c PUBSUB CHANNELS x y | c PUBSUB NOSUCH",
    "pubsub, help": "c PUBSUB HELP",
    "sharded channels": (
        "a SSUBSCRIBE x y x | a SUBSCRIBE x | a PSUBSCRIBE x* | b SPUBLISH x 1 | b PUBLISH x 2 |"
        " b SPUBLISH z 1 | a SUNSUBSCRIBE x z | b SPUBLISH x 3 | a SUNSUBSCRIBE | a SUNSUBSCRIBE |"
        " a UNSUBSCRIBE"
    ),
    "sharded channels, the mode": (
        "a SSUBSCRIBE x | a GET k | a PING | a SPUBLISH y 1 | a UNSUBSCRIBE | a SUNSUBSCRIBE x | a GET k |"
        " a SSUBSCRIBE x | a RESET | a GET k | b SPUBLISH x 1"
    ),
    "sharded channels, pubsub": (
        "a SSUBSCRIBE x | b SSUBSCRIBE x | c PUBSUB SHARDCHANNELS | c PUBSUB SHARDCHANNELS y* |"
        " c PUBSUB SHARDNUMSUB x y | c PUBSUB SHARDNUMSUB | c PUBSUB CHANNELS | c PUBSUB NUMSUB x |"
        " c PUBSUB SHARDCHANNELS x y | c SSUBSCRIBE | c SPUBLISH x | c SPUBLISH x y z"
    ),
    "exec of a subscriber": "a SUBSCRIBE x | a EXEC | a EXEC x | a MULTI ; DISCARD | a WATCH k | a DISCARD",
    "queued": (
        "b SUBSCRIBE x | a MULTI ; SET k 1 ; PUBLISH x 1 ; SUBSCRIBE x y ; PSUBSCRIBE z* ; UNSUBSCRIBE y ;"
        " PING ; GET k ; ECHO 1 ; EXEC | b PING | c PUBLISH x 2 | a GET k | a EXEC"
    ),
    "queued, not run": (
        "a SUBSCRIBE x | b MULTI ; PUBLISH x 1 ; PUBLISH x ; EXEC | b MULTI ; PUBLISH x 1 ; DISCARD |"
        " b WATCH k | c SET k 2 | b MULTI ; PUBLISH x 1 ; EXEC | b MULTI ; PUBLISH x 3 ; PING 1 2 ; EXEC"
    ),
    "queued, sharded": (
        "a SSUBSCRIBE x | b MULTI ; SSUBSCRIBE y ; SPUBLISH x 1 ; SUNSUBSCRIBE ; PUBSUB SHARDNUMSUB x ;"
        " EXEC | b GET k"
    ),
    "names with NUL": (
        "a SUBSCRIBE x\0y x\0 \0 | a PSUBSCRIBE x\0* z\0? [\0]* | b PUBLISH x\0y 1 | b PUBLISH x 2 |"
        " b PUBLISH x\0 \0 | b PUBLISH \0 4 | c PUBSUB NUMSUB x\0y x x\0 | c PUBSUB CHANNELS x\0y* |"
        " a SSUBSCRIBE s\0 | b SPUBLISH s\0 1 | b SPUBLISH s 2 | a UNSUBSCRIBE x\0 | b PUBLISH x\0 5 |"
        " b PUBLISH z\0\0 6 | a PUNSUBSCRIBE z\0? | a RESET"
    ),
    "keys with NUL": (
        "a SET k\0 1 | a GET k | a GET k\0 | a APPEND k\0 \0x\0 | a GETRANGE k\0 0 -1 | a STRLEN k\0 |"
        " a TYPE k\0 | a MSET k\0 1 \0 2 | a MGET k\0 \0 k \0\0 | a MULTI ; INCR k\0 ; GET k\0 ; EXEC |"
        " a WATCH k\0 | b SET k\0 7 | a MULTI ; GET k\0 ; EXEC | a EXISTS k k\0 \0 | a DEL k \0 k\0 |"
        " a SET k 1\0 | a INCR k | a SET k 1 E\0X | a CLIENT SETNAME n\0 | a DEL k"
    ),
    "another protocol": (
        "a HELLO 3 | a SUBSCRIBE x | b PUBLISH x 1 | a GET k | a HELLO 2 | b PUBLISH x 2 | a GET k | a PING |"
        " a UNSUBSCRIBE | a HELLO 3 | a SSUBSCRIBE x | a PSUBSCRIBE x* | b SPUBLISH x 3 | a RESET |"
        " b SPUBLISH x 4 | b PUBLISH x 5 | a GET k | a PING"
    ),
    "the end of a subscriber": "a SUBSCRIBE x | a QUIT | b PUBLISH x 1 | b PUBSUB CHANNELS",
}

HELLO = re.compile(rb"\$\d\r\n[\d.]+(?=\r\n\$5\r\nproto)|(?<=id\r\n):\d+")
"""The version and the connection's id in a reply to HELLO, which differ."""


@pytest.fixture
async def server():
    server = await start_resp_server(FakeKeyValueService(), "127.0.0.1", 0)
    yield server
    await server.close()


async def conversation(connect, port, script, protocol):
    clients = {name: await connect(port) for name in "abc"}
    for client in clients.values():
        await client.send("HELLO", str(protocol))
        await client.send("DEL", "k")
        client.received = b""
    for step in script.split(" | "):
        name, *words = step.split()
        await clients[name].send(*words)
    for name, client in clients.items():
        if f"{name} QUIT" not in script:
            await client.settle()
    return {name: client.received for name, client in clients.items()}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_bytes_are_those_of_redis(server, reference, connect, name, protocol):
    script = SCRIPTS[name]
    ours = await conversation(connect, server.port, script, protocol)
    theirs = await conversation(connect, reference, script, protocol)
    for found in (ours, theirs):
        found["a"] = HELLO.sub(b"", found["a"])
    assert ours == theirs


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py_as_it_is(server, protocol):
    async with (
        redis.asyncio.Redis(port=server.port, protocol=protocol) as client,
        client.pubsub() as listener,
    ):
        await listener.subscribe("news")
        await listener.psubscribe("n*")
        assert await client.publish("news", "today") == 2
        found = [await listener.get_message(timeout=5) for _ in range(4)]
        assert [each["type"] for each in found] == ["subscribe", "psubscribe", "message", "pmessage"]
        assert await client.pubsub_channels() == [b"news"]
        assert await client.pubsub_numsub("news") == [(b"news", 1)]
        await listener.unsubscribe()


async def test_messages_come_between_replies_never_in_one(server, connect):
    """A client of RESP3 reads large replies, slowly, while messages arrive."""
    writer = await connect(server.port)
    await writer.send("SET", "k", "v" * 300_000)
    listener = await connect(server.port)
    await listener.send("HELLO", "3")
    await listener.send("SUBSCRIBE", "x")
    listener.received = b""
    for number in range(20):
        listener._writer.write(encode_request([b"GET", b"k"]) * 3)
        await writer.send("PUBLISH", "x", f"m{number}")
    await listener.settle(b"m19\r\n")
    rest = listener.received
    reply = b"$300000\r\n" + b"v" * 300_000 + b"\r\n"
    assert rest.count(reply) == 60
    rest = rest.replace(reply, b"").replace(b"$6\r\n=1003=\r\n", b"")
    messages = b"".join(
        b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$%d\r\nm%d\r\n" % (len(str(n)) + 1, n) for n in range(20)
    )
    assert rest == messages


@pytest.mark.parametrize(
    ("protocol", "words", "reply"),
    [
        (3, "HELLO 2", b"*14\r\n"),
        (3, "RESET", b"+RESET\r\n"),
        (3, "UNSUBSCRIBE x", b">3\r\n$11\r\nunsubscribe\r\n"),
        (2, "UNSUBSCRIBE x", b"*3\r\n$11\r\nunsubscribe\r\n"),
        (2, "RESET", b"+RESET\r\n"),
    ],
)
async def test_messages_come_before_a_command_that_changes_how_they_are_read(
    server, connect, protocol, words, reply
):
    """What waits while requests of the connection are under way is not written in another protocol's mode."""
    client = await connect(server.port)
    await client.send("HELLO", str(protocol))
    await client.send("SUBSCRIBE", "x")
    client.received = b""
    (session,) = server.sessions()
    pings = [[b"PING", b"%d" % number] for number in range(4)]
    client._writer.write(b"".join(map(encode_request, [*pings, [each.encode() for each in words.split()]])))
    connection = session.connection
    async with asyncio.timeout(5):
        while not connection.busy:  # noqa: ASYNC110  it has no event for it
            await asyncio.sleep(0)
    await server.pubsub.deliver(b"x", b"m")
    await client.settle()
    mark = b">" if protocol == 3 else b"*"
    message = mark + b"3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\nm\r\n"
    assert client.received.index(message) < client.received.index(reply)


async def test_nothing_arrives_after_the_end_of_a_subscription(server, connect):
    """A message that waits for its turn is not queued for a client that has unsubscribed meanwhile."""
    client = await connect(server.port)
    await client.send("SUBSCRIBE", "x")
    (session,) = server.sessions()
    publishing = asyncio.create_task(server.pubsub.deliver(b"x", b"m"))
    asyncio.get_running_loop().call_soon(server.pubsub.unsubscribe, session, b"x")
    server.turn_budget.spend(limits.TURN_ENTRIES_MAX, 0)
    assert await publishing == 0
    await client.settle()
    assert b"message" not in client.received


async def test_a_subscriber_that_never_reads_is_closed(server, connect, monkeypatch):
    monkeypatch.setattr(limits, "PUSH_BYTES_MAX", 1024 * 1024)
    stuck, other, writer = [await connect(server.port) for _ in range(3)]
    for client in (stuck, other):
        await client.send("SUBSCRIBE", "x")
    for _ in range(200):
        await writer.send("PUBLISH", "x", "m" * 100_000)
        await other.settle()
        other.received = b""
        assert server.pushes.held <= limits.PUSH_BYTES_MAX + 200_000
    assert server.facts()["push_clients_closed"] == 1
    assert await server.pubsub.deliver(b"x", b"1") == 1
    assert server.facts()["push_bytes"] < 1000


async def test_the_clients_that_hold_most_are_closed_when_all_hold_too_much(server, connect, monkeypatch):
    monkeypatch.setattr(limits, "PUSHES_BYTES_MAX", 1024 * 1024)
    stuck = [await connect(server.port) for _ in range(4)]
    writer = await connect(server.port)
    for number, client in enumerate(stuck):
        await client.send("SUBSCRIBE", *"abcd"[: number + 1])
    for _ in range(100):
        for channel in "abcd":
            await writer.send("PUBLISH", channel, "m" * 50_000)
        assert server.pushes.held <= limits.PUSHES_BYTES_MAX
    assert server.pushes.closed >= 2


async def test_subscriptions_are_bounded(server, connect, monkeypatch):
    client = await connect(server.port)
    await client.send("HELLO", "3")
    client.received = b""
    await client.send("SUBSCRIBE", *(f"c{number}" for number in range(100_000)))
    assert b"-ERR 100000 subscriptions of this connection exceed the limit of 10000" in client.received
    await client.send("PSUBSCRIBE", *(f"c{number}" for number in range(1001)))
    assert b"-ERR 1001 subscriptions of this connection exceed the limit of 1000" in client.received
    await client.send("PSUBSCRIBE", "x" * 1025)
    assert b"-ERR pattern of 1025 bytes is longer than the 1024 allowed" in client.received
    assert not server.pubsub.subscribed
    monkeypatch.setattr(pubsub, "SUBSCRIPTIONS_BYTES_MAX", 100_000)
    await client.send("SUBSCRIBE", *(f"c{number}" for number in range(1000)))
    assert b"exceed the limit of 100000; connect to another member" in client.received
    monkeypatch.setattr(pubsub, "MEMBER_PATTERNS_MAX", 2)
    await client.send("PSUBSCRIBE", "a*", "b*", "c*")
    assert b"-ERR clients of this member subscribe to 2 patterns, which is the limit" in client.received
    await client.send("SUBSCRIBE", "still")
    assert server.pubsub.subscribers(b"still") == 1


async def test_errors_show_all_of_a_name_with_nul(server, connect):
    """Redis shows the part before it."""
    client = await connect(server.port)
    await client.send("NO\0SUCH", "a\0b")
    assert client.received.startswith(b"-ERR unknown command 'NO?SUCH', with args beginning with: 'a?b' \r\n")


async def test_lists_of_channels_are_bounded(server, connect):
    client, subscriber = await connect(server.port), await connect(server.port)
    size = CHANNELS_BYTES_MAX // 4
    for letter in "abcd":
        await subscriber.send("SUBSCRIBE", letter * size)
    await subscriber.send("SSUBSCRIBE", "a" * (CHANNELS_BYTES_MAX + 1))
    await client.send("PUBSUB", "CHANNELS")
    assert client.received.startswith(b"*4\r\n"), "as long as may be"
    await subscriber.send("SUBSCRIBE", "e")
    client.received = b""
    await client.send("PUBSUB", "CHANNELS")
    await client.send("PUBSUB", "SHARDCHANNELS")
    text = b"-ERR names of 1048577 bytes exceed the limit of 1048576; pass a narrower pattern\r\n"
    assert client.received.count(text) == 2
    client.received = b""
    await client.send("PUBSUB", "CHANNELS", "[e-z]*")
    assert client.received.startswith(b"*1\r\n$1\r\ne\r\n")


async def test_nothing_stays_of_a_connection_that_ended(server, connect):
    clients = [await connect(server.port) for _ in range(20)]
    for number, client in enumerate(clients):
        await client.send("SUBSCRIBE", "x", f"x{number}")
        await client.send("PSUBSCRIBE", "x*", f"x{number}*")
    for client in clients:
        client.close()
    async with asyncio.timeout(10):
        while server.pubsub.subscribed:  # noqa: ASYNC110  the server has no event for it
            await asyncio.sleep(0.01)
    assert server.pubsub._held_bytes == 0
    assert server.pushes.held == 0


async def test_names_and_messages_are_any_bytes(server):
    async with redis.asyncio.Redis(port=server.port) as client, client.pubsub() as listener:
        name = b"a\0\r\n\xff"
        await listener.subscribe(name)
        await listener.psubscribe(b"a\0*")
        assert await client.publish(name, b"\0\r\n") == 2
        found = [await listener.get_message(timeout=5) for _ in range(4)]
        assert [(each["channel"], each["data"]) for each in found[2:]] == [(name, b"\0\r\n")] * 2


async def test_patterns_that_explode_hold_nobody_up(server, connect):
    """Other clients are served between the comparisons."""
    client, writer = await connect(server.port), await connect(server.port)
    await client.send("PSUBSCRIBE", *(f"*{'[^b]' * 200}b{number}*" for number in range(20)))
    publishing = asyncio.create_task(writer.send("PUBLISH", "a" * 20_000, "m"))
    other = await connect(server.port)
    served = 0
    while not publishing.done():
        await other.send("GET", "k")
        served += 1
    await publishing
    assert served > 5
    assert server.turn_budget.entries_max <= limits.TURN_ENTRIES_MAX


async def test_a_queue_can_be_replaced_by_one_message(server, connect):
    client = await connect(server.port)
    await client.send("HELLO", "3")
    await client.send("SUBSCRIBE", "x")
    client.received = b""
    (session,) = server.sessions()
    pushes = session.connection.pushes
    pushes.send(b"$1\r\na\r\n", "tracking")
    pushes.send(b"$1\r\nb\r\n")
    pushes.replace(b"$1\r\nc\r\n", "tracking")
    await client.settle()
    assert client.received.startswith(b"$1\r\nb\r\n$1\r\nc\r\n")
    assert pushes.held_bytes == 0
