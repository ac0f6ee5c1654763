"""TLS for clients: redis-py and redis-cli on a RESP server, levels that change, and ends of connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.identity import TlsIdentity
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import RespServer, start_resp_server
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService
from tests.fakes.pki import FakeCa, shared_ca

INCR = encode_request([b"INCR", b"k"])
Redis = redis.asyncio.Redis
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shared_ca().leaf().write(tmp_path / "tls")


@pytest.fixture
def acceptor(folder: Path) -> TlsAcceptor:
    identity = TlsIdentity(folder)
    identity.look()
    acceptor = TlsAcceptor(identity, lambda address, why: None)
    acceptor.require(ClientTls.OPTIONAL, ssl.CERT_NONE)
    return acceptor


@pytest.fixture
def store() -> FakeKeyValueService:
    return FakeKeyValueService()


@pytest.fixture
async def server(store: FakeKeyValueService, acceptor: TlsAcceptor) -> AsyncIterator[RespServer]:
    limits = RespServerLimits(linger_seconds=0.1, linger_seconds_max=0.5, output_bytes_high=1000)
    server = await start_resp_server(store, "127.0.0.1", 0, limits, tls=acceptor)
    await server.listen_cluster("127.0.0.1", 0)
    await server.listen_reads("127.0.0.1", 0)
    yield server
    await server.close()


@pytest.fixture
async def open_tls(server: RespServer, folder: Path) -> AsyncIterator[Open]:
    writers: list[asyncio.StreamWriter] = []

    async def open_one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
        )
        writers.append(writer)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0.01)


def tls_client(port: int, folder: Path, **more: str) -> Redis:
    return Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=str(folder / "ca.crt"), **more)


async def until(condition: Callable[[], object]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come")


async def test_redis_py_uses_all_ports_with_tls_and_without(server: RespServer, folder: Path) -> None:
    for port in (server.port, server.cluster_port, server.read_port):
        async with tls_client(port, folder) as client, Redis(port=port) as plain:
            await client.set("k", b"x" * 300_000)
            assert await plain.get("k") == b"x" * 300_000
            assert (await client.client_info())["tls"] == "TLSv1.3"
            assert (await plain.client_info())["tls"] == "no"
            info = await plain.info()
            assert (info["client_tls"], info["tls_clients"]) == ("Optional", 1)
    assert (server.facts()["tls_handshakes"], server.facts()["tls_handshakes_failed"]) == (3, 0)


def client_hello() -> bytes:
    """What a client of TLS sends before it waits for an answer."""
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), sent, server_hostname="localhost"
        ).do_handshake()
    return sent.read()


@pytest.mark.parametrize("auth", list(ClientAuth))
async def test_what_begins_with_tls_is_closed_at_once_where_there_is_none(
    server: RespServer, acceptor: TlsAcceptor, open_tls: Open, auth: ClientAuth
) -> None:
    """redis-server waits for the end of a line there, so such a client hangs."""
    acceptor.require(ClientTls.OFF, ssl.CERT_NONE)
    server.access.require(auth)
    for port in (server.port, server.cluster_port, server.read_port):
        for size in (1, 5, None):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(client_hello()[:size])
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer == b"-ERR Protocol error: expected '*', got 0x16\r\n"
            writer.close()
    with pytest.raises(ssl.SSLError):
        await asyncio.wait_for(open_tls(), 5)
    await until(lambda: not list(server.sessions()))


async def test_redis_cli_speaks_tls(server: RespServer, folder: Path) -> None:
    certificate = ("--tls", "--cacert", folder / "ca.crt")

    async def run(*options: object) -> str:
        process = await asyncio.create_subprocess_exec(
            *("redis-cli", "-p", str(server.port), *map(str, options), "echo", "hello"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return (await process.communicate())[0].decode().strip()

    assert [await run(*certificate), await run()] == ["hello", "hello"]
    assert server.tls is not None
    server.tls.require(ClientTls.REQUIRED, ssl.CERT_REQUIRED)
    assert "takes only TLS connections" in await run()
    leaf = shared_ca().leaf("someone").write(folder.parent / "client")
    assert await run(*certificate, "--cert", leaf / "tls.crt", "--key", leaf / "tls.key") == "hello"
    assert "hello" not in await run(*certificate)


@pytest.mark.parametrize("wrong", ["expired", "other CA"])
async def test_a_client_refuses_a_member_that_it_cannot_trust(
    server: RespServer, acceptor: TlsAcceptor, folder: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired certificate stays in use when there is no other: who does not look at it goes on."""
    if wrong == "other CA":
        trusted = FakeCa("other").leaf().write(folder.parent / "other")
        async with tls_client(server.port, trusted) as client:
            with pytest.raises(RedisConnectionError, match="certificate verify failed"):
                await client.ping()
        return
    before = acceptor.context
    shared_ca().leaf(days=-1).write(folder)
    acceptor._identity.look()
    assert acceptor.context is before
    assert "expired" in acceptor._identity.problem
    async with tls_client(server.port, folder) as client:
        assert await client.ping()


async def test_a_connection_outlives_the_certificate_that_it_began_with(
    server: RespServer, acceptor: TlsAcceptor, folder: Path
) -> None:
    old_ca = folder.parent / "ca.crt"
    old_ca.write_bytes((folder / "ca.crt").read_bytes())
    async with Redis(
        port=server.port, ssl=True, ssl_ca_certs=str(old_ca), single_connection_client=True
    ) as old:
        first = await old.client_id()
        FakeCa("new").leaf().write(folder)
        acceptor._identity.look()
        async with tls_client(server.port, folder) as new:
            assert await new.set("k", "v")
        assert (await old.get("k"), await old.client_id()) == (b"v", first)


async def test_where_tls_becomes_required_plain_clients_are_told_so_and_others_notice_nothing(
    server: RespServer, acceptor: TlsAcceptor, folder: Path, store: FakeKeyValueService
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    idle, idle_writer = await asyncio.open_connection("127.0.0.1", server.cluster_port)
    idle_writer.write(encode_request([b"PING"]))
    assert await idle.readline() == b"+PONG\r\n"
    async with tls_client(server.port, folder) as client:
        assert await client.ping()
        store.delay_seconds = 0.05
        writer.write(INCR * 3)
        await asyncio.sleep(0.02)
        acceptor.require(ClientTls.REQUIRED, ssl.CERT_NONE)
        told = b"-ERR this port takes only TLS connections now: connect again, with TLS\r\n"
        assert await reader.read() == b":1\r\n:2\r\n:3\r\n" + told
        assert await idle.read() == told
        assert await client.ping()
        assert [session.tls for session in server.sessions()] == ["TLSv1.3"]
    for each in (writer, idle_writer):
        each.close()


async def test_levels_change_under_load_without_an_error(
    server: RespServer, acceptor: TlsAcceptor, folder: Path
) -> None:
    """Clients that use TLS when it is there, and plain ones that go before it is required."""
    ended, counts = asyncio.Event(), {"plain": 0, "tls": 0}

    async def use(kind: str, client: Redis, until: asyncio.Event) -> None:
        async with client:
            while not until.is_set():
                await client.incr(kind)
                if counts[kind] % 10 == 0:
                    await client.connection_pool.disconnect()
                counts[kind] += 1

    acceptor.require(ClientTls.OFF, ssl.CERT_NONE)
    plain_ends = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        plain = [tasks.create_task(use("plain", Redis(port=server.port), plain_ends)) for _ in range(3)]
        await until(lambda: counts["plain"] > 50)
        acceptor.require(ClientTls.OPTIONAL, ssl.CERT_NONE)
        for _ in range(3):
            tasks.create_task(use("tls", tls_client(server.port, folder), ended))
        await until(lambda: counts["plain"] > 100 and counts["tls"] > 50)
        plain_ends.set()
        await asyncio.wait(plain)
        await until(lambda: all(session.tls for session in server.sessions()))
        acceptor.require(ClientTls.REQUIRED, ssl.CERT_NONE)
        at_required = counts["tls"]
        await until(lambda: counts["tls"] > at_required + 50)
        ended.set()
    assert (acceptor.failed, acceptor.refused) == (0, 0)
    async with tls_client(server.port, folder) as client:
        assert (int(await client.get("plain")), int(await client.get("tls"))) == (
            counts["plain"],
            counts["tls"],
        )


async def test_replies_to_what_was_read_survive_a_stop(
    server: RespServer, store: FakeKeyValueService, open_tls: Open
) -> None:
    store.delay_seconds = 0.1
    reader, writer = await open_tls()
    writer.write(INCR * 3 + INCR[:5])
    await asyncio.sleep(0.05)
    server.stop()
    assert server.busy()
    writer.write(INCR[5:] + INCR * 100)
    assert await reader.read() == b":1\r\n:2\r\n:3\r\n"
    writer.close()
    await asyncio.wait_for(server.close(), 1.0)
    assert list(server.sessions()) == []
    assert server.waiting_bytes == server.replies.held == 0
    assert sum(len(commands) for _, _, commands in store.calls) == 3


async def test_a_client_that_still_sends_reads_the_end_before_the_connection_closes(
    server: RespServer, open_tls: Open
) -> None:
    reader, writer = await open_tls()
    writer.write(INCR)
    assert await reader.readline() == b":1\r\n"
    server.stop()
    assert await reader.read() == b""
    await asyncio.wait_for(server.close(), 1.0)
    assert list(server.sessions()) == []


async def test_replies_that_are_not_read_are_counted_and_linger(
    server: RespServer, folder: Path, open_tls: Open
) -> None:
    """What TLS has encrypted counts: such a connection is not quiet, and its bytes are in the budget."""
    async with Redis(port=server.port) as plain:
        await plain.set("k", b"x" * 4_000_000)
    _reader, writer = await open_tls()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(encode_request([b"GET", b"k"]) * 4)
    await until(lambda: server.replies.held > 4_000_000)
    writer.transport.abort()
    await until(lambda: server.replies.held == 0)


async def test_a_member_that_stops_ends_handshakes(server: RespServer, acceptor: TlsAcceptor) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: acceptor.pending)
    server.stop()
    assert await asyncio.wait_for(reader.read(), 0.2) == b""
    assert acceptor.pending == 0
    writer.close()
