"""Replies of the cluster port, compared with those of a redis-server in cluster mode."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stele.core.kv.keyslot import SLOTS, slot_of
from stele.member.resp.server import start_resp_server
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.harness.reference import redis_cluster

PARTITIONS = 8
HERE = SLOTS // 2
"""Slots below are served, the others belong to another node."""

SCRIPTS = [
    "MGET b c | MGET {b}1 {b}2 | MSET b 1 c 2 | MSET {b}1 1 {b}2 2 | MGET {b}1 {b}2 | GET b",
    "DEL b c | UNLINK b c | EXISTS b c | TOUCH b c | MSETNX b 1 c 2 | SET b 1 | DEL b b",
    "MSET b | MSET b 1 c | MSETNX b 1 c | MGET | DEL | GET | GET b c | SET b 1 NX XX",
    "MULTI | SET b 1 | SET c 1 | EXEC | GET b | GET c | EXEC",
    "MULTI | MGET b c | EXEC | MULTI | SET b 1 | MSET b 1 c 2 | GET b | EXEC | GET b",
    "MULTI | SET b | SET b 1 | EXEC | MULTI | MGET | EXEC | MULTI | GET b c | EXEC | GET b",
    "MULTI | NOSUCH b c | SET b 1 | EXEC | GET b | MULTI | DEL | DISCARD | MULTI | WATCH b | EXEC",
    "MULTI | SET a 1 | SET b 1 | EXEC | GET b | EXEC",
    "MULTI | SET b 1 | GET a | DISCARD | GET b | MULTI | MGET a b | EXEC",
    "WATCH b c | WATCH a | MULTI | SET b 1 | EXEC | GET b",
    "WATCH b | SET b 2 | MULTI | SET b 1 | EXEC | GET b | WATCH | UNWATCH | DISCARD",
    "WATCH b | GET c | GET a | MULTI | GET b | EXEC",
    "GET a | SET a 1 | MGET a {a}1 | MGET a b | DEL a {a}1 | EXISTS a | TTL a | TYPE a | GET | SET a",
    "STRLEN a | EXPIRE a 10 | GETDEL a | INCR a | INCR a 1 | APPEND a | SETEX a 0 1 | SETEX b 0 1",
    "SSUBSCRIBE a | SSUBSCRIBE b c | SPUBLISH a 1 | SPUBLISH b | SSUBSCRIBE | PUBLISH a 1",
    "CLUSTER | CLUSTER KEYSLOT | CLUSTER KEYSLOT a b | CLUSTER KEYSLOT a | cluster keyslot {a}b",
    "CLUSTER KEYSLOT {}a | CLUSTER KEYSLOT {a | CLUSTER KEYSLOT {{a}} | CLUSTER KEYSLOT x{}{a}",
    "CLUSTER KEYSLOT {a\0b}c | CLUSTER KEYSLOT \0",
    "CLUSTER NOSUCH | CLUSTER SLOTS x | CLUSTER NODES x | CLUSTER INFO x | CLUSTER MYID x | CLUSTER SHARDS x",
    "CLUSTER HELP x | cluster Wrong a b",
    "READONLY | GET a | GET b | READWRITE | READONLY x | READWRITE x | ASKING x | ASKING | GET b",
    "ASKING | GET b | READONLY | MULTI | GET b | EXEC",
    "NOSUCH | NOSUCH a b | nosuch a 'b | DBSIZE x | FLUSHALL x | SELECT 0 | PING a b | ECHO",
    "CLIENT | CLIENT NOSUCH | CLIENT ID x | CLIENT GETNAME x | CLIENT SETNAME | CLIENT SETNAME a b",
    "CLIENT INFO x | CLIENT REPLY | CLIENT REPLY MAYBE | CLIENT HELP x | CONFIG | CONFIG NOSUCH | COMMAND NO",
    "MEMORY | MEMORY NOSUCH | MEMORY USAGE | MEMORY USAGE b | MEMORY USAGE a | MEMORY USAGE b SAMPLES",
    "MEMORY USAGE b SAMPLES x | MEMORY USAGE b SAMPLES -1 | MEMORY USAGE b MAYBE 1 | MEMORY HELP x",
    "MODULE | MODULE LIST | module list x | MODULE NOSUCH | MODULE HELP x",
    "EXEC | EXEC x | MULTI x | MULTI | EXEC x | DISCARD | RESET | MULTI | RESET | EXEC",
]  # fmt: skip

DIFFERENT = {
    "WATCH b | MULTI | SET c 1 | EXEC": b"-CROSSSLOT Keys in request don't hash to the same slot\r\n",
    "WATCH b | WATCH c | MULTI | SET b 1 | EXEC": (
        b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
    ),
    "MULTI | READONLY | DISCARD": (
        b"-ERR 'READONLY' cannot be used in a transaction: commands of one key, MGET, MSET, DEL, PUBLISH and"
        b" the like can\r\n"
    ),
    "CLUSTER COUNTKEYSINSLOT 0": b"-ERR unknown subcommand 'COUNTKEYSINSLOT'. Try CLUSTER HELP.\r\n",
    "CLUSTER GETKEYSINSLOT 0 1": b"-ERR unknown subcommand 'GETKEYSINSLOT'. Try CLUSTER HELP.\r\n",
    "SUNSUBSCRIBE a": b"sunsubscribe",
    "SELECT 1": b"+OK\r\n",
}
"""Scripts with a reply that is not that of Redis, and what it is here."""


def test_the_keys_are_where_the_scripts_need_them() -> None:
    assert slot_of(b"b") != slot_of(b"c")
    assert max(slot_of(b"b"), slot_of(b"c")) < HERE <= slot_of(b"a")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a redis-server that owns the first half of the slots."""
    folder: Path = tmp_path_factory.mktemp("redis")
    with redis_cluster(folder, HERE) as port:
        yield port


@pytest.fixture
async def server():
    store = FakeKeyValueService(PARTITIONS)
    store.elsewhere = set(range(PARTITIONS // 2, PARTITIONS))
    server = await start_resp_server(store, "127.0.0.1", 0)
    await server.listen_cluster("127.0.0.1", 0)
    yield server
    await server.close()


async def received(connect, port, script, protocol):
    """Everything that comes, with the same address in each redirection."""
    client = await connect(port)
    await client.send("HELLO", str(protocol))
    await client.send("FLUSHALL")
    client.received = b""
    await client.send(*script.replace("|", ";").split())
    return re.sub(rb"(-MOVED \d+) \S+", rb"\1 elsewhere", client.received)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_replies_are_those_of_redis(server, half, connect, script, protocol):
    ours = await received(connect, server.cluster_port, script, protocol)
    theirs = await received(connect, half, script, protocol)
    assert ours == theirs


@pytest.mark.parametrize("script", DIFFERENT)
async def test_what_differs_is_known(server, half, connect, script):
    expected = DIFFERENT[script]
    ours = await received(connect, server.cluster_port, script, 2)
    theirs = await received(connect, half, script, 2)
    assert expected in ours
    assert expected not in theirs
