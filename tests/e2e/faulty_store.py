"""A store that speaks RESP and can break each of the rules that the demo checks."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hiredis

from e2e.demo.resp import Endpoint

READ_BYTES = 65536


class FaultyStore:
    """Right unless told otherwise. Counters say in how many requests each fault still happens."""

    def __init__(self) -> None:
        self.spaces: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        self.before: dict[bytes, bytes] = {}
        self.forget_writes = 0
        self.old_reads = 0
        self.refuse_and_do = 0
        self.refuse = 0
        self.cut_after_doing = 0
        self.close_at_rest = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        parser, space, asked = hiredis.Reader(), b"default", b""
        try:
            while data := await reader.read(READ_BYTES):
                parser.feed(data)
                while (words := parser.gets()) is not False:
                    asked = words[0]
                    if asked == b"SELECT":
                        space = words[1]
                    reply = self.answer(space, words)
                    if reply is None:
                        return
                    writer.write(reply)
                await writer.drain()
                if self.close_at_rest and asked == b"GET":
                    self.close_at_rest -= 1
                    return
        except ConnectionError:
            pass
        finally:
            writer.close()

    def answer(self, space: bytes, words: list[bytes]) -> bytes | None:
        """The reply, None to cut the connection."""
        values = self.spaces[space]
        if words[0] == b"GET":
            return self._get(values, words[1])
        if words[0] == b"SET":
            return self._set(values, words[1], words[2])
        return b"+OK\r\n"

    def _get(self, values: dict[bytes, bytes], key: bytes) -> bytes:
        value = values.get(key)
        if self.old_reads and key in self.before:
            self.old_reads -= 1
            value = self.before[key]
        return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)

    def _set(self, values: dict[bytes, bytes], key: bytes, value: bytes) -> bytes | None:
        if self.refuse:
            self.refuse -= 1
            return b"-TRYAGAIN the partition is moving\r\n"
        if self.forget_writes:
            self.forget_writes -= 1
            return b"+OK\r\n"
        if key in values:
            self.before[key] = values[key]
        values[key] = value
        if self.refuse_and_do:
            self.refuse_and_do -= 1
            return b"-TRYAGAIN not done, it says\r\n"
        if self.cut_after_doing:
            self.cut_after_doing -= 1
            return None
        return b"+OK\r\n"


@asynccontextmanager
async def running(store: FaultyStore) -> AsyncIterator[Endpoint]:
    """Serve on a free loopback port."""
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0)
    try:
        yield Endpoint(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
