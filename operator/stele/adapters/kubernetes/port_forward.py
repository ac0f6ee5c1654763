"""A connection to a port of a pod through the API server: `pods/portforward` by WebSocket.

Each message begins with the number of its channel, 0 for what is sent and received, 1 for errors; the first
one of each channel has the port. A port of this machine stands for it while the block runs, as with
`kubectl port-forward`.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp

DATA, ERROR = 0, 1
PIECE_BYTES = 64 * 1024
ERROR_CHARACTERS_MAX = 500
PORT_BYTES = 2
LOCAL = "127.0.0.1"


class Forward:
    """`problem` is what the other end said of the connection, or empty."""

    def __init__(self, web_socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = web_socket
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
            writer.close()
            await asyncio.gather(*ways, writer.wait_closed(), return_exceptions=True)

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


class Way(NamedTuple):
    """A port on 127.0.0.1 that leads to the pod's, for connections whose sockets `make_socket` makes."""

    port: int
    forward: Forward
    make_socket: Callable[[object], socket.socket]


@asynccontextmanager
async def forwarded(web_socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[Way]:
    """Yield the way to a port of a pod. It takes one connection, which has to be from a socket of ours: other
    users of this machine can connect to the port, too, and pods trust what comes from inside of them."""
    forward, carrying = Forward(web_socket), list[asyncio.Task[None]]()
    own: set[tuple[str, int]] = set()

    def make_socket(_address: object) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.bind((LOCAL, 0))
        made.setblocking(False)
        own.add(made.getsockname())
        return made

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if carrying or writer.get_extra_info("peername") not in own:
            writer.close()
            return
        # Not this task, which is the server's: who leaves the block waits until the connection is closed.
        carrying.append(asyncio.create_task(forward.carry(reader, writer)))
        server.close()

    server = await asyncio.start_server(take, LOCAL, 0)
    try:
        yield Way(server.sockets[0].getsockname()[1], forward, make_socket)
    finally:
        server.close()
        await web_socket.close()
        for each in carrying:
            each.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
