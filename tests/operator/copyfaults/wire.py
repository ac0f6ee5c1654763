"""A proxy in front of every transfer process: a fault strikes at a block of a stream and not at a time.

Everything that members and executors ask of a transfer process goes through it; streams go block by block.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

import aiohttp
from aiohttp import web

STREAM = "application/x-stele-blocks"
_HEAD = struct.Struct(">II")
_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length"})


@dataclass(frozen=True)
class Block:
    """One that passes, the `number`th (from 1) since the wire was armed. `source` is the member it leaves."""

    source: str
    session: str
    number: int
    data: bytes


Touch = Callable[[Block], Awaitable[bytes | None]]
"""What goes on instead of the block; None cuts the connection."""


class Wire:
    """All streams of one cluster. While nothing is armed they pass as they are."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._touch: Touch | None = None
        self._of: frozenset[int] = frozenset()
        self._number = 0
        self._proxies: dict[str, tuple[str, web.AppRunner]] = {}
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(force_close=True)
        )
        self.requests = 0
        """How often a stream of the partitions was asked for since the wire was armed."""
        self.passed: list[Block] = []
        self.errors: list[Exception] = []

    async def close(self) -> None:
        for _, runner in self._proxies.values():
            await runner.cleanup()
        await self._http.close()

    async def put(self, member: str, outer: str, inner: str) -> None:
        """Listen at `outer` for the transfer process of the member, which listens at `inner`.

        A process that starts again on the same address finds its proxy there.
        """
        before = self._proxies.get(member)
        if before is not None and before[0] == outer:
            return

        async def pass_on(request: web.Request) -> web.StreamResponse:
            return await self._pass(member, inner, request)

        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{tail:.*}", pass_on)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._proxies[member] = (outer, runner)
        await runner.setup()
        await web.TCPSite(runner, outer, self._port, reuse_address=True).start()

    def arm(self, touch: Touch | None, of: Iterable[int] = ()) -> None:
        """Give each block of the partitions to `touch` from now on, counted from 1."""
        self._touch, self._of, self._number = touch, frozenset(of), 0
        self.requests, self.passed, self.errors = 0, [], []

    def at(self, number: int, strike: Touch, of: Iterable[int]) -> asyncio.Event:
        """Let `strike` have one block of the partitions; the event is set when it has struck."""
        struck = asyncio.Event()

        async def touch(block: Block) -> bytes | None:
            if block.number != number:
                return block.data
            instead = await strike(block)
            struck.set()
            return instead

        self.arm(touch, of)
        return struck

    async def _pass(self, member: str, inner: str, request: web.Request) -> web.StreamResponse:
        url = f"http://{inner}:{self._port}{request.path_qs}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        self.requests += self._watches(request)
        try:
            body = await request.read()
            async with self._http.request(request.method, url, data=body, headers=headers) as answer:
                if answer.content_type != STREAM:
                    return web.Response(
                        status=answer.status, body=await answer.read(), content_type=answer.content_type
                    )
                return await self._stream(member, request, answer)
        except (aiohttp.ClientError, ConnectionError):
            return _cut(request)

    async def _stream(
        self, member: str, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": STREAM})
        await response.prepare(request)
        watched = self._watches(request)
        async for data in _blocks(answer.content):
            if not watched:
                await response.write(data)
                continue
            self._number += 1
            block = Block(member, request.path.split("/")[3], self._number, data)
            self.passed.append(block)
            instead = await self._touched(block)
            if instead is None:
                return _cut(request)
            await response.write(instead)
        await response.write_eof()
        return response

    def _watches(self, request: web.Request) -> bool:
        """Whether it asks for a stream of one of the partitions."""
        partition = request.path.partition("/partitions/")[2].split("/")[0]
        return partition.isdecimal() and int(partition) in self._of

    async def _touched(self, block: Block) -> bytes | None:
        """A fault that cannot strike as it should fails its test, not the stream."""
        try:
            return block.data if self._touch is None else await self._touch(block)
        except Exception as error:  # noqa: BLE001  whatever it is, the test must see it
            self.errors.append(error)
            return block.data


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


async def _blocks(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while not stream.at_eof():
            head = await stream.readexactly(_HEAD.size)
            yield head + await stream.readexactly(_HEAD.unpack(head)[0])
