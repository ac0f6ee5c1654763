"""Who may send a transfer process what, on port 7002.

| route | sender |
| --- | --- |
| `/v1/sessions/<session>/partitions/<p>`, `/v1/bulk/sessions/<session>/...` | who has the session's token |
| `/v1/bulk/loads/<load>...` | a member, or who has the load's token |
| `/v1/sessions`, `/v1/copies...`, `/v1/log-level` | processes of this pod, who have its token |
| `/healthz` | anyone |

With TLS, a certificate is not demanded, as Spark has none; one that is shown has to be that of a member of
this cluster, whatever the route. Plain requests are taken below Required, and count as a member's; at
Required only from this pod, and only on the routes for it and `/healthz`.
"""

from pathlib import Path

import msgspec
from aiohttp import web

from stele.adapters import http, pod_token
from stele.adapters.tls.http_site import caller, is_encrypted, tls_required
from stele.adapters.tls.role_callers import HttpCallers
from stele.transfer.tls import VolumeTls
from stele.wire.urls import LOG_LEVEL

POD_ROUTES = ("/v1/sessions", "/v1/copies", "/v1/copies/{session}", LOG_LEVEL)
LOCAL_ROUTES = (*POD_ROUTES, "/healthz")
JSON = "application/json"
WHAT_TO_DO = "use https, see docs/operating/security.md"


class Callers(HttpCallers):
    """Lets requests in, or answers 401, 403 and 426, with what is expected."""

    where = " at the transfer port"

    def __init__(self, tls: VolumeTls, data: Path) -> None:
        super().__init__(tls.identity)
        self._tls, self._data = tls, data

    def _refusal(self, request: web.Request) -> web.HTTPException | None:
        if (refused := self._sender_refusal(request)) is not None:
            return refused
        if http.route_of(request) in POD_ROUTES and not self._is_of_this_pod(request):
            body = _error("FORBIDDEN", "this is for processes of the same pod, who show its token")
            return web.HTTPForbidden(text=body, content_type=JSON)
        return None

    def _is_of_this_pod(self, request: web.Request) -> bool:
        """Return whether a process of this pod asks; the file is read as the member may have restarted."""
        try:
            return pod_token.is_own(request, pod_token.read(self._data))
        except OSError as error:
            self._log("a process of this pod", f"its token cannot be read: {error}")
            return False

    def _sender_refusal(self, request: web.Request) -> web.HTTPException | None:
        if request.transport is None:
            return web.HTTPForbidden(text="the connection was closed\n")
        if not is_encrypted(request):
            own = http.is_local(request) and http.route_of(request) in LOCAL_ROUTES
            return None if own or self._tls.level.listens_plain else tls_required(WHAT_TO_DO)
        if (found := caller(request)) is None:
            return self._anonymous(request)
        why = self._tls.refusal(found)
        return web.HTTPForbidden(text=f"the certificate is not taken here: {why}\n") if why else None

    def _anonymous(self, request: web.Request) -> web.HTTPException | None:
        """Loads have no session whose token the handler could check."""
        load = request.match_info.get("load")
        if load is None or http.bears(request, self._tls.identity.load_token(load)):
            return None
        text = f"load {load[:63]} requires its token, Authorization: Bearer TOKEN, or a member's certificate"
        return web.HTTPUnauthorized(text=_error("UNAUTHORIZED", text), content_type=JSON)


def _error(code: str, detail: str) -> str:
    return msgspec.json.encode({"code": code, "detail": detail}).decode()
