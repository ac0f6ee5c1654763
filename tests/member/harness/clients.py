"""Clients of members."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stele.wire.resp import encode_request

if TYPE_CHECKING:
    from tests.member.harness.cluster import Cluster, MemberProcess

READ_BYTES = 1 << 24


class RespError(Exception):
    """An error reply."""


class Pipe:
    """What was sent at once, and its replies in order; an error is a reply like others."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def to(cls, member: "MemberProcess") -> "Pipe":
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


class Client:
    """Writes numbered values through RESP and remembers what was acknowledged."""

    def __init__(self, made: "Cluster") -> None:
        self._cluster = made
        made.clients.append(self)
        self._pipes: dict[int, Pipe] = {}
        self.acknowledged: dict[bytes, bytes] = {}
        self.unknown: dict[bytes, set[bytes]] = {}
        self.errors: list[str] = []

    async def call(self, member: int, *args: bytes) -> Any:
        """One command; the reply. Raises ConnectionError, and RespError for an error reply."""
        if member not in self._pipes:
            self._pipes[member] = await Pipe.to(self._cluster.members[member])
        try:
            (reply,) = await self._pipes[member].ask(list(args))
        except (asyncio.IncompleteReadError, OSError) as error:
            await self.drop(member)
            raise ConnectionError(str(error)) from error
        if isinstance(reply, RespError):
            raise reply
        return reply

    async def drop(self, member: int) -> None:
        """Close the connection to it, if there is one."""
        pipe = self._pipes.pop(member, None)
        if pipe is not None:
            await pipe.close()

    async def set(self, member: int, key: bytes, value: bytes) -> bool:
        """Write, and remember how it went."""
        try:
            reply = await self.call(member, b"SET", key, value)
        except (ConnectionError, RespError) as error:
            self.errors.append(f"SET {key!r}: {error}")
            self.unknown.setdefault(key, set()).add(value)
            return False
        assert reply == b"OK"
        self.acknowledged[key] = value
        self.unknown.pop(key, None)
        return True

    async def check(self, member: int) -> None:
        """Every acknowledged write is read, or a later one whose end is not known."""
        for key, value in self.acknowledged.items():
            found = await self.call(member, b"GET", key)
            assert found == value or found in self.unknown.get(key, ()), (key, value, found)

    async def close(self) -> None:
        for member in list(self._pipes):
            await self.drop(member)
