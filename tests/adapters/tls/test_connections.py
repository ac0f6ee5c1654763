"""Limits of the connections to a port of HTTP: their number, and how long one may wait for its client."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from stele.adapters import connections as tested
from stele.adapters import http
from stele.adapters.tls.acceptor import TlsLimits
from stele.adapters.tls.http_client import KEEP_SECONDS
from stele.adapters.tls.http_site import HttpSite
from stele.adapters.tls.identity import TlsIdentity, read_dialling, trusting
from stele.adapters.tls.role_callers import AskingAcceptor
from stele.core.security.identity import Role
from tests.adapters.tls.conftest import until
from tests.fakes.pki import identity, shared_ca

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
SHORT = 0.6
LARGE = 32 * 1024 * 1024
NO_CERTIFICATE = trusting(shared_ca().certificate)


def certified() -> ssl.SSLContext:
    shown = identity(Role.MEMBER, "m-1", "c")
    return read_dialling(shown.certificate, shown.key, shown.trusted)


class Client:
    """A connection that sends what it is told, and nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes = GET) -> bytes:
        """The head of the answer and its body; nothing where the connection was closed."""
        self.writer.write(request)
        return await self.answer()

    async def answer(self) -> bytes:
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
            length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            return head + await self.reader.readexactly(int(length))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return b""

    async def seconds_to_its_end(self) -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with suppress(ConnectionError, ssl.SSLError):
            while await asyncio.wait_for(self.reader.read(65_536), 10):
                pass
        return loop.time() - begun


class Port:
    """An application with TLS and without, of whose routes one takes its time."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.slow = self.bodies = 0
        self.clients: list[Client] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def wait(self, request: web.Request) -> web.Response:
        self.slow += 1
        await self.go_on.wait()
        return web.Response(text="waited")

    async def refuse(self, request: web.Request) -> web.Response:
        status = int(request.match_info["status"])
        if request.query:
            return web.Response(status=status)
        raise {401: web.HTTPUnauthorized, 403: web.HTTPForbidden, 404: web.HTTPNotFound}[status]()

    async def body(self, request: web.Request) -> web.Response:
        self.bodies += 1
        return web.Response(text=str(len(await request.read())))

    async def large(self, request: web.Request) -> web.Response:
        return web.Response(body=bytes(LARGE))

    async def file(self, request: web.Request) -> web.StreamResponse:
        return await http.send_file(request, request.app[FILE])

    async def dial(self, context: ssl.SSLContext | None = None, source: str = "127.0.0.9") -> Client:
        address = {"local_addr": (source, 0)}
        opened = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, **address)  # type: ignore[arg-type]
        self.clients.append(Client(*opened))
        return self.clients[-1]

    async def dial_slow(self, context: ssl.SSLContext | None = None) -> Client:
        """One with a request that is under way."""
        client, before = await self.dial(context), self.slow
        client.writer.write(GET.replace(b"/", b"/wait", 1))
        await until(lambda: self.slow > before)
        return client


FILE = web.AppKey("file", Path)


@pytest.fixture(params=["plain", "tls"])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Port]:
    """A port without TLS at all, and one with both, which plain connections reach as well."""
    made, acceptor = Port(), None
    app = http.application(short_requests=getattr(request, "param", "") == "short")
    (tmp_path / "file").write_bytes(bytes(LARGE))
    app[FILE] = tmp_path / "file"
    app.router.add_get("/", made.answer)
    app.router.add_get("/wait", made.wait)
    app.router.add_get("/refuse/{status}", made.refuse)
    app.router.add_post("/body", made.body)
    app.router.add_get("/large", made.large)
    app.router.add_get("/file", made.file)
    if request.param == "tls":
        own = TlsIdentity(identity(Role.MEMBER, "m-0", "c").write(tmp_path / "tls"))
        own.look()
        acceptor = AskingAcceptor(own, lambda address, why: None, TlsLimits())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await HttpSite(runner, acceptor, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        made.go_on.set()
        for client in made.clients:
            client.writer.transport.abort()
        await runner.cleanup()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "HEADERS_SECONDS_MAX", SHORT)
    monkeypatch.setattr(tested, "STALLED_SECONDS_MAX", SHORT)
    monkeypatch.setattr(tested, "STALLED_LOOK_SECONDS", SHORT / 4)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "CONNECTIONS_MAX", 3)


def test_a_connection_is_kept_for_longer_than_its_clients_keep_it() -> None:
    assert 2 * KEEP_SECONDS <= tested.IDLE_SECONDS_MAX


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("after_another", [False, True])
async def test_a_request_whose_headers_do_not_end_is_closed(port: Port, *, after_another: bool) -> None:
    client = await port.dial()
    if after_another:
        assert b" 200 " in await client.ask()

    async def trickle() -> None:
        for byte in GET * 10:
            client.writer.write(bytes([byte]) if byte != 13 else b"x")
            await asyncio.sleep(SHORT / 10)

    sending = asyncio.create_task(trickle())
    assert await client.seconds_to_its_end() < 5
    sending.cancel()


@pytest.mark.usefixtures("hasty")
async def test_who_sends_nothing_after_a_handshake_is_closed(port: Port) -> None:
    with suppress(ssl.SSLError, ConnectionError):
        assert await (await port.dial(NO_CERTIFICATE)).seconds_to_its_end() < 5


@pytest.mark.usefixtures("hasty")
async def test_a_connection_between_requests_stays_for_a_while(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await port.dial()
    assert b" 200 " in await client.ask()
    await asyncio.sleep(2 * SHORT)
    assert b" 200 " in await client.ask()
    monkeypatch.setattr(tested, "IDLE_SECONDS_MAX", SHORT)
    assert b" 200 " in await client.ask()
    assert await client.seconds_to_its_end() < 5


@pytest.mark.usefixtures("hasty")
async def test_a_handler_may_take_its_time(port: Port) -> None:
    client = await port.dial_slow()
    await asyncio.sleep(3 * SHORT)
    port.go_on.set()
    assert (await client.answer()).endswith(b"waited")


@pytest.mark.usefixtures("hasty")
async def test_a_body_that_stops_is_closed_and_a_slow_one_is_not(port: Port) -> None:
    slow, stopped = await port.dial(), await port.dial()
    stopped.writer.write(BODY + b"a")
    ending = asyncio.create_task(stopped.seconds_to_its_end())
    slow.writer.write(BODY)
    for _ in range(10):
        await asyncio.sleep(SHORT / 4)
        slow.writer.write(b"a" * 10)
    assert (await slow.answer()).endswith(b"100")
    assert await ending < 5


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("path", [b"/large", b"/file"])
async def test_an_answer_that_is_not_taken_is_closed_and_one_that_is_taken_slowly_is_not(
    port: Port, monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    # A busy machine may hold the slow one up for a while, too.
    limit = 4 * SHORT
    monkeypatch.setattr(tested, "STALLED_SECONDS_MAX", limit)
    monkeypatch.setattr(tested, "IDLE_SECONDS_MAX", limit)
    slow, stopped = await port.dial(), await port.dial()
    for client in (slow, stopped):
        client.writer.write(GET.replace(b"/", path, 1))
    for _ in range(15):
        await asyncio.sleep(limit / 12)
        await slow.reader.readexactly(LARGE // 16)
    await slow.reader.readexactly(LARGE // 16)
    received = 0
    with suppress(ConnectionError):
        while piece := await asyncio.wait_for(stopped.reader.read(1 << 20), 10):
            received += len(piece)
    assert received < LARGE


def test_files_are_sent_by_what_the_watch_sees() -> None:
    """The loop of asyncio sends a `web.FileResponse` past the protocol of the connection."""
    root = Path(http.__file__).parents[1]
    assert not [path for path in root.rglob("*.py") if "FileResponse(" in path.read_text()]


async def test_a_file_that_is_not_there_is_no_answer_of_half_a_file(port: Port, tmp_path: Path) -> None:
    (tmp_path / "file").unlink()
    assert b" 404 " in await (await port.dial()).ask(GET.replace(b"/", b"/file", 1))


@pytest.mark.parametrize(("status", "closes"), [(401, True), (403, True), (404, False)])
@pytest.mark.parametrize("query", [b"", b"?returned"])
async def test_a_refusal_ends_the_connection(port: Port, status: int, query: bytes, *, closes: bool) -> None:
    client = await port.dial()
    answer = await client.ask(GET.replace(b"/", b"/refuse/%d" % status + query, 1))
    assert (b"Connection: close" in answer) == closes
    assert bool(await client.ask()) != closes


@pytest.mark.usefixtures("few")
async def test_of_too_many_the_one_that_waits_longest_is_closed(port: Port) -> None:
    busy, first, second = await port.dial_slow(), await port.dial(), await port.dial()
    for each in (first, second, first):
        assert b" 200 " in await each.ask()
    another = await port.dial()
    assert b" 200 " in await another.ask()
    assert await second.seconds_to_its_end() < 5
    assert b" 200 " in await first.ask()
    port.go_on.set()
    assert (await busy.answer()).endswith(b"waited")


@pytest.mark.usefixtures("few")
async def test_one_whose_next_request_came_with_the_first_does_not_count_as_idle(port: Port) -> None:
    """Whichever is told first, that the first one has ended or that the next one has begun."""
    client = await port.dial()
    client.writer.write(GET + GET.replace(b"/", b"/wait", 1))
    assert b" 200 " in await client.answer()
    await until(lambda: port.slow == 1)
    for _ in range(3):
        assert b" 200 " in await (await port.dial()).ask()
    port.go_on.set()
    assert (await client.answer()).endswith(b"waited")


async def test_the_end_of_a_request_is_not_that_of_the_next_one() -> None:
    connections, transport = tested.Connections(short_requests=False), FakeTransport()
    connection = connections.accept(asyncio.Protocol)
    assert isinstance(connection, tested._Connection)
    connection.connection_made(transport)
    first, second = make_mocked_request("GET", "/"), make_mocked_request("GET", "/")
    connection.begin(first)
    connection.begin(second)
    connection.end(first, None)
    assert not connections._idle[tested.OTHER]
    connection.end(second, None)
    assert list(connections._idle[tested.OTHER]) == [connection]
    connection.connection_lost(None)


class FakeTransport(asyncio.Transport):
    """One that is never used."""


@pytest.mark.usefixtures("few")
async def test_where_all_have_requests_under_way_a_new_one_is_told(port: Port) -> None:
    slow = [await port.dial_slow() for _ in range(3)]
    answer = await (await port.dial()).ask()
    assert b" 503 " in answer
    assert answer.endswith(b"3 connections have requests under way at this port; retry later\n")
    port.go_on.set()
    for each in slow:
        assert (await each.answer()).endswith(b"waited")
    assert b" 200 " in await (await port.dial()).ask()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("port", ["tls"], indirect=True)
async def test_nobody_without_a_certificate_takes_the_place_of_one_who_has_it(port: Port) -> None:
    known = await port.dial(certified())
    assert b" 200 " in await known.ask()
    for context in (None, NO_CERTIFICATE, None, NO_CERTIFICATE):
        if len([each for each in port.clients if each is not known]) < 3:
            await port.dial_slow(context)
        else:
            assert b" 503 " in await (await port.dial(context)).ask()
    assert b" 200 " in await known.ask()
    assert b" 200 " in await (await port.dial(certified())).ask()


@pytest.mark.usefixtures("few")
async def test_nobody_from_elsewhere_takes_the_place_of_one_from_inside_the_pod(port: Port) -> None:
    for _ in range(3):
        await port.dial_slow()
    assert b" 503 " in await (await port.dial()).ask()
    assert b" 200 " in await (await port.dial(source="127.0.0.1")).ask()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("contexts", [(None,) * 3, (NO_CERTIFICATE,) * 3])
@pytest.mark.parametrize("port", ["tls"], indirect=True)
async def test_who_sends_requests_byte_by_byte_takes_no_place_of_others(
    port: Port, contexts: tuple[ssl.SSLContext | None, ...]
) -> None:
    """The bodies never end, and never stop for long."""
    trickling = [await port.dial(context) for context in contexts]
    for each in trickling:
        each.writer.write(BODY + b"a")
    await until(lambda: port.bodies == 3)
    other = await port.dial(source="127.0.0.8")
    assert b" 200 " in await other.ask()
    assert await trickling[0].seconds_to_its_end() < 5
    for each in trickling[1:]:
        each.writer.write(b"a" * 99)
        assert (await each.answer()).endswith(b"100")


@pytest.mark.usefixtures("few")
async def test_who_connects_again_and_again_takes_no_idle_place_of_others(port: Port) -> None:
    other = await port.dial(source="127.0.0.8")
    assert b" 200 " in await other.ask()
    for _ in range(6):
        assert b" 200 " in await (await port.dial()).ask()
    assert b" 200 " in await other.ask()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("port", ["short"], indirect=True)
async def test_where_requests_are_short_a_new_one_finds_room(port: Port) -> None:
    first, second, third = [await port.dial_slow() for _ in range(3)]
    assert b" 200 " in await (await port.dial()).ask()
    assert await first.seconds_to_its_end() < 5
    port.go_on.set()
    for each in (second, third):
        assert (await each.answer()).endswith(b"waited")


@pytest.mark.usefixtures("few")
async def test_connections_that_end_are_not_counted(port: Port) -> None:
    for _ in range(5):
        slow = await port.dial_slow()
        slow.writer.transport.abort()
        port.go_on.set()
        await asyncio.sleep(0.05)
        port.go_on.clear()
    assert b" 200 " in await (await port.dial()).ask()
