"""Exchanges with the members of one cluster over HTTP, with TLS or without. The caller sets the deadline."""

import ssl
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp

from stele.adapters.body import read_body
from stele.adapters.members.room import Held, Room
from stele.adapters.tls.http_client import CheckedConnector
from stele.adapters.tls.peer import Certificate
from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.table.ids import MemberIndex
from stele.errors import BadInput, Corrupt, Unavailable
from stele.wire.control import decode_reply, encode, reply_bytes_max
from stele.wire.urls import host_port

ADMIN_PORT = 7001

CONNECT_SECONDS = 1.0
"""A member in the same cluster network answers within milliseconds, or not at all."""

HANDSHAKE_SECONDS = 3.0
"""The same with TLS, in which the process at the other side has its turns."""

REFUSAL_BYTES_MAX = 1000
"""Of what it says about that."""


class Dialling(Protocol):
    """How the members of one cluster are dialled, and who may answer."""

    @property
    def requires_tls(self) -> bool:
        """Whether nothing is sent without TLS."""
        ...

    @property
    def context(self) -> ssl.SSLContext | None:
        """What to dial with; None while there is no certificate."""
        ...

    @property
    def problem(self) -> str:
        """Why there is no certificate."""
        ...

    def note_demand(self, member: MemberIndex, *, demands_tls: bool) -> None:
        """Note that a member refuses plain requests, or that TLS failed there."""
        ...

    def demands_tls(self, member: MemberIndex) -> bool:
        """Return whether a member refused a plain request."""
        ...

    def name_of(self, member: MemberIndex) -> str:
        """Return the name that the certificate of a member has."""
        ...

    def refusal(self, name: str, certificate: Certificate) -> str:
        """Return why who shows this certificate is not the member of that name, or nothing."""
        ...


class MemberClient:
    """Client that keeps one connection per member alive.

    Without `dialling`, members are dialled plain. Raises Unavailable when there was no answer (commands may
    have run: they are idempotent), and Corrupt when the answer is not a reply of this protocol.
    """

    def __init__(
        self, dialling: Dialling | None = None, port: int = ADMIN_PORT, room: Room | None = None
    ) -> None:
        """`room` is what replies that are being read may take, that of all clusters together."""
        self._dialling, self._port = dialling, port
        self._room = (room or Room()).share()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "MemberClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; another exchange opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def exchange(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        """Send a request, with TLS where it is required; else also to a member that wants nothing else."""
        with self._room.reply() as held:
            return await self._exchange(address, request, deadline_seconds, held)

    async def _exchange(
        self, address: str, request: ExchangeRequest, deadline_seconds: float, held: Held
    ) -> ExchangeReply:
        dialling, index = self._dialling, request.self_index
        with_tls = dialling is not None and (dialling.requires_tls or dialling.demands_tls(index))
        post = partial(self._post, address, request, deadline_seconds, held)
        status, body = await post(with_tls=with_tls)
        if status == HTTPStatus.UPGRADE_REQUIRED and dialling is not None and not with_tls:
            dialling.note_demand(index, demands_tls=True)
            status, body = await post(with_tls=True)
        place = host_port(address, self._port)
        if status in (HTTPStatus.UPGRADE_REQUIRED, HTTPStatus.FORBIDDEN):
            text = " ".join(body[:REFUSAL_BYTES_MAX].decode(errors="replace").split())
            raise Unavailable(f"{place} refused: {text}")
        try:
            return decode_reply(body)
        except BadInput as error:
            raise Corrupt(f"{place} answered {status}, and not with a valid reply: {error}") from error

    async def _post(
        self, address: str, request: ExchangeRequest, deadline_seconds: float, held: Held, *, with_tls: bool
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=CheckedConnector(self._refusal))
        url = f"{'https' if with_tls else 'http'}://{host_port(address, self._port)}/v1/exchange"
        connect_seconds = HANDSHAKE_SECONDS if with_tls else CONNECT_SECONDS
        limits = aiohttp.ClientTimeout(total=deadline_seconds, sock_connect=connect_seconds)
        more = self._tls(request.self_index) if with_tls else {}
        try:
            sent = self._session.post(
                url, data=encode(request), timeout=limits, allow_redirects=False, **more
            )
            async with sent as answer:
                return answer.status, await read_body(answer, reply_bytes_max(request), held.add)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if with_tls and self._dialling is not None:
                self._dialling.note_demand(request.self_index, demands_tls=False)
            raise Unavailable(f"{url}: {type(error).__name__} {error}") from error

    def _refusal(self, name: str, certificate: Certificate) -> str:
        assert self._dialling is not None
        return self._dialling.refusal(name, certificate)

    def _tls(self, member: MemberIndex) -> dict[str, Any]:
        """Return what a request is sent with.

        Connections are kept by both, so a request uses none of another member, and none that an older
        certificate or other CAs made.
        """
        assert self._dialling is not None
        context = self._dialling.context
        if context is None:
            raise Unavailable(f"the operator has no certificate for this cluster: {self._dialling.problem}")
        return {"ssl": context, "server_hostname": self._dialling.name_of(member)}
