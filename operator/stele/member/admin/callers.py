"""Who may send a member what on port 7001.

With TLS, the certificate of each request has to be of the cluster, of a CA that is trusted now, valid now,
and of the role that the route is for. Plain requests are anonymous: the level of TLS among members says which
of them are taken.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from stele.adapters import http
from stele.adapters.tls.caller import Caller
from stele.adapters.tls.http_site import caller, tls_required
from stele.core.security.identity import Role
from stele.member.admin.audit import Asked, Audit, who
from stele.member.replication.member_tls import MemberTls

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EXCHANGE, STOPPING = "/v1/exchange", "/v1/stopping"
"""Routes of the master, and of this pod's own processes."""

NEEDS = "use https and show a certificate of role {} (docs/operating/security.md)"


class Callers:
    """Lets requests in, or answers 403 and 426, with what is expected."""

    def __init__(self, tls: MemberTls) -> None:
        self._tls, self._audit = tls, Audit()

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Implement a middleware of aiohttp: check who asks, and note what comes of it."""
        # Who asks is looked at now: once the other side has closed the connection, nobody can tell.
        if request.transport is None:
            raise web.HTTPForbidden(text="the connection was closed\n")
        route, status, found = http.route_of(request), 0, caller(request)
        try:
            if (refusal := self._refusal(request, route, found)) is not None:
                raise refusal
            response = await handler(request)
            status = response.status
        except web.HTTPException as answer:
            status = answer.status
            raise
        finally:
            asked = Asked(who(request, found), route, by_hand=route not in (EXCHANGE, STOPPING))
            self._audit.note(request, asked, status)
        return response

    def _refusal(self, request: web.Request, route: str, found: Caller | None) -> web.HTTPException | None:
        if route == STOPPING:
            # Its handler lets in this pod's processes alone, which have its token and no certificate.
            return None
        role = Role.MASTER if route == EXCHANGE else Role.ADMIN
        if found is None:
            plain = self._tls.takes_plain_exchanges if route == EXCHANGE else self._tls.level.listens_plain
            return None if plain else tls_required(NEEDS.format(role))
        why = self._tls.caller_refusal(found.certificate, found.chain, role)
        text = f"{request.method} {route or request.path} is not for this certificate: {why}\n"
        return web.HTTPForbidden(text=text) if why else None
