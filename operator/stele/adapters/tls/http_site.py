"""A port of an aiohttp application that takes TLS connections beside plain ones, and whom it talks to.

A plain request cannot be told from a connection before its first bytes are read, and where it is refused it
gets an answer in HTTP: so the port takes both, and the application refuses (`caller`, `tls_required`).
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from aiohttp import web

from stele.adapters.connections import CONNECTIONS
from stele.adapters.tls.acceptor import TlsAcceptor, TlsLimits
from stele.adapters.tls.caller import Caller
from stele.adapters.tls.identity import TlsIdentity
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
    """Serves an `http.application` at a port, within the limits of its connections.

    Without an acceptor all are plain. What it has not let in yet is closed with the site.
    """

    def __init__(self, runner: web.AppRunner, acceptor: TlsAcceptor | None, host: str, port: int) -> None:
        super().__init__(runner)
        self._connections = runner.app[CONNECTIONS]
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
        arrive = partial(self._connections.accept, make)
        begin = arrive if self._acceptor is None else partial(self._acceptor.accept, arrive)
        self._server = await asyncio.get_running_loop().create_server(begin, self._host, self._port)

    async def stop(self) -> None:
        """Implement web.BaseSite."""
        await super().stop()
        if self._acceptor is not None:
            self._acceptor.close()


def caller(request: web.Request) -> Caller | None:
    """Return who sent a request; None for a plain one."""
    transport = request.transport
    certificate = None if transport is None else transport.get_extra_info("peercert")
    if transport is None or certificate is None:
        return None
    return Caller(certificate, transport.get_extra_info("peerchain"))


def is_encrypted(request: web.Request) -> bool:
    """Return whether a request came with TLS."""
    return request.transport is not None and request.transport.get_extra_info("ssl_object") is not None


def tls_required(what_to_do: str) -> web.HTTPException:
    """Return the answer to a plain request that is not taken."""
    text = f"this port takes only TLS connections: {what_to_do}\n"
    return web.HTTPUpgradeRequired(text=text, headers={"Upgrade": "TLS/1.2"})
