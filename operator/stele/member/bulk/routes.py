"""HTTP of bulk loads and exports on a member's admin port; the data goes to its transfer process.

GET    /v1/bulk/table                          members and rows, for routing
GET    /v1/bulk/loads/<load>                   partitions of this owner that applied it, a token (`LoadList`)
GET    /v1/bulk/loads/<load>/partitions/<p>    where to build files (`LoadPlace`)
POST   /v1/bulk/loads/<load>/partitions/<p>    to the owner: apply the load (`LoadOrder`)
POST   /v1/bulk/snapshots/<session>            to the owner: open a checkpoint (`SnapshotOrder`)
DELETE /v1/bulk/snapshots/<session>            close it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from aiohttp import web

from stele.core.control import commands as m
from stele.core.control.commands import Slots
from stele.core.table.table import Partition
from stele.errors import BadInput, Refused, Stale
from stele.member.bulk.loads import BulkLoads
from stele.member.copy.sessions import CopySessions
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.member_tls import MemberTls
from stele.member.replication.tablet_store import TabletStore
from stele.member.settings import Settings
from stele.wire.copy.bulk import (
    EXPORT_PREFIX,
    BulkGroup,
    BulkMember,
    BulkTable,
    LoadList,
    LoadOrder,
    SnapshotOrder,
    check_load_id,
)
from stele.wire.unreadable import UNREADABLE

T = TypeVar("T", LoadOrder, SnapshotOrder)


@dataclass(eq=False)
class BulkRoutes:
    """Handlers. The application answers errors other than SteleError."""

    _settings: Settings
    _tablets: TabletStore
    _delayed_replies: DelayedReplies
    _loads: BulkLoads
    _sessions: CopySessions
    _tls: MemberTls

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/v1/bulk/table", self._table)
        app.router.add_get("/v1/bulk/loads/{load}", self._list_applied)
        app.router.add_get("/v1/bulk/loads/{load}/partitions/{partition}", self._place)
        app.router.add_post("/v1/bulk/loads/{load}/partitions/{partition}", self._apply)
        app.router.add_post("/v1/bulk/snapshots/{session}", self._open)
        app.router.add_delete("/v1/bulk/snapshots/{session}", self._close)

    async def _table(self, request: web.Request) -> web.Response:
        settings, known = self._settings, self._tablets.table
        table = BulkTable(
            cluster=settings.cluster,
            admin_port=settings.admin_port,
            transfer_port=settings.transfer_port,
            members=tuple(BulkMember(i, info.name, info.address) for i, info in known.members.items()),
            rows=_rows(known.rows[: known.main]),
            group_rows=_rows(known.rows[known.main :]),
            groups=tuple(BulkGroup(each.keyspace, each.first, each.count) for each in known.groups.groups),
            tls=self._tls.level,
        )
        return _json(table)

    async def _list_applied(self, request: web.Request) -> web.Response:
        load = check_load_id(request.match_info["load"])
        return _json(LoadList(self._loads.applied(load), self._tls.load_token(load)))

    async def _place(self, request: web.Request) -> web.Response:
        load = check_load_id(request.match_info["load"])
        return _json(self._loads.place(load, self._partition(request)))

    async def _apply(self, request: web.Request) -> web.Response:
        load, partition = check_load_id(request.match_info["load"]), self._partition(request)
        order = _decoded(LoadOrder, await request.read())
        return _json(await self._loads.apply(load, partition, order))

    async def _open(self, request: web.Request) -> web.Response:
        """Open a checkpoint with every acknowledged write: the read leases are checked first."""
        name = _session(request)
        order = _decoded(SnapshotOrder, await request.read())
        for partition in order.partitions:
            self._check_reads(partition)
        result = await self._sessions.open_session(m.OpenSession(name, order.partitions, order.lease_seconds))
        if result.session is None:
            raise Refused(result.detail or "the checkpoint is being created", "BUSY")
        for partition in order.partitions:
            # An export needs no log after its checkpoint.
            self._sessions.open[name].floor.pop(partition, None)
        return _json(result.session)

    def _check_reads(self, partition: int) -> None:
        replica = self._tablets.replicas.get(partition)
        if replica is None or not self._delayed_replies.may_read(replica):
            raise Stale(f"member {self._tablets.me} does not serve partition {partition} now", "NOT_OWNER")

    async def _close(self, request: web.Request) -> web.Response:
        await self._sessions.close_session(m.CloseSession(_session(request)))
        return web.Response(status=204)

    def _partition(self, request: web.Request) -> int:
        text, count = request.match_info["partition"], len(self._tablets.rows)
        if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) >= count:
            raise BadInput(f"partition is {text[:40]!r}; this member's table has {count}")
        return int(text)


def _rows(rows: Sequence[Partition]) -> tuple[tuple[int, Slots], ...]:
    return tuple((row.version, row.replicas) for row in rows)


def _session(request: web.Request) -> str:
    name = check_load_id(request.match_info["session"])
    if not name.startswith(EXPORT_PREFIX):
        raise BadInput(f"session is {name!r}; that of an export begins with {EXPORT_PREFIX}")
    return name


def _decoded(kind: type[T], body: bytes) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise BadInput(f"{kind.__name__}: {error}") from None


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
