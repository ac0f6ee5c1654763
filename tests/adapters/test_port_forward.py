"""A forwarded port: all bytes arrive both ways, one connection is taken, and ends are ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from stele.adapters.kubernetes.api import FORWARD_PROTOCOL
from stele.adapters.kubernetes.port_forward import Way, forwarded
from tests.fakes.http import serving
from tests.fakes.pod_proxy import forward_port

MANY = bytes(range(256)) * 12_000


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def forward(port: int) -> AsyncIterator[Way]:
    """The way to a port of this machine, over a kubelet."""

    async def handle(request: web.Request) -> web.WebSocketResponse:
        return await forward_port(request, 7001, "127.0.0.1", port)

    app = web.Application()
    app.router.add_get("/forward", handle)
    async with (
        serving(app) as url,
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/forward", protocols=(FORWARD_PROTOCOL,)) as socket,
        forwarded(socket) as made,
    ):
        yield made


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connected(way: Way) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    made = way.make_socket(None)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", way.port))
    return await asyncio.open_connection(sock=made)


async def ends_at_once(way: Way) -> bool:
    """A connection that anybody on this machine could make."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
        writer.write(b"DELETE /v1/quarantine HTTP/1.1")
        found = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    except ConnectionError:
        return True
    return found == b""


async def test_all_bytes_arrive_both_ways_and_one_connection_is_taken() -> None:
    async with echoing() as place, forward(place) as way:
        assert await ends_at_once(way), "others come first"
        reader, writer = await connected(way)
        writer.write(MANY)
        assert await asyncio.wait_for(reader.readexactly(len(MANY)), 20) == MANY
        assert await ends_at_once(way)
        writer.close()


async def test_what_the_kubelet_says_ends_it() -> None:
    async with echoing() as place:
        pass
    async with forward(place) as way:
        reader, writer = await connected(way)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert "error forwarding port 7001" in way.forward.problem
        writer.close()
