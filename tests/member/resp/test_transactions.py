"""MULTI, EXEC and WATCH of one connection, compared with redis-server's own replies."""

import asyncio

import pytest
import redis.asyncio

from stele.core.kv.keyslot import partition_of, slot_of
from stele.core.kv.transaction import TRANSACTION_BYTES_MAX, TRANSACTION_COMMANDS_MAX, WATCHED_KEYS_MAX
from stele.errors import Unavailable
from stele.wire.resp import encode_request

SCRIPTS = {
    "all at once": "MULTI | SET {t}a 1 | INCR {t}a | GET {t}a | DEL {t}a {t}b | EXEC | GET {t}a",
    "an error in the middle": "MULTI | SET {t}a text | INCR {t}a | SET {t}b 1 | EXEC | GET {t}b",
    "discarded": "MULTI | SET {t}a 1 | DISCARD | GET {t}a | EXEC",
    "empty": "MULTI | EXEC",
    "nested": "MULTI | MULTI | SET {t}a 1 | EXEC | GET {t}a",
    "without multi": "EXEC | DISCARD",
    "a wrong number of arguments": "MULTI | SET {t}a | SET {t}a 1 | EXEC | GET {t}a",
    "arguments of exec": "MULTI | EXEC 1 | SET {t}a 1 | EXEC | GET {t}a",
    "arguments of multi": "MULTI 1 | EXEC",
    "watch in multi": "MULTI | WATCH {t}a | SET {t}a 1 | EXEC",
    "watch without keys": "WATCH | MULTI | EXEC",
    "watched and touched": "SET {t}a 1 | WATCH {t}a | SET {t}a 2 | MULTI | SET {t}a 3 | EXEC | GET {t}a",
    "watched, untouched": "SET {t}a 1 | WATCH {t}a | GET {t}a | MULTI | SET {t}a 3 | EXEC | GET {t}a",
    "watched while missing": "WATCH {t}a | SET {t}a 2 | MULTI | SET {t}a 3 | EXEC | GET {t}a",
    "unwatched": "WATCH {t}a | SET {t}a 2 | UNWATCH | MULTI | SET {t}a 3 | EXEC | GET {t}a",
    "watched for one exec": "WATCH {t}a | SET {t}a 2 | MULTI | EXEC | MULTI | SET {t}a 3 | EXEC",
    "discard unwatches": "WATCH {t}a | SET {t}a 2 | MULTI | DISCARD | MULTI | GET {t}a | EXEC",
    "there and back": "SET {t}a 1 | WATCH {t}a | SET {t}a 2 | SET {t}a 1 | MULTI | GET {t}a | EXEC",
    "many keys": "MULTI | MSET {t}a 1 {t}b 2 | MGET {t}a {t}b {t}c | EXISTS {t}a {t}b {t}a | EXEC",
    "many keys, wrong": "MULTI | MSET {t}a 1 {t}b | MGET | EXEC",
    "without keys": "MULTI | PING | PING hello | ECHO x | EXEC | WATCH {t}a | MULTI | PING | EXEC",
    "without keys, wrong": "MULTI | PING 1 2 | EXEC | MULTI | ECHO | EXEC",
    "reset": "WATCH {t}a | MULTI | SET {t}a 1 | RESET | GET {t}a | EXEC",
}


async def replies(port: int, script: str, protocol: int = 2) -> list[object]:
    """The replies to each request, errors as their text."""
    for _ in range(100):
        try:
            client = redis.asyncio.Connection(port=port, protocol=protocol)
            await client.connect()
            break
        except redis.ConnectionError:
            await asyncio.sleep(0.05)
    found: list[object] = []
    for request in ["FLUSHED", *script.split(" | ")]:
        words = ["DEL", "{t}a", "{t}b", "{t}c"] if request == "FLUSHED" else request.split()
        await client.send_command(*words)
        try:
            found.append(shown(await client.read_response()))
        except redis.RedisError as error:
            found.append(shown(error))
    await client.disconnect()
    return found[1:]


def shown(reply: object) -> object:
    if isinstance(reply, list):
        return [shown(each) for each in reply]
    return f"{type(reply).__name__} {reply}" if isinstance(reply, Exception) else reply


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_replies_are_those_of_redis(server, reference, name, protocol):
    script = SCRIPTS[name]
    assert await replies(server.port, script, protocol) == await replies(reference, script, protocol)


async def talk(port, *requests):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(map(encode_request, requests)))
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


async def test_an_aborted_exec_is_a_null_array(server):
    sent = (b"WATCH", b"k"), (b"SET", b"k", b"1"), (b"MULTI",), (b"EXEC",)
    assert await talk(server.port, *sent) == b"+OK\r\n+OK\r\n+OK\r\n*-1\r\n"
    hello = await talk(server.port, (b"HELLO", b"3"), (b"DEL", b"k"), *sent)
    assert hello.endswith(b"+OK\r\n_\r\n")


async def test_a_value_that_was_read_and_changed_back_is_noticed(server, store):
    """Else an update would be computed from 15 and stored over 10."""
    async with redis.asyncio.Redis(port=server.port) as other:
        await other.set("k", 10)
        async with redis.asyncio.Redis(port=server.port) as client, client.pipeline() as pipe:
            await pipe.watch("k")
            await other.set("k", 15)
            assert await pipe.get("k") == b"15"
            await other.set("k", 10)
            pipe.multi()
            pipe.set("k", 16)
            with pytest.raises(redis.WatchError):
                await pipe.execute()
        assert await other.get("k") == b"10"


async def test_redis_py_as_it_is(server):
    async with redis.asyncio.Redis(port=server.port) as client:
        async with client.pipeline() as pipe:
            assert await pipe.set("k", 1).incr("k").get("k").execute() == [True, 2, b"2"]

        async def double(pipe: redis.asyncio.client.Pipeline) -> None:
            value = int(await pipe.get("k"))
            pipe.multi()
            pipe.set("k", value * 2)

        assert await client.transaction(double, "k") == [True]
        assert await client.get("k") == b"4"


async def test_keys_of_two_partitions_are_refused_and_nothing_is_done(server, store):
    one, other = b"a", b"b"
    assert partition_of(one, store.partitions) != partition_of(other, store.partitions)
    answer = await talk(server.port, (b"MULTI",), (b"SET", one, b"1"), (b"SET", other, b"1"), (b"EXEC",))
    assert answer.splitlines()[3].startswith(b"-CROSSSLOT ")
    assert not any(store.data.values())
    watched = await talk(server.port, (b"WATCH", one), (b"MULTI",), (b"SET", other, b"1"), (b"EXEC",))
    assert watched.splitlines()[3].startswith(b"-CROSSSLOT ")


async def test_what_is_redirected_in_a_transaction_discards_it(server, store):
    store.elsewhere = {partition_of(b"k", store.partitions)}
    answer = await talk(server.cluster_port, (b"MULTI",), (b"SET", b"k", b"1"), (b"EXEC",))
    moved, aborted = answer.splitlines()[1:]
    assert moved == b"-MOVED %d 10.0.0.2:%d" % (slot_of(b"k"), server.cluster_port)
    assert aborted.startswith(b"-EXECABORT")
    outside = await talk(server.cluster_port, (b"WATCH", b"k"), (b"PING",))
    assert outside.splitlines() == [moved, b"+PONG"]


async def test_commands_without_keys_are_refused_in_a_transaction(server):
    for name in (b"SCAN", b"SELECT", b"INFO", b"STELE.ONCE", b"KEYS"):
        answer = await talk(server.port, (b"MULTI",), (name, b"0", b"1", b"SET", b"k", b"v"), (b"EXEC",))
        assert b"cannot be used in a transaction" in answer
        assert answer.splitlines()[2].startswith(b"-EXECABORT")


async def test_limits_have_errors_that_name_them(server):
    many = [(b"DEL", *(b"{t}%d" % n for n in range(TRANSACTION_COMMANDS_MAX + 1)))]
    answer = await talk(server.port, (b"MULTI",), *many, (b"EXEC",))
    assert b"transaction of more than 1000 commands" in answer
    value = b"v" * (TRANSACTION_BYTES_MAX // 2)
    answer = await talk(server.port, (b"MULTI",), *[(b"SET", b"k", value)] * 2, (b"EXEC",))
    assert b"exceeds the limit of 4194304" in answer
    assert b"-EXECABORT" in answer
    keys = [b"{t}%d" % n for n in range(WATCHED_KEYS_MAX)]
    answer = await talk(server.port, (b"WATCH", *keys), (b"WATCH", b"{t}more"), (b"PING",))
    assert answer.splitlines()[0] == b"+OK"
    assert answer.splitlines()[1].startswith(b"-ERR more than 1000 watched keys")


async def test_a_transaction_that_found_no_owner_is_over(server, store):
    store.failures = [Unavailable("no owner")]
    sent = (b"MULTI",), (b"SET", b"k", b"1"), (b"EXEC",), (b"EXEC",), (b"GET", b"k")
    lines = (await talk(server.port, *sent)).splitlines()
    assert lines[2:] == [b"-TRYAGAIN no owner", b"-ERR EXEC without MULTI", b"$-1"]


async def test_queued_commands_and_watched_keys_count_as_memory_until_they_are_gone(server):
    value = b"v" * 100_000
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

    async def send(*requests):
        writer.write(b"".join(map(encode_request, requests)))
        for _ in requests:
            await asyncio.wait_for(reader.readline(), 5)
        await asyncio.sleep(0.01)
        return server.waiting_bytes

    assert await send((b"WATCH", b"k" * 1000)) > 1000
    assert await send((b"MULTI",), (b"SET", b"k", value), (b"SET", b"k", value)) > 200_000
    assert await send((b"DISCARD",)) == 0
    assert await send((b"MULTI",), (b"SET", b"k", value)) > 100_000
    writer.close()
    for _ in range(500):
        if not server.waiting_bytes:
            break
        await asyncio.sleep(0.01)
    assert server.waiting_bytes == 0
