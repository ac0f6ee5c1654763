"""`python -m e2e.bench.member_echo PORT`: answers every command with +OK, on the member's event loop.

What it reaches is the upper bound of any server that is written in Python on this machine.
"""

import asyncio
import sys
from typing import cast

import uvloop


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"+OK\r\n" * data.count(b"*"))


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
