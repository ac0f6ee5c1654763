"""HTTP of a member on port 7001: the master's exchange, digests, tablets, quarantine, status."""

import base64
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

import mmh3
import msgspec
from aiohttp import web

from stele.adapters import http, pod_token
from stele.core.control import commands as m
from stele.errors import BadInput, SteleError
from stele.member import limits
from stele.member.admin.callers import EXCHANGE, STOPPING, Callers
from stele.member.admin.checksum import tablet_checksum
from stele.member.admin.quarantine import Quarantine
from stele.member.admin.session_list import session_list
from stele.member.admin.tablet_info import tablet_facts, tablet_list
from stele.member.admin.transactions import resolve, transaction_list
from stele.member.control.planned_stop import StoppingRequest, StopStatus
from stele.member.node import Node
from stele.member.replication.replica import Replica
from stele.wire import control as wire
from stele.wire.admin import TABLETS_LIMIT_MAX, Done, Purged, Resolved
from stele.wire.storage import keys
from stele.wire.storage.volume import APPLIED, decode_state
from stele.wire.unreadable import UNREADABLE

log = logging.getLogger("stele.admin")

DIGEST_PAGE = 2000
CANCELLED = "cancelled by a user (kubectl stele copies cancel)"
OF_TABLETS = ("/v1/tablets", "/v1/digest", "/v1/checksum", "/v1/quarantine", "/v1/bulk")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
QUARANTINED = r"/v1/quarantine/tablets/{partition}/{generation}"


class Admin:
    """Handlers. An invalid request gets 400 with the reason, and has no effect."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._exchange = node.exchange
        self._quarantine = Quarantine(node)
        self._callers = Callers(node.member_tls)

    def application(self) -> web.Application:
        app = http.application(
            body_bytes_max=limits.BODY_BYTES_MAX,
            middlewares=[self._callers.check, _plain_errors, self._when_loaded],
        )
        app.router.add_post(EXCHANGE, self._on_exchange)
        app.router.add_post(STOPPING, self._on_stopping)
        app.router.add_get("/v1/digest", self._on_digest)
        app.router.add_get("/v1/checksum", self._on_checksum)
        app.router.add_get("/v1/status", self._on_status)
        app.router.add_get("/v1/tablets", self._on_tablets)
        app.router.add_get("/v1/tablets/{partition}", self._on_tablet)
        app.router.add_get("/v1/sessions", self._on_sessions)
        app.router.add_delete("/v1/sessions/{session}", self._on_cancel)
        app.router.add_get("/v1/transactions", self._on_transactions)
        app.router.add_post("/v1/transactions/{transaction}/resolve", self._on_resolve)
        app.router.add_get("/v1/quarantine", self._on_quarantine)
        app.router.add_post(QUARANTINED + "/restore", self._on_restore)
        app.router.add_get(QUARANTINED + "/entries", self._on_entries)
        app.router.add_delete(QUARANTINED, self._on_purge)
        app.router.add_delete("/v1/quarantine/volumes/{name}", self._on_purge_volume)
        return app

    @web.middleware
    async def _when_loaded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests about tablets while the volume is loading: their answers would be wrong."""
        of_tablets = request.path.startswith(OF_TABLETS)
        if of_tablets and not self._exchange.started:
            raise web.HTTPServiceUnavailable(text="the member is loading its volume; retry in a moment\n")
        return await handler(request)

    async def _on_exchange(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            message = wire.decode_request(body)
        except BadInput as error:
            raise web.HTTPBadRequest(text=f"exchange: {error}\n") from None
        reply = await self._exchange.handle(message)
        return web.Response(body=wire.encode(reply), content_type="application/json")

    async def _on_stopping(self, request: web.Request) -> web.Response:
        """Announce a planned stop, and answer whether it has to wait."""
        if not pod_token.is_own(request, self._node.volume.pod_token):
            raise web.HTTPForbidden(text="only a process of this pod may stop this member\n")
        try:
            seconds = msgspec.json.decode(await request.read(), type=StoppingRequest).seconds
        except UNREADABLE as error:
            raise web.HTTPBadRequest(text=f"stopping: {error}\n") from None
        if not self._exchange.started:
            return _json(StopStatus(waiting=False, text="its volume is being loaded, so it serves nothing"))
        return _json(self._node.planned_stop.announce(seconds))

    async def _on_status(self, request: web.Request) -> web.Response:
        node = self._node
        owned = [p for p, row in enumerate(node.rows) if row.owner == node.me]
        facts = {
            "uuid": node.uuid,
            "cluster": node.settings.cluster,
            "name": node.settings.name,
            "incarnation": node.instance.incarnation,
            "index": node.me,
            "epoch": node.table.epoch,
            "state": node.table.state,
            "partitions": len(node.rows),
            "owned": owned,
            "unserved": node.roles.unserved(),
            "stopping": node.planned_stop.announced,
            "broken": {r.partition: r.broken for r in node.replicas.values() if r.broken},
            "members": {i: link.ready for i, link in node.links.items()},
        }
        return web.json_response(facts)

    async def _on_tablets(self, request: web.Request) -> web.Response:
        after = _number(request.query, "after", -1)
        limit = _number(request.query, "limit", TABLETS_LIMIT_MAX)
        if not 1 <= limit <= TABLETS_LIMIT_MAX:
            raise web.HTTPBadRequest(text=f"limit is {limit}; it must be 1 to {TABLETS_LIMIT_MAX}\n")
        return _json(tablet_list(self._node, after, limit))

    async def _on_tablet(self, request: web.Request) -> web.Response:
        return _json(tablet_facts(self._node.tablets, self._replica(request)))

    def _replica(self, request: web.Request) -> Replica:
        partition = _number(request.match_info, "partition")
        replica = self._node.replicas.get(partition)
        if replica is None:
            raise web.HTTPNotFound(text=f"partition {partition} does not exist at this member\n")
        return replica

    async def _on_sessions(self, request: web.Request) -> web.Response:
        return _json(await session_list(self._node, self._node.sessions))

    async def _on_cancel(self, request: web.Request) -> web.Response:
        await self._node.sessions.cancel(request.match_info["session"], CANCELLED)
        return _json(Done())

    async def _on_transactions(self, request: web.Request) -> web.Response:
        return _json(transaction_list(self._node))

    async def _on_resolve(self, request: web.Request) -> web.Response:
        verdict = request.query.get("verdict", "")
        partitions = await resolve(self._node, request.match_info["transaction"], verdict)
        return _json(Resolved(tuple(partitions)))

    async def _on_quarantine(self, request: web.Request) -> web.Response:
        return _json(await self._quarantine.listing())

    async def _on_restore(self, request: web.Request) -> web.Response:
        await self._quarantine.restore(*_quarantined(request))
        return _json(Done())

    async def _on_purge(self, request: web.Request) -> web.Response:
        return _json(Purged(await self._quarantine.purge(*_quarantined(request))))

    async def _on_purge_volume(self, request: web.Request) -> web.Response:
        return _json(Purged(await self._quarantine.purge_volume(request.match_info["name"])))

    async def _on_entries(self, request: web.Request) -> web.StreamResponse:
        return await _stream(request, self._quarantine.entries(*_quarantined(request)))

    async def _on_digest(self, request: web.Request) -> web.StreamResponse:
        """Stream NDJSON: the tablet's position, then [key (base64), hash of the value, expire_at_ms] per
        entry."""
        keyspace = request.query.get("keyspace", "default").encode()
        if len(keyspace) > keys.KEYSPACE_BYTES_MAX:
            text = f"keyspace has {len(keyspace)} bytes; expected at most {keys.KEYSPACE_BYTES_MAX}\n"
            raise web.HTTPBadRequest(text=text)
        return await _stream(request, self._digest(self._ready(request), keyspace))

    async def _on_checksum(self, request: web.Request) -> web.Response:
        try:
            return _json(tablet_checksum(self._node, self._ready(request), request.query))
        except BadInput as error:
            raise web.HTTPBadRequest(text=f"{error.text}\n") from None

    def _ready(self, request: web.Request) -> Replica:
        partition = _number(request.query, "partition")
        replica = self._node.replicas.get(partition)
        if replica is None or not replica.ready:
            raise web.HTTPNotFound(text=f"partition {partition} has no READY tablet here\n")
        return replica

    async def _digest(self, replica: Replica, keyspace: bytes) -> AsyncGenerator[bytes]:
        """Iterate the lines, all from one view, so that entries and applied OpId are consistent."""
        node = self._node
        partition, generation = replica.partition, replica.generation
        last = replica.tablet.log.last
        view = node.engine.view()
        try:
            stored = view.get(keys.meta_key(partition, generation, APPLIED))
            state_op = m.OpId() if stored is None else decode_state(stored).applied
            applied = (state_op.term, state_op.index)
            yield _line({"partition": partition, "generation": generation, "applied": applied, "last": last})
            prefix = keys.user_prefix(partition, generation, keyspace)
            begin, end = prefix, keys.tablet_range(partition, generation)[1]
            while True:
                page = await node.background.in_thread(view.scan, begin, end, DIGEST_PAGE)
                page = [(key, value) for key, value in page if key.startswith(prefix)]
                yield b"".join(_digest_line(key[len(prefix) :], value) for key, value in page)
                if len(page) < DIGEST_PAGE:
                    return
                begin = page[-1][0] + b"\0"
        finally:
            view.close()


async def _stream(request: web.Request, pages: AsyncGenerator[bytes]) -> web.StreamResponse:
    """Stream NDJSON.

    An error before the first line gets a response; a later one aborts the connection, so that no partial
    result passes as complete.
    """
    async with aclosing(pages):
        first = await anext(pages, b"")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        try:
            await response.write(first)
            async for lines in pages:
                await response.write(lines)
        except SteleError as error:
            log.error("%s aborted: %s", request.path, error)
            if request.transport is not None:
                request.transport.abort()
    return response


def _digest_line(key: bytes, stored: bytes) -> bytes:
    value, expire_at_ms = keys.unpack_value(stored)
    return _line([base64.b64encode(key).decode(), mmh3.hash_bytes(value).hex(), expire_at_ms])


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _quarantined(request: web.Request) -> tuple[int, int]:
    return _number(request.match_info, "partition"), _number(request.match_info, "generation")


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")


def _number(values: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = values.get(name, "")
    if default is not None and not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        shown = "missing" if not text else repr(text[:40])
        raise web.HTTPBadRequest(text=f"{name} is {shown}; it must be a whole number below 1,000,000,000\n")
    return int(text)


@web.middleware
async def _plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert errors to responses; unexpected ones are logged with their traceback, and answered without."""
    try:
        return await handler(request)
    except (web.HTTPException, ConnectionError):
        raise
    except SteleError as error:
        status = 404 if error.code == "NOT_FOUND" else 409
        return web.json_response({"code": error.code, "detail": error.text}, status=status)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return web.Response(status=500, text="internal error; see the member's log\n")
