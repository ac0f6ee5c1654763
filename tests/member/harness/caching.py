"""Connections of clients with near caches: what they were answered, and what they were told besides."""

import asyncio
from typing import Any

from stele.wire.resp import encode_request
from tests.fakes.resp_client import Pushed, Replies

OPEN: list["Connection"] = []


async def close_all() -> None:
    """Close what a test has opened."""
    for each in OPEN:
        each.writer.close()
    await asyncio.gather(*(each.writer.wait_closed() for each in OPEN), return_exceptions=True)
    OPEN.clear()


class Connection:
    """One client, and everything that it received: replies and pushes apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._parser = Replies()
        self.pushed: list[Any] = []
        self.replies: list[Any] = []
        OPEN.append(self)

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> "Connection":
        for _ in range(100):
            try:
                return cls(*await asyncio.open_connection(host, port))
            except OSError:
                await asyncio.sleep(0.05)
        raise AssertionError(f"nobody listens at {host}:{port}")

    def send(self, *words: str | bytes) -> None:
        request = [word.encode() if isinstance(word, str) else word for word in words]
        self.writer.write(encode_request(request))

    async def call(self, *words: str | bytes) -> Any:
        """The reply; messages to a subscriber of RESP2 are no replies."""
        self.send(*words)
        count = len(self.replies)
        while len(self.replies) == count:
            await self.read(5.0)
        return self.replies[-1]

    async def read(self, seconds: float) -> bool:
        """Wait for bytes; return whether some came, and fail without any after a long wait."""
        try:
            async with asyncio.timeout(seconds):
                data = await self._reader.read(1 << 20)
        except TimeoutError:
            if seconds > 1:
                raise
            return False
        if not data:
            raise ConnectionError("closed by the server")
        for value in self._parser.feed(data):
            is_push = isinstance(value, Pushed) or (isinstance(value, list) and value[:1] == [b"message"])
            (self.pushed if is_push else self.replies).append(value)
        return True
