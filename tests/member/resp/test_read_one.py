"""A GET that comes alone may be answered past the queue, but never before what its client is owed."""

import asyncio

import pytest

from stele.core.kv.acl import User
from stele.native import compiled
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService

GET = encode_request([b"GET", b"key"])
VALUE = b"$5\r\nvalue\r\n"


class Reads(FakeKeyValueService):
    """Answers reads at once, always with the same value."""

    def read_now(self, keyspace, partitions, keys):
        return [b"value"] * len(keys)


@pytest.fixture
def store():
    return Reads()


class Connection:
    """Sends bytes and reads what they are answered with."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data):
        """Send bytes that get there by themselves."""
        self.writer.write(data)
        await asyncio.sleep(0.05)

    async def gets(self, expected):
        got = await asyncio.wait_for(self.reader.readexactly(len(expected)), 5)
        assert got == expected


@pytest.fixture
async def client(server):
    """A connection to the port for all clients."""
    made = Connection(*await asyncio.open_connection("127.0.0.1", server.port))
    yield made
    made.writer.close()


@pytest.fixture
async def cluster_client(server):
    """A connection to the port of Redis Cluster."""
    made = Connection(*await asyncio.open_connection("127.0.0.1", server.cluster_port))
    yield made
    made.writer.close()


@pytest.fixture
def taken(server, monkeypatch):
    """The answers that the shortcut has given."""
    answers, read_one = [], server.read_one

    def noted(session, data):
        answer = read_one(session, data)
        answers.extend([] if answer is None else [answer])
        return answer

    monkeypatch.setattr(server, "read_one", noted)
    return answers


async def test_a_get_alone_is_answered_at_once(client, server, taken):
    commands = server.facts()["total_commands_processed"]
    for request in (GET, encode_request([b"get", b"key"])):
        await client.send(request)
        await client.gets(VALUE)
    assert taken == ([VALUE, VALUE] if compiled else [])
    assert server.facts()["total_commands_processed"] == commands + 2
    assert server.waiting_bytes == 0


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        (b"MULTI", b"+OK\r\n+QUEUED\r\n"),
        (b"CLIENT REPLY SKIP", b""),
        (b"SUBSCRIBE c", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n-ERR Can't execute 'get'"),
        (b"HELLO 3\r\nCLIENT TRACKING ON", None),
    ],
)
async def test_what_the_connection_is_in_goes_first(client, taken, before, answer):
    await client.send(before + b"\r\n")
    client.writer.write(GET)
    client.writer.write_eof()
    received = await asyncio.wait_for(client.reader.read(), 5)
    assert not taken
    assert received.endswith(b"+OK\r\n_\r\n") if answer is None else received.startswith(answer)


async def test_a_get_in_two_parts_waits_for_its_end(client, server, taken):
    await client.send(GET[:9])
    assert server.waiting_bytes > 0
    await client.send(GET[9:])
    await client.gets(VALUE)
    assert not taken
    await client.send(GET)
    await client.gets(VALUE)
    assert len(taken) == bool(compiled)


async def test_a_get_behind_a_request_that_runs_is_answered_after_it(client, store, taken):
    gate = asyncio.Event()
    execute = store.execute

    async def slowly(*words, **more):
        await gate.wait()
        return await execute(*words, **more)

    store.execute = slowly
    await client.send(encode_request([b"SET", b"key", b"new"]))
    await client.send(GET)
    gate.set()
    await client.gets(b"+OK\r\n" + VALUE)
    assert not taken


async def test_only_a_key_of_this_member_is_read(cluster_client, store, taken):
    await cluster_client.send(GET)
    await cluster_client.gets(VALUE)
    assert len(taken) == bool(compiled)
    store.elsewhere = set(range(16_384))
    await cluster_client.send(GET)
    await cluster_client.gets(b"-MOVED ")
    assert len(taken) == bool(compiled)


async def test_a_user_with_less_than_all_rights_is_checked(client, server, taken, monkeypatch):
    await client.send(GET)
    await client.gets(VALUE)
    taken.clear()
    (session,) = server.sessions()
    session.guard = User("reader", keys=(), commands=frozenset({"get"}))
    await client.send(GET)
    await client.gets(b"-NOPERM ")
    assert not taken
