"""RESP server with clients that are not ours (redis-py, redis-cli, redis-benchmark) and with bare sockets."""

import asyncio
import shutil
import socket
import subprocess
import time

import pytest
import redis
import redis.asyncio

from stele.adapters.rate_limited_log import RateLimitedLog
from stele.core.kv.keyslot import partition_of
from stele.errors import Unavailable, Uncertain
from stele.member.resp import failures
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import start_resp_server
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService


@pytest.fixture
def store():
    return FakeKeyValueService()


@pytest.fixture
async def server(store):
    server = await start_resp_server(store, "127.0.0.1", 0)
    yield server
    await server.close()


@pytest.fixture
async def client(server):
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.port) as client:
        yield client


async def talk(port, sent, until_closed=False, replies=1):
    """Send bytes on a bare socket; all lines until the server closes, or the first ones."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        if until_closed:
            return await asyncio.wait_for(reader.read(), 5)
        return b"".join([await asyncio.wait_for(reader.readline(), 5) for _ in range(replies)])
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py_asyncio(server, protocol):
    async with redis.asyncio.Redis(host="127.0.0.1", port=server.port, protocol=protocol) as client:
        assert await client.ping()
        assert await client.echo("hi") == b"hi"
        assert await client.set("a", b"\x00\xff", ex=100)
        assert await client.get("a") == b"\x00\xff"
        assert 98 <= await client.ttl("a") <= 100
        assert await client.get("none") is None
        assert await client.set("a", "x", nx=True) is None
        assert await client.mset({"b": 1, "c": 2, "d": 3})
        assert await client.mget("b", "none", "d") == [b"1", None, b"3"]
        assert await client.exists("a", "b", "none", "b") == 3
        assert await client.delete("b", "c", "none") == 2
        assert await client.incrby("n", 5) == 5
        assert await client.dbsize() == 3
        assert await client.client_setname("me")
        assert await client.client_getname() in (b"me", "me")
        assert (await client.info())["stele_partitions"] == 271


async def test_client_list_names_the_connections_that_are_asked_for(server, client):
    async with redis.asyncio.Redis(port=server.port) as other:
        mine, others = await client.client_id(), await other.client_id()
        assert [line["id"] for line in await client.client_list(client_id=[mine])] == [str(mine)]
        assert len(await client.client_list(client_id=[mine, others, 999])) == 2
        assert len(await client.client_list()) == 2
    for wrong in ("ID", "TYPE normal", "ID x"):
        with pytest.raises(redis.ResponseError):
            await client.execute_command("CLIENT", "LIST", *wrong.split())


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("requests", "replies"),
    [
        ("CLIENT REPLY OFF|PING|SET k v|GET k|MGET k k|CLIENT REPLY ON|GET k", b"+OK $1 v"),
        ("CLIENT REPLY SKIP|PING|GET k|CLIENT REPLY SKIP|CLIENT REPLY ON|PING", b"$-1 +OK +PONG"),
        ("CLIENT REPLY OFF|CLIENT REPLY SKIP|PING|PING|CLIENT REPLY ON", b"+OK"),
        ("WATCH k|SET k v|MULTI|CLIENT REPLY SKIP|DISCARD|CLIENT REPLY SKIP|EXEC|PING", None),
        ("CLIENT REPLY OFF|NOSUCH|RESET|PING", b"+RESET +PONG"),
        ("CLIENT REPLY OFF|HELLO 3|SUBSCRIBE c|CLIENT REPLY ON", b">3 $9 subscribe $1 c :1 +OK"),
    ],
)
async def test_replies_are_withheld_while_the_client_wants_none(server, requests, replies, together):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for request in requests.split("|"):
        writer.write(encode_request([word.encode() for word in request.split()]))
        if not together:
            await asyncio.sleep(0.02)
    writer.write(b"ECHO end\r\n")
    found = await asyncio.wait_for(reader.readuntil(b"end\r\n"), 5)
    assert replies is None or b" ".join(found.split()[:-2]) == replies
    writer.close()


async def test_time_is_that_of_the_member(client):
    seconds, microseconds = await client.time()
    assert abs(seconds + microseconds / 1e6 - time.time()) < 60


async def test_redis_py_sync(server):
    def use():
        with redis.Redis(host="127.0.0.1", port=server.port, decode_responses=True) as client:
            client.set("k", "v")
            with client.pipeline(transaction=False) as pipe:
                for number in range(3000):
                    pipe.set(f"k{number}", number)
                    pipe.get(f"k{number}")
                replies = pipe.execute()
            return replies, client.get("k"), sorted(client.scan_iter(count=100))

    replies, value, keys = await asyncio.to_thread(use)
    assert replies[1::2] == [str(number) for number in range(3000)]
    assert value == "v"
    assert keys == sorted(["k", *(f"k{number}" for number in range(3000))])


async def run(*args):
    process = await asyncio.create_subprocess_exec(*args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode()


@pytest.mark.parametrize("flag", ["-2", "-3"])
async def test_redis_cli(server, flag):
    assert shutil.which("redis-cli"), "install the Debian package redis-tools"
    cli = ("redis-cli", flag, "-p", str(server.port))
    assert await run(*cli, "SET", "k", "v") == (0, "OK\n")
    assert await run(*cli, "-n", "2", "GET", "k") == (0, "\n")
    assert await run(*cli, "MGET", "k", "none") == (0, "v\n\n")
    _, text = await run(*cli, "KEYS", "*")
    assert text.startswith("ERR KEYS is not supported")
    _, text = await run(*cli, "LPUSH", "list", "v")
    assert text.startswith("ERR unknown command 'LPUSH', with args beginning with: 'list' 'v'")
    assert await run(*cli, "--scan", "--pattern", "k*") == (0, "k\n")


async def test_redis_benchmark(server):
    port = str(server.port)
    code, text = await run(
        "redis-benchmark",
        "-p",
        port,
        "-t",
        "ping_inline,ping,set,get,incr,mset",
        "-n",
        "400",
        "-P",
        "8",
        "--csv",
    )
    assert code == 0, text
    assert '"MSET (10 keys)"' in text


async def test_keyspaces_are_apart(client, server, store):
    await client.set("k", "default")
    for name, value in (("orders", "o"), ("7", "seven")):
        async with redis.asyncio.Redis(
            host="127.0.0.1", port=server.port, single_connection_client=True
        ) as one:
            await one.execute_command("SELECT", name)
            assert await one.get("k") is None
            await one.set("k", value)
            await one.execute_command("SELECT", "0")
            assert await one.get("k") == b"default"
    partition = partition_of(b"k", store.partitions)
    assert store.data[partition, b"orders"][b"k"] == (b"o", 0)
    assert store.data[partition, b"db7"][b"k"] == (b"seven", 0)


@pytest.mark.parametrize("wrong", ["-1", "Upper", "a_b", "", "x" * 64])
async def test_a_bad_keyspace_is_refused(client, wrong):
    with pytest.raises(redis.ResponseError, match="invalid DB index"):
        await client.execute_command("SELECT", wrong)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("AUTH", "x"), "without any password configured for the default user"),
        (("HELLO", "4"), "unsupported protocol version"),
        (("HELLO", "2", "AUTH", "default"), "Syntax error in HELLO option 'AUTH'"),
        (("AUTH", "a", "b", "c"), "syntax error"),
        (("HELLO", "2", "WAT"), "Syntax error in HELLO option"),
        (("GET",), "wrong number of arguments for 'get' command"),
        (("MSET", "a"), "wrong number of arguments for 'mset' command"),
        (("MSET", "a", "1", "b"), "wrong number of arguments for 'mset' command"),
        (("DEL",), "wrong number of arguments for 'del' command"),
        (("SCAN", "x"), "invalid cursor"),
        (("SCAN", "9223372036854775807"), "invalid cursor"),
        (("SCAN", "-5"), "invalid cursor"),
        (("SCAN", "0", "COUNT", "0"), "syntax error"),
        (("SCAN", "0", "MATCH"), "syntax error"),
        (("SCAN", "0", "MATCH", "a", "match", "b"), "syntax error"),
        (("CLIENT", "KILL"), "unknown subcommand"),
        (("CLIENT", "SETNAME", "a b"), "Client names cannot contain spaces"),
        (("COMMAND", "WAT"), "unknown subcommand"),
        (("SET", "k", "v", "WAT"), "syntax error"),
        (("LPUSH", "k", "v"), "unknown command 'LPUSH', with args beginning with: 'k' 'v'"),
    ],
)
async def test_wrong_use_is_answered_and_the_connection_goes_on(client, args, error):
    with pytest.raises(redis.RedisError, match=error):
        await client.execute_command(*args)
    assert await client.ping()


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b"\x16\x03\x01\x02\x00", b"-ERR Protocol error: expected '*', got 0x16\r\n"),
        (b"*1\r\n$4\r\nPING\r\n*1\r\n!x", b"+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n"),
        (
            b"*999999999\r\n",
            b"-ERR Protocol error: invalid multibulk length: 999999999 exceeds the limit of 131072",
        ),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"-ERR wrong number of arguments for 'get' command\r\n-ERR Protocol",
        ),
        (b"PING\r\nQUIT\r\nPING\r\n", b"+PONG\r\n+OK\r\n"),
    ],
)
async def test_garbage_gets_an_error_and_the_connection_is_closed(server, sent, reply):
    assert (await talk(server.port, sent, until_closed=True)).startswith(reply)


async def test_what_was_asked_before_the_client_closed_its_side_is_answered(server, store):
    store.delay_seconds = 0.05
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request([b"INCR", b"k"]) * 2)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b":1\r\n:2\r\n"
    writer.close()


async def test_a_pipeline_is_batched_by_partition_and_answered_in_order(server, store):
    store.delay_seconds = 0.01
    sent = b"".join(encode_request([b"INCR", b"k%d" % (number % 10)]) for number in range(100))
    replies = await talk(server.port, sent, replies=100)
    assert replies == b"".join(b":%d\r\n" % (number // 10 + 1) for number in range(100))
    assert len(store.calls) <= 20
    assert store.running_max > 1


async def test_a_session_command_waits_for_all_before_it(server, store):
    sent = b"SET k 1\r\nSELECT other\r\nSET k 2\r\nSELECT 0\r\nGET k\r\n"
    assert (await talk(server.port, sent, replies=6)).endswith(b"$1\r\n1\r\n")
    assert [keyspace for _, keyspace, _ in store.calls] == [b"default", b"other", b"default"]


async def test_errors_of_the_store_are_replies(client, store):
    store.failures = [Unavailable("the partition moves"), Uncertain("the owner was lost"), ValueError("bug")]
    for error in (
        "TRYAGAIN the partition moves",
        "UNCERTAIN the owner was lost",
        "internal error ValueError; the member's log",
    ):
        with pytest.raises(redis.ResponseError) as raised:
            await client.execute_command("INCR", "k")
        assert error in str(raised.value) or error.endswith(str(raised.value))
    assert await client.incr("k") == 1


async def test_a_defect_is_logged_once_a_minute(client, store, caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(failures, "_defects", RateLimitedLog(60.0, lambda: now[0]))
    store.failures = [LookupError("a defect") for _ in range(4)]
    for _ in range(3):
        with pytest.raises(redis.ResponseError, match="internal error LookupError"):
            await client.get("k")
    assert [record.getMessage() for record in caplog.records] == [
        "a request failed with an unexpected error (0 more were not logged)"
    ]
    now[0] = 160.0
    with pytest.raises(redis.ResponseError):
        await client.get("k")
    assert (
        caplog.records[-1].getMessage()
        == "a request failed with an unexpected error (2 more were not logged)"
    )


async def test_mset_says_when_a_part_of_it_failed(client, store):
    store.failures = [Unavailable("moves")]
    with pytest.raises(redis.ResponseError, match="moves"):
        await client.mset({f"k{number}": number for number in range(20)})


async def test_scan_returns_every_key_and_matches_patterns(client):
    keys = {f"{{tag}}{number}".encode() for number in range(500)} | {
        f"k{number}".encode() for number in range(50)
    }
    await client.mset(dict.fromkeys(keys, b"v"))
    await client.set(b"", b"the empty key")
    assert {key async for key in client.scan_iter(count=7)} == keys | {b""}
    assert {key async for key in client.scan_iter(match="k1?", count=50)} == {
        b"k%d" % n for n in range(10, 20)
    }
    assert [key async for key in client.scan_iter(_type="hash")] == []


async def test_large_values_and_the_limit_of_their_size(client, server):
    large = bytes(range(256)) * 32768
    assert await client.set("k", large)
    assert await client.get("k") == large
    reply = await talk(server.port, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8388609\r\n", until_closed=True)
    assert reply == b"-ERR Protocol error: invalid bulk length: 8388609, expected 0 to 8388608 bytes\r\n"


async def test_clients_are_limited(store):
    server = await start_resp_server(store, "127.0.0.1", 0, RespServerLimits(clients_max=1))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PING\r\n")
    assert await reader.readline() == b"+PONG\r\n"
    assert (
        await talk(server.port, b"", until_closed=True)
        == b"-ERR max number of clients reached: this member accepts 1 (clients_max)\r\n"
    )
    writer.close()
    await server.close()


async def test_a_long_pipeline_is_worked_off_with_back_pressure(store):
    limits = RespServerLimits(pipeline_commands_max=8, batch_commands_max=4, output_bytes_high=1000)
    server = await start_resp_server(store, "127.0.0.1", 0, limits)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    count = 5000
    writer.write(encode_request([b"SET", b"k", b"v" * 1000]))
    sending = asyncio.create_task(_send(writer, encode_request([b"GET", b"k"]), count))
    assert await reader.readline() == b"+OK\r\n"
    for _ in range(count):
        assert await reader.readexactly(1009) == b"$1000\r\n%b\r\n" % (b"v" * 1000)
    await sending
    writer.close()
    await server.close()
    assert server.waiting_bytes == 0


async def _send(writer, request, count):
    for _ in range(count):
        writer.write(request)
        await writer.drain()


async def test_a_client_that_never_reads_is_cut_off(store):
    server = await start_resp_server(
        store, "127.0.0.1", 0, RespServerLimits(output_bytes_high=1000, stalled_seconds_max=0.2)
    )
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, encode_request([b"SET", b"k", b"v" * 1_000_000]))
        await loop.sock_sendall(sock, encode_request([b"GET", b"k"]) * 50)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if not list(server.sessions()):
                break
        assert list(server.sessions()) == []
    assert server.waiting_bytes == 0
    await server.close()


async def test_waiting_bytes_of_all_connections_are_limited(store):
    store.delay_seconds = 0.5
    server = await start_resp_server(store, "127.0.0.1", 0, RespServerLimits(waiting_bytes_max=100_000))
    request = encode_request([b"SET", b"k", b"v" * 60_000])
    first = asyncio.create_task(talk(server.port, request))
    await asyncio.sleep(0.1)
    assert b"-ERR requests of more than 100000 bytes wait" in await talk(
        server.port, request, until_closed=True
    )
    assert await first == b"+OK\r\n"
    await server.close()
    assert server.waiting_bytes == 0


async def test_closing_lets_running_requests_end(store):
    store.delay_seconds = 0.1
    server = await start_resp_server(store, "127.0.0.1", 0)
    asked = asyncio.create_task(talk(server.port, b"INCR k\r\n"))
    await asyncio.sleep(0.05)
    await server.close()
    assert await asked == b":1\r\n"


async def test_flags_by_which_clients_choose_a_member_are_those_of_redis(client, reference):
    """Clients send what is `readonly` to backups: reads of data, and nothing else."""

    async def flags(asked, *names):
        found = await asked.execute_command("COMMAND INFO", *names)
        return {name: {b"readonly", b"write", b"pubsub"} & {*flags} for name, _, flags, *_ in found}

    names = {name.decode() for name in await client.execute_command("COMMAND LIST")}
    async with redis.asyncio.Redis(port=reference) as other:
        common = names & {name.decode() for name in await other.execute_command("COMMAND LIST")}
        assert names - common <= {"quit", "stele.once"}
        assert await flags(client, *common) == await flags(other, *common)
