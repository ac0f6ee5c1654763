"""What holds for every HTTP application: plain bodies, and tokens that are compared as bytes."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stele.adapters import http
from stele.master import health
from tests.fakes.http import serving

TOKEN = "a-token"


async def ask(url: str, head: bytes, body: bytes = b"") -> int:
    """The status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    writer.write(head + b"Host: x\r\n" + length + body)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return int(answer.split()[1])


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async def taken(request: web.Request) -> web.Response:
        if not http.bears(request, TOKEN):
            return web.Response(status=401)
        return web.Response(text=str(len(await request.read())))

    app = http.application()
    app.router.add_post("/", taken)
    async with serving(app) as url:
        yield url


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Authorization: Bearer a-token\r\n", 200),
        (b"", 401),
        (b"Authorization: \r\n", 401),
        (b"Authorization: a-token\r\n", 401),
        (b"Authorization: Bearer a-toke\r\n", 401),
        (b"Authorization: Bearer a-token-and-more\r\n", 401),
        (b"Authorization: bearer a-token\r\n", 401),
        (b"Authorization: Bearer \xff\xfe\r\n", 401),
        (b"Authorization: \xc3\xa9\r\n", 401),
        (b"Authorization: Bearer a-token\xed\xa0\x80\r\n", 401),
    ],
)
async def test_a_wrong_token_is_401_whatever_its_bytes(url: str, header: bytes, status: int) -> None:
    assert await ask(url, b"POST / HTTP/1.1\r\n" + header) == status


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b"zstd", b"identity", b"x" * 4000])
async def test_bodies_are_not_unpacked(url: str, encoding: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nAuthorization: Bearer a-token\r\nContent-Encoding: " + encoding + b"\r\n"
    assert await ask(url, head, zlib.compress(bytes(100_000))) == 415
    assert await ask(url, head.replace(b"POST / ", b"POST /nothing "), b"x") == 415


class NoClusters:
    def silent(self) -> tuple[str, ...]:
        return ()

    def states(self) -> dict[Any, Any]:
        return {}

    def statuses(self) -> dict[Any, Any]:
        return {}


async def test_the_operator_takes_no_packed_body() -> None:
    async with serving(health.application(NoClusters(), lambda: True, lambda: True)) as url:
        assert await ask(url, b"GET /healthz HTTP/1.1\r\nContent-Encoding: gzip\r\n", b"x") == 415
        assert await ask(url, b"GET /healthz HTTP/1.1\r\n") == 200


def test_every_application_is_made_in_one_place() -> None:
    """One that is made elsewhere unpacks what is sent to it."""
    source = Path(http.__file__).parents[1]
    made = [path.name for path in source.rglob("*.py") if "web.Application(" in path.read_text("utf-8")]
    compared = [path.name for path in source.rglob("*.py") if "compare_digest(" in path.read_text("utf-8")]
    assert (made, sorted(compared)) == (["http.py"], ["http.py", "passwords.py"])


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\x00\r\n\r\n",
        b"POST / HTTP/1.1\r\nTra\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
    ],
    ids=["no HTTP", "no header", "a client that is gone"],
)
async def test_what_clients_do_wrong_is_not_logged(
    url: str, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A few bytes would be a traceback each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(sent.replace(b"\r\nContent", b"\r\nAuthorization: Bearer a-token\r\nContent"))
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert await ask(url, b"POST / HTTP/1.1\r\nAuthorization: Bearer a-token\r\n") == 200
    assert not caplog.records
