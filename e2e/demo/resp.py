"""One connection to the RESP port: pipelined requests, replies in order, every wait with an end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import hiredis

READ_BYTES = 256 * 1024
ERROR_CODE_LENGTH_MAX = 32

Reply = Any
Command = tuple[bytes, ...]
# Its declared type allows tuples of one element only.
_pack: Callable[[Command], bytes] = cast(Any, hiredis.pack_command)


@dataclass(frozen=True)
class Login:
    """What clients need of a closed cluster: the file with its CA, the name that its certificates have, and
    the password of user `default`."""

    ca_file: str
    host_name: str
    password: str

    @property
    def context(self) -> ssl.SSLContext:
        return _context_of(self.ca_file)


@cache
def _context_of(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


@dataclass(frozen=True)
class Endpoint:
    """Where clients connect; without a login, to one that is open."""

    host: str
    port: int
    login: Login | None = None

    def at(self, host: str, port: int) -> Endpoint:
        """Return another one of the same cluster."""
        return replace(self, host=host, port=port)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def redis_options(endpoint: Endpoint) -> dict[str, Any]:
    """Return what redis-py needs to log in there; it would compare the host's name with the certificate."""
    if endpoint.login is None:
        return {}
    tls = {"ssl": True, "ssl_ca_certs": endpoint.login.ca_file, "ssl_check_hostname": False}
    return {**tls, "password": endpoint.login.password}


class ReplyFailure(Exception):  # noqa: N818 - an error answer is a reply, not a failure of this program
    """An error reply; `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0][:ERROR_CODE_LENGTH_MAX]


class Connection:
    """A connection on one keyspace. Not usable any more after an exception of `ask`: close it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._replies = hiredis.Reader(replyError=ReplyFailure, errors=None)

    @classmethod
    async def open(cls, endpoint: Endpoint, keyspace: str, timeout_seconds: float) -> Connection:
        """Connect, log in and select the keyspace; raises OSError (TimeoutError is one) or ReplyFailure."""
        login = endpoint.login
        given: dict[str, Any] = {}
        if login is not None:
            given = {"ssl": login.context, "server_hostname": login.host_name}
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, **given)
        made = cls(reader, writer)
        try:
            if login is not None:
                await made.one((b"AUTH", login.password.encode()), timeout_seconds)
            if keyspace != "default":
                await made.one((b"SELECT", keyspace.encode()), timeout_seconds)
        except BaseException:
            made.close()
            raise
        return made

    async def one(self, command: Command, timeout_seconds: float) -> Reply:
        """The reply to one command; raises ReplyFailure for an error reply."""
        (reply,) = await self.ask([command], timeout_seconds)
        if isinstance(reply, ReplyFailure):
            raise reply
        return reply

    async def ask(
        self, commands: Sequence[Command], timeout_seconds: float, replies: list[Reply] | None = None
    ) -> list[Reply]:
        """The replies to all commands, in order, an error reply as a ReplyFailure in its place.

        Raises OSError when the connection is lost or garbled, or when time is up: what was asked may or may
        not have run, but for what is in `replies`, which takes each reply when it comes.
        """
        found = [] if replies is None else replies
        async with asyncio.timeout(timeout_seconds):
            self._writer.write(b"".join(map(_pack, commands)))
            await self._writer.drain()
            for _ in commands:
                found.append(await self._reply())
        return found

    async def _reply(self) -> Reply:
        while True:
            try:
                reply = self._replies.gets()
            except hiredis.ProtocolError as error:
                raise ConnectionError(f"the server does not speak RESP: {error}") from error
            if reply is not False:
                return reply
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._replies.feed(data)

    @property
    def closed_by_server(self) -> bool:
        """Whether the server closed it while nothing was asked: nothing that was sent is in doubt then."""
        return self._reader.at_eof() or self._reader.exception() is not None

    def close(self) -> None:
        """Close at once, without waiting for the other side."""
        self._writer.transport.abort()
