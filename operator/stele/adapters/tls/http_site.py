"""A port of an aiohttp application that takes TLS connections beside plain ones, and whom it talks to.

A plain request cannot be told from a connection before its first bytes are read, and where it is refused it
gets an answer in HTTP: so the port takes both, and the application refuses (`caller`, `tls_required`).
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from stele.adapters.tls.acceptor import TlsAcceptor, TlsLimits
from stele.adapters.tls.identity import TlsIdentity
from stele.adapters.tls.peer import Certificate
from stele.core.control.member_settings import ClientTls


class HttpAcceptor(TlsAcceptor):
    """Takes plain connections, and those with TLS, in which both sides show a certificate.

    Its dates and holder are for `adapters.tls.peer` to check, with each request.
    """

    silent_is_plain = False

    def __init__(
        self, identity: TlsIdentity, on_failure: Callable[[str, str], None], limits: TlsLimits
    ) -> None:
        super().__init__(identity, on_failure, limits)
        self.require(ClientTls.OPTIONAL, ssl.CERT_REQUIRED)

    @property
    def context(self) -> ssl.SSLContext | None:
        """Implement TlsAcceptor."""
        contexts = self.contexts
        return None if contexts is None else contexts.dialled


class HttpSite(web.BaseSite):
    """Serves an application at a port; what its acceptor has not let in yet is closed with it."""

    def __init__(self, runner: web.BaseRunner, acceptor: TlsAcceptor, host: str, port: int) -> None:
        super().__init__(runner)
        self._acceptor, self._host, self._port = acceptor, host, port

    @property
    def name(self) -> str:
        """Implement web.BaseSite."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Implement web.BaseSite."""
        await super().start()
        make = self._runner.server
        assert make is not None, "the runner is set up before a site is made"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self._acceptor.accept(make), self._host, self._port)

    async def stop(self) -> None:
        """Implement web.BaseSite."""
        await super().stop()
        self._acceptor.close()


def site_of(runner: web.BaseRunner, host: str, port: int, acceptor: TlsAcceptor | None) -> web.BaseSite:
    """Return a site for what the acceptor takes; for plain connections alone without one."""
    return web.TCPSite(runner, host, port) if acceptor is None else HttpSite(runner, acceptor, host, port)


@dataclass(frozen=True, slots=True)
class Caller:
    """The other side of a request that came with TLS: its certificate, and those by which it was verified."""

    certificate: Certificate
    chain: frozenset[bytes]


def caller(request: web.Request) -> Caller | None:
    """Return who sent a request; None for a plain one."""
    transport = request.transport
    certificate = None if transport is None else transport.get_extra_info("peercert")
    if transport is None or certificate is None:
        return None
    return Caller(certificate, transport.get_extra_info("peerchain"))


def tls_required(what_to_do: str) -> web.HTTPException:
    """Return the answer to a plain request that is not taken; the connection is closed."""
    text = f"this port takes only TLS connections: {what_to_do}\n"
    refusal = web.HTTPUpgradeRequired(text=text, headers={"Upgrade": "TLS/1.2"})
    refusal.force_close()
    return refusal
