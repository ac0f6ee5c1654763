"""Who may send requests to a port that is for one role: by certificate, or on some routes by a token.

The port takes nothing but TLS. Those who have no certificate (Spark's tasks, the kubelet) show none.
"""

import asyncio
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from aiohttp import web

from stele.adapters import http
from stele.adapters.rate_limited_log import RateLimitedLog
from stele.adapters.tls.acceptor import TlsLimits
from stele.adapters.tls.caller import caller_refusal
from stele.adapters.tls.http_site import HttpAcceptor, caller, is_encrypted, tls_required
from stele.adapters.tls.identity import TlsIdentity
from stele.core.security.identity import Role

log = logging.getLogger("stele.tls")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMITS = TlsLimits(waiting_max=1000, handshakes_max=256, handshake_seconds_max=5.0)
LOGGED_SECONDS = 10.0
"""Connections and requests that are refused are logged once per this interval."""
LOOK_SECONDS = 10.0
"""Interval of looks at the certificate."""


class AskingAcceptor(HttpAcceptor):
    """Takes connections whose sides have a certificate, and those that have none."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """Implement TlsAcceptor."""
        contexts = self.contexts
        return None if contexts is None else contexts.asking


class HttpCallers(ABC):
    """Lets requests in, or answers and logs why not; `acceptor` is for the port."""

    where = ""
    """Of the refusal, for the log."""

    def __init__(self, identity: TlsIdentity) -> None:
        self._refused = RateLimitedLog(LOGGED_SECONDS)
        self.acceptor = AskingAcceptor(identity, self._log, LIMITS)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Implement a middleware of aiohttp."""
        if (refused := self._refusal(request)) is not None:
            self._log(str(request.remote), f"{request.method} {http.route_of(request)}: {refused.text}")
            raise refused
        return await handler(request)

    @abstractmethod
    def _refusal(self, request: web.Request) -> web.HTTPException | None:
        """Return the answer to a request that is not let in."""

    def _log(self, address: str, why: str) -> None:
        if (suppressed := self._refused.admit()) is not None:
            text = "%s is refused%s: %s (%d more were not logged)"
            log.warning(text, address, self.where, why.strip(), suppressed)


class RoleCallers(HttpCallers):
    """Lets requests of one role in, or answers 403 and 426, with what is expected.

    `open_routes` are for those without a certificate, too: their handlers check
    tokens. A certificate that is shown has to be right there as well.
    """

    def __init__(self, identity: TlsIdentity, role: Role, open_routes: Collection[str]) -> None:
        super().__init__(identity)
        self._identity, self._role, self._open_routes = identity, role, open_routes

    async def watching(self, _: web.Application) -> AsyncIterator[None]:
        """Keep the certificate up to date while the application runs."""
        await asyncio.to_thread(self._identity.look)
        watch = asyncio.create_task(self._identity.watch(LOOK_SECONDS))
        yield
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    def _refusal(self, request: web.Request) -> web.HTTPException | None:
        needs = f"use https and show a certificate of role {self._role} (docs/operating/security.md)"
        if request.transport is None:
            return web.HTTPForbidden(text="the connection was closed\n")
        if not is_encrypted(request):
            return tls_required(needs)
        if (found := caller(request)) is not None:
            why = caller_refusal(self._identity.contexts, found, (self._role,))
            return web.HTTPForbidden(text=f"the certificate is not taken here: {why}\n") if why else None
        is_open = http.route_of(request) in self._open_routes
        return None if is_open else web.HTTPForbidden(text=f"no certificate: {needs}\n")
