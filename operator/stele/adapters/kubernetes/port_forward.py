"""A connection to a port of a pod through the API server: `pods/portforward` by WebSocket.

Each message begins with the number of its channel, 0 for what is sent and received, 1 for errors; the first
one of each channel has the port. A port of this machine stands for it while the block runs, as with
`kubectl port-forward`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp

DATA, ERROR = 0, 1
PIECE_BYTES = 64 * 1024
ERROR_CHARACTERS_MAX = 500
PORT_BYTES = 2


class Forward:
    """`problem` is what the other end said of the connection, or empty."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.problem = ""
        self._heard = {DATA: 0, ERROR: 0}

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways, until either side ends."""
        ways = [asyncio.create_task(self._out(reader)), asyncio.create_task(self._back(writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ways:
                each.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()

    async def _out(self, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._socket.send_bytes(bytes([DATA]) + piece)

    async def _back(self, writer: asyncio.StreamWriter) -> None:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, content = message.data[0], self._content(message.data)
            if channel == DATA and content:
                writer.write(content)
                await writer.drain()
            elif channel == ERROR and content:
                self.problem = content[:ERROR_CHARACTERS_MAX].decode(errors="replace").strip()
                return

    def _content(self, message: bytes) -> bytes:
        """Return what a message carries: not its channel, nor the port, which each channel begins with."""
        channel, content = message[0], message[1:]
        heard = self._heard.get(channel, PORT_BYTES)
        self._heard[channel] = heard + len(content)
        return content[max(0, PORT_BYTES - heard) :]


@asynccontextmanager
async def forwarded(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[tuple[int, Forward]]:
    """Yield a port on 127.0.0.1 that leads to the pod's. It takes one connection, which is whose comes first:
    the other end has to be known by its certificate, and knows by one who this is."""
    forward, arrived = Forward(socket), asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if arrived.is_set():
            writer.close()
            return
        arrived.set()
        server.close()
        with suppress(ConnectionError):
            await forward.carry(reader, writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], forward
    finally:
        server.close()
        await socket.close()
