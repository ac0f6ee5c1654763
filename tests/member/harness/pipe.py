"""One connection of a client to a member."""

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from stele.wire.resp import encode_request

READ_BYTES = 1 << 24


class RespError(Exception):
    """An error reply."""


class Place(Protocol):
    """A member: where it listens to clients is its first port."""

    host: str
    ports: list[int]


class Pipe:
    """What was sent at once, and its replies in order; an error is a reply like others."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def to(cls, member: Place) -> "Pipe":
        return cls(*await asyncio.open_connection(member.host, member.ports[0], limit=READ_BYTES))

    async def ask(self, *requests: list[bytes]) -> list[Any]:
        self.writer.write(b"".join(map(encode_request, requests)))
        return [await self._reply() for _ in requests]

    async def _reply(self) -> Any:
        line = (await self._reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"*":
            return [await self._reply() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else (await self._reader.readexactly(int(rest) + 2))[:-2]
        return RespError(rest.decode()) if kind == b"-" else int(rest) if kind == b":" else rest

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
