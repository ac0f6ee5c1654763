"""A client's end of a RESP connection as an asyncio.Protocol: requests in order, replies in order."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from stele.core.kv.commands import Failure, Simple
from stele.wire.resp import encode_request

_END = b"\r\n"


class _IncompleteError(Exception):
    """More bytes are needed."""


class RespConnection(asyncio.Protocol):
    """`pushes` are the messages that answer no request (RESP3), in the order in which they came."""

    def __init__(self) -> None:
        self.pushes: list[Any] = []
        self.open = False
        self._buffer = b""
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol: requests without a reply get none."""
        self.open = False
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionResetError("connection lost"))
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        self._buffer += data
        while self._buffer:
            try:
                value, end = _parse(self._buffer, 0)
            except _IncompleteError:
                return
            pushed = self._buffer[:1] == b">"
            self._buffer = self._buffer[end:]
            self.received(value, pushed=pushed)

    def received(self, value: Any, *, pushed: bool) -> None:
        """Take one message or reply, in the order of the stream."""
        if pushed:
            self.pushes.append(value)
        elif not (future := self._waiting.popleft()).done():
            future.set_result(value)

    def send(self, *requests: Sequence[bytes]) -> "list[asyncio.Future[Any]]":
        """Send requests in one write. Raises ConnectionResetError when the connection is closed."""
        if not self.open:
            raise ConnectionResetError("connection lost")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in requests]
        self._waiting += futures
        self._transport.write(b"".join(map(encode_request, requests)))
        return futures

    async def ask(self, *requests: Sequence[bytes]) -> list[Any]:
        """Return the replies; errors are Failures. Raises ConnectionResetError when it is lost before."""
        futures = self.send(*requests)
        try:
            return [await each for each in futures]
        finally:
            for each in futures:
                # Of several that fail, one is raised here.
                each.cancel() if not each.done() else each.exception()

    def close(self) -> None:
        """Close the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()


def _parse(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    end = data.find(_END, at)
    if end < 0:
        raise _IncompleteError
    mark, line, at = data[at : at + 1], data[at + 1 : end], end + len(_END)
    if mark == b"$":
        return _bulk(data, at, int(line))
    if mark in b"*>~%":
        return _items(data, at, int(line) * (2 if mark == b"%" else 1))
    if mark == b"-":
        code, _, text = line.decode().partition(" ")
        return Failure(code, text), at
    values = {b"+": Simple(line.decode()), b"_": None}
    return (values[mark] if mark in values else int(line)), at


def _bulk(data: bytes, at: int, size: int) -> tuple[bytes | None, int]:
    if size < 0:
        return None, at
    if len(data) < at + size + len(_END):
        raise _IncompleteError
    return data[at : at + size], at + size + len(_END)


def _items(data: bytes, at: int, count: int) -> tuple[list[Any] | None, int]:
    items = []
    for _ in range(count):
        item, at = _parse(data, at)
        items.append(item)
    return (items if count >= 0 else None), at
