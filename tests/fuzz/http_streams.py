"""Streams of bytes for the HTTP servers of a transfer process and of a bulk Job, on loopback: what no decoder
sees alone.

None of the requests has a copy started, which would dial what the input names, or a program.
"""

import asyncio
import logging
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
from aiohttp import web
from crc32c import crc32c

from stele.adapters import pod_token
from stele.adapters.http import Handler
from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.http_site import HttpSite
from stele.bulkjob import server as bulk_server
from stele.core.control.commands import OpId, SessionTablet
from stele.transfer.__main__ import Settings, make_app
from stele.wire.copy.bulk import Section, encode_run, piece_head
from stele.wire.copy.jobs import SessionFile
from stele.wire.storage.keys import pack_value

SECONDS_MAX = 5.0
QUIET_TURNS = 12
"""Turns of the event loop without a request whose body has come: from what is sent to an answer that is
written takes fewer."""
WORK_SECONDS = 0.0002
TEXTS_MAX = 10
MEMORY_SPARE = 4 * 1024 * 1024
"""The server reads files by the MiB, and more than one request at once."""
_UNQUOTABLE = re.compile(rb"expect\s*:[^\r\n]*[\x80-\xff]", re.IGNORECASE)
"""aiohttp answers 500 to that: it fails to quote the header in its refusal."""
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class _Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.texts) < TEXTS_MAX:
            self.texts.append(logging.Formatter().format(record))


@cache
def _errors() -> _Errors:
    """All servers have it in common, since each would hear of what the others log."""
    found = _Errors()
    logging.getLogger().addHandler(found)
    return found


class _Client(asyncio.Protocol):
    """Keeps what comes back until the connection ends."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self._ended = ended
        self.parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        self.parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        if not self._ended.done():
            self._ended.set_result(None)


App = tuple[web.Application, TlsAcceptor | None]


class Server:
    """A server of a folder of its own, which `make` fills.

    Its event loop runs for one input after the other: a thread of its own would spend most of its time on
    waking up. It is asyncio's own, since uvloop's does not go on after the signals of the driver's watchdog.
    """

    def __init__(self, make: Callable[[Path], App]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._under_way: list[web.Request] = []
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._listen(make))

    async def _listen(self, make: Callable[[Path], App]) -> None:
        app, acceptor = make(Path(self._folder.name))
        app.middlewares.insert(0, self._count)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await HttpSite(runner, acceptor, "127.0.0.1", 0).start()
        self.port: int = runner.addresses[0][1]

    def answer(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own, and return all that comes back."""
        return self._loop.run_until_complete(self._answer(data))

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._under_way.append(request)
        try:
            return await handler(request)
        finally:
            self._under_way.remove(request)

    async def _answer(self, data: bytes) -> bytes:
        ended = self._loop.create_future()
        async with asyncio.timeout(SECONDS_MAX):
            made = self._loop.create_connection(lambda: _Client(ended), "127.0.0.1", self.port)
            transport, client = await made
            transport.write(data)
            await self._until_answered()
            if not transport.is_closing():
                transport.write_eof()
            await ended
        return b"".join(client.parts)

    async def _until_answered(self) -> None:
        """Wait while the server works: the end of what is sent ends a connection, answered or not."""
        quiet = 0
        while quiet < QUIET_TURNS:
            works = any(request.content.is_eof() for request in self._under_way)
            quiet = 0 if works else quiet + 1
            await asyncio.sleep(WORK_SECONDS if works else 0)


def _transfer(data: Path) -> App:
    """Return the application for an empty volume with one session."""
    (data / "checkpoints" / "abc").mkdir(parents=True)
    session = SessionFile("abc", "secret", (SessionTablet(3, 1, OpId(1, 1), 10),))
    (data / "checkpoints" / "abc" / "session.json").write_bytes(msgspec.json.encode(session))
    pod_token.write(data, "secret")
    return make_app(Settings(data=data))


class _OverJob(bulk_server.Job):
    """One that is over: it starts nothing, and its file can be fetched."""

    def start(self, command: str, arguments: list[str]) -> None:
        """Note the order instead."""
        self.last = {"result": {"command": command, "arguments": len(arguments)}}


def _bulk(folder: Path) -> App:
    return bulk_server.application(_OverJob(folder)), None


@cache
def transfer() -> Server:
    """The server of port 7002."""
    return Server(_transfer)


@cache
def bulk() -> Server:
    """The server of port 7003, which takes plain requests where it has no certificate."""
    return Server(_bulk)


def _check(server: Server, data: bytes) -> None:
    """Whatever comes is answered, and never with an error of the server."""
    errors = _errors()
    statuses = STATUS.findall(server.answer(data))
    logged, errors.texts = errors.texts, []
    if not _UNQUOTABLE.search(data):
        assert not logged, logged[0]
        assert b"500" not in statuses


def transfer_stream(data: bytes) -> None:
    """Send it to port 7002."""
    _check(transfer(), data)


def bulk_stream(data: bytes) -> None:
    """Send it to port 7003."""
    _check(bulk(), data)


def _request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if body and "Transfer-Encoding: chunked" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _piece() -> bytes:
    run = b"".join(encode_run([(b"key", pack_value(b"value", 0))], 0))
    return piece_head([Section(0, 0, len(run))], crc32c(run)) + run


def transfer_requests() -> list[bytes]:
    """Return valid requests of each route but that which starts a copy."""
    bearer, load = "Authorization: Bearer secret", "/v1/bulk/loads/load-1"
    order = b'{"generation":1,"keyspace":"default","partitions":1,"pieces":["p"]}'
    piece, chunked = _piece(), "Transfer-Encoding: chunked"
    return [
        _request("GET", "/healthz") * 3,
        _request("GET", "/v1/sessions", bearer),
        _request("GET", "/v1/sessions/abc/partitions/3?generation=1&at=0", bearer),
        _request("GET", "/v1/bulk/sessions/abc/partitions/3?generation=1&keyspace=default", bearer),
        _request("PUT", f"{load}/pieces/p", body=piece),
        _request("PUT", f"{load}/pieces/p", "Expect: 100-continue", body=piece),
        _request("PUT", f"{load}/pieces/p", chunked, body=b"5\r\nabcde\r\n0\r\n\r\n"),
        _request("POST", f"{load}/partitions/0", body=order) + _request("GET", "/healthz"),
        _request("POST", f"{load}/partitions/0", "Content-Encoding: gzip", body=order),
        _request("GET", f"{load}/partitions/0?crc32c=77", "Range: bytes=0-5"),
        _request("DELETE", load, "Connection: close"),
        _request("GET", "/v1/%c3%28/../..//sessions?a=%ff&a[]=1#x", "Cookie: a=b; c", "Upgrade: websocket"),
    ]


def bulk_requests() -> list[bytes]:
    """Return valid requests of each route."""
    order = b'{"command":"load","arguments":["--load","load-1","--address","10.0.0.1:7001"]}'
    chunked, file = "Transfer-Encoding: chunked", b"PAR1" + bytes(200) + b"PAR1"
    return [
        _request("GET", "/healthz") * 3,
        _request("PUT", "/file", body=file) + _request("GET", "/file"),
        _request("PUT", "/file", chunked, body=b"5\r\nabcde\r\n0\r\n\r\n"),
        _request("PUT", "/file", "Expect: 100-continue", body=file),
        _request("POST", "/job", body=order) + _request("GET", "/job"),
        _request("POST", "/job", "Content-Type: application/json; charset=utf-8", body=order),
        _request("POST", "/job", body=b'{"command":"rm","arguments":[]}'),
        _request("POST", "/job", "Content-Encoding: gzip", body=order),
        _request("GET", "/file", "Range: bytes=0-5", "Connection: close"),
    ]


TOKENS = (b"\r\n", b"\r\n\r\n", b" HTTP/1.1", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n")
TOKENS += (
    b"ffffffffffffffff\r\n",
    b"%00",
    b"%2e%2e%2f",
    b"X: " + b"y" * 9_000 + b"\r\n",
    b"Host: a\r\n" * 500,
)
