"""Recording relays in front of ports: all that passes, as it is on the network.

They need no rights, other than a capture of the interface would.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

READ_BYTES = 1 << 16


class Recorder:
    """Relays of connections. `sent` has, by port, the bytes of each direction of each connection."""

    def __init__(self) -> None:
        self.sent: dict[int, list[bytearray]] = {}
        self._servers: list[asyncio.Server] = []
        self._running: set[asyncio.Task[None]] = set()

    async def relay(self, outer: str, inner: str, port: int) -> None:
        """Listen at `outer` for who listens at `inner`."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                await self._pass_on(reader, writer, inner, port)
            finally:
                writer.close()
                self._running.discard(task)

        self._servers.append(await asyncio.start_server(take, outer, port))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: str, port: int
    ) -> None:
        with contextlib.suppress(OSError):
            back, there = await asyncio.open_connection(inner, port)
            records = bytearray(), bytearray()
            self.sent.setdefault(port, []).extend(records)
            try:
                await asyncio.gather(_copy(reader, there, records[0]), _copy(back, writer, records[1]))
            finally:
                there.close()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def ports_with(self, text: bytes) -> set[int]:
        """Return at which ports these bytes have passed."""
        return {port for port, records in self.sent.items() if any(text in record for record in records)}

    def busy_ports(self) -> set[int]:
        """Return at which ports anything has passed, in both directions of a connection."""
        return {port for port, records in self.sent.items() if sum(map(bool, records)) > 1}


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bytearray) -> None:
    """Pass on one direction until its end. Raises OSError when one side resets the connection."""
    while data := await source.read(READ_BYTES):
        record += data
        sink.write(data)
        await sink.drain()
    sink.write_eof()


@contextlib.contextmanager
def recorded(outer: str, inner: str, ports: Iterable[int]) -> Iterator[Recorder]:
    """Relay these ports from a thread, for a test that has no event loop."""
    recorder, loop = Recorder(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, loop).result()

    try:
        for port in ports:
            run(recorder.relay(outer, inner, port))
        yield recorder
    finally:
        run(recorder.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
