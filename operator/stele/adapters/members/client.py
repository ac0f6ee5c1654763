"""Exchanges with members over HTTP. The caller sets the deadline."""

import aiohttp

from stele.adapters.body import read_body
from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.errors import BadInput, Corrupt, Unavailable
from stele.wire.control import EXCHANGE_BYTES_MAX, decode_reply, encode
from stele.wire.urls import http_root

ADMIN_PORT = 7001

CONNECT_SECONDS = 1.0
"""A member in the same cluster network answers within milliseconds, or not at all."""


class MemberClient:
    """Client that keeps one connection per member alive.

    Raises Unavailable when there was no answer (commands may have run: they are idempotent), and Corrupt when
    the answer is not a reply of this protocol.
    """

    def __init__(self, port: int = ADMIN_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "MemberClient":
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def exchange(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        assert self._session is not None, "use the client inside `async with`"
        url = f"{http_root(address, self._port)}/v1/exchange"
        limits = aiohttp.ClientTimeout(total=deadline_seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.post(url, data=encode(request), timeout=limits) as answer:
                body = await read_body(answer, EXCHANGE_BYTES_MAX)
                status = answer.status
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{url}: {type(error).__name__} {error}") from error
        try:
            return decode_reply(body)
        except BadInput as error:
            raise Corrupt(f"{url} answered {status}, and not with a valid reply: {error}") from error
