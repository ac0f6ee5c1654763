"""Members without data, for measuring the master: they answer exchanges at once.

The answers are those of docs/reference/protocol.md; tests/contract/test_light_members.py compares them with a
real member's. They take what a master sends without checking what only a defect of it would send.

Every tablet is empty, so a learner is in sync as soon as it is probed and nothing is ever copied. What a real
member does per exchange besides (files, replication) costs the master nothing.
"""

import asyncio
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from aiohttp import web
from msgspec.structs import replace

from stele.adapters.members.client import ADMIN_PORT
from stele.core.control import commands as m
from stele.core.control.commands import ExchangeReply, ExchangeRequest, OpId, Result, Row
from stele.core.copy.states import CopyState
from stele.core.delta import DeltaLog
from stele.core.formats import FIRST, SPOKEN
from stele.core.kv.keyspaces import NO_CATALOG, Catalog
from stele.core.security.level import InternalTls
from stele.core.table.digests import AnyRow, differing_ranges, partitions_in, row_digests
from stele.core.table.groups import NO_GROUPS, PartitionGroups
from stele.core.table.table import EMPTY, Stamp
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.owner import LearnerState
from stele.wire import control as wire

LAST = OpId(1, 1)


@dataclass
class LightMember:
    """One member; `serve` answers one exchange. Nothing survives its process."""

    uuid: str
    cluster: str = ""
    index: int = -1
    incarnation: int = 1
    epoch: int = 0
    member_list_version: int = 0
    rows: MutableMapping[int, Row] = field(default_factory=dict)
    states: dict[int, TabletState] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)
    learners: dict[int, m.LearnerReport] = field(default_factory=dict)
    copies: dict[int, m.CopyReport] = field(default_factory=dict)
    accepted: dict[int, Row] = field(default_factory=dict)
    stamp: Stamp = field(default_factory=lambda: Stamp(()))
    changed: dict[int, m.TabletReport] = field(default_factory=dict)
    news: DeltaLog[int, m.TabletReport] = field(default_factory=DeltaLog)
    partitions: int = 0
    members: tuple[m.MemberInfo, ...] = ()
    features: int = FIRST
    catalog: Catalog = NO_CATALOG
    cleared: int = 0
    groups: PartitionGroups = NO_GROUPS
    member_tls: InternalTls = InternalTls.OFF
    exchanges: int = 0

    def serve(self, request: ExchangeRequest) -> ExchangeReply:
        self.exchanges += 1
        self.cluster = self.cluster or request.cluster
        code = self._refusal(request)
        results: tuple[Result, ...] = ()
        lacks_groups = request.groups is None and request.groups_version > self.groups.version
        if not code and request.recipient and not lacks_groups:
            self._take(request)
            results = tuple(getattr(self, f"_{type(each).__name__}")(each) for each in request.commands)
        digests = request.row_digests if request.want_tablets and not code else None
        want = request.want_tablets and not code and digests is None
        reply = self._reply(code or "OK", results, want=want, known=request.known)
        self._move_learners()
        return reply if digests is None else self._compared(reply, digests)

    def row(self, number: int) -> AnyRow:
        """The row of a partition as it was published, an empty one before."""
        return self.rows.get(number, EMPTY)

    def _compared(self, reply: ExchangeReply, theirs: bytes) -> ExchangeReply:
        """The reply with those of its rows that differ from the master's."""
        differing = differing_ranges(self._digests(), theirs)
        numbers = partitions_in(differing, self.partitions)
        rows = tuple(self.rows[number] for number in numbers if number in self.rows)
        return replace(reply, rows=rows, differing=differing, groups=self.groups)

    def _digests(self) -> bytes:
        return row_digests([self.row(number) for number in range(self.partitions)])

    def _refusal(self, request: ExchangeRequest) -> str:
        if not SPOKEN.speaks(request.format):
            return "UNKNOWN_FORMAT"
        if request.cluster != self.cluster:
            return "WRONG_CLUSTER"
        if request.recipient and request.recipient != self.uuid:
            return "WRONG_MEMBER"
        return "STALE_EPOCH" if request.epoch < self.epoch else ""

    def _take(self, request: ExchangeRequest) -> None:
        self.epoch, self.index = request.epoch, request.self_index
        self.features = max(self.features, request.format)
        if request.members and request.member_list_version > self.member_list_version:
            self.members, self.member_list_version = request.members, request.member_list_version
        if request.groups is not None:
            self.groups = request.groups
        if request.partitions > self.partitions:
            self.partitions = request.partitions
            self.stamp = Stamp(self.row(number).version for number in range(self.partitions))
        if request.catalog is not None:
            self.catalog = request.catalog
        if request.clear is not None:
            self.cleared = request.clear.catalog
        if request.settings is not None and request.settings.member_tls is not None:
            self.member_tls = request.settings.member_tls
        self._adopt_all(request)

    def _note(self, number: int, state: TabletState) -> None:
        self.states[number] = state
        promised = self.promised.get(number, 0)
        self.changed[number] = m.TabletReport(number, state, 1, LAST, LAST, promised, 0)

    def _adopt_all(self, request: ExchangeRequest) -> None:
        for row in request.rows:
            self._adopt(row)

    def _adopt(self, row: Row) -> None:
        number = row.partition
        known = self.rows.get(number)
        if known is not None and known.version >= row.version:
            return
        self.rows[number] = row
        self.stamp.set(number, row.version)
        self.learners.pop(number, None)
        self.copies.pop(number, None)
        self.accepted.pop(number, None)
        if self.index in row.replicas:
            self._begin(row)

    def _begin(self, row: Row) -> None:
        if row.version == 1 or row.partition not in self.states:
            self._note(row.partition, TabletState.READY)

    def _move_learners(self) -> None:
        for number, learner in self.learners.items():
            if learner.state is not LearnerState.IN_SYNC:
                self.learners[number] = m.LearnerReport(
                    learner.id, number, learner.destination, LearnerState.IN_SYNC, 0
                )

    def _StartTabletCopy(self, c: m.StartTabletCopy) -> Result:  # noqa: N802
        self.copies[c.partition] = m.CopyReport(c.id, c.partition, c.base, CopyState.STARTED, 1)
        self._note(c.partition, TabletState.READY)
        return Result(generation=1)

    def _AddLearner(self, c: m.AddLearner) -> Result:  # noqa: N802
        self.learners[c.partition] = m.LearnerReport(
            c.id, c.partition, c.destination, LearnerState.STREAMING, 0
        )
        return Result()

    def _HandOver(self, c: m.HandOver) -> Result:  # noqa: N802
        return Result(last=LAST)

    def _Accept(self, c: m.Accept) -> Result:  # noqa: N802
        self.accepted[c.row.partition] = c.row
        return Result()

    def _Abort(self, c: m.Abort) -> Result:  # noqa: N802
        self.learners.pop(c.partition, None)
        if self.copies.pop(c.partition, None) is not None:
            self._note(c.partition, TabletState.DELETED)
        return Result()

    def _Fence(self, c: m.Fence) -> Result:  # noqa: N802
        self.promised[c.partition] = max(c.term, self.promised.get(c.partition, 0))
        self._note(c.partition, self.states[c.partition])
        return Result(last=LAST)

    def _DeleteTablet(self, c: m.DeleteTablet) -> Result:  # noqa: N802
        self._note(c.partition, TabletState.DELETED)
        return Result()

    def _LockState(self, c: m.LockState) -> Result:  # noqa: N802
        return Result()

    def _UnlockState(self, c: m.UnlockState) -> Result:  # noqa: N802
        return Result()

    def _CloseSession(self, c: m.CloseSession) -> Result:  # noqa: N802
        return Result()

    def _reply(
        self, code: str, results: tuple[Result, ...] = (), *, want: bool = False, known: int = 0
    ) -> ExchangeReply:
        self.news.update(self.changed)
        self.changed = {}
        base, tablets, _ = self.news.since(known)
        return ExchangeReply(
            code,
            "",
            self.uuid,
            self.cluster,
            self.incarnation,
            self.epoch,
            self.stamp.value,
            self.member_list_version,
            results,
            rows=tuple(self.rows.values()) if want else (),
            members=self.members if want else (),
            groups=self.groups if want else NO_GROUPS,
            number=self.news.number,
            base=base,
            tablets=tuple(tablets),
            accepted=tuple(self.accepted.values()),
            learners=tuple(self.learners.values()),
            copies=tuple(self.copies.values()),
            sessions=(),
            formats=SPOKEN,
            features=self.features,
            catalog_version=self.catalog.version,
            cleared=self.cleared,
            groups_version=self.groups.version,
            vacant=self._vacant(),
            member_tls=self.member_tls,
        )

    def _vacant(self) -> tuple[str, ...]:
        """No keyspace has an entry here, so those that get partitions of their own are vacant until then."""
        placed = {name for name, each in self.catalog.keyspaces.items() if each.own_partitions}
        return tuple(sorted(placed - {each.keyspace for each in self.groups.groups}))


class LightHosts:
    """The members of one process, each behind the admin port of a loopback address of its own."""

    def __init__(self) -> None:
        self._members: dict[str, LightMember] = {}
        self._runners: dict[str, web.AppRunner] = {}
        self.control = web.Application()
        self.control.add_routes(
            [web.post("/start/{host}", self._start), web.post("/kill/{host}", self._kill)]
        )

    async def _start(self, request: web.Request) -> web.Response:
        host = request.match_info["host"]
        member = self._members[host] = LightMember(f"light-{host}")
        app = web.Application(client_max_size=wire.EXCHANGE_BYTES_MAX)

        async def exchange(asked: web.Request) -> web.Response:
            return web.Response(body=wire.encode(member.serve(wire.decode_request(await asked.read()))))

        app.add_routes([web.post("/v1/exchange", exchange)])
        self._runners[host] = await serve(app, host, ADMIN_PORT)
        return web.Response()

    async def _kill(self, request: web.Request) -> web.Response:
        await self._runners.pop(request.match_info["host"]).cleanup()
        return web.Response()


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Raise OSError when the address is taken."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port, reuse_address=True).start()
    return runner


async def main(port: int) -> None:
    """Until killed; members are started and killed through HTTP on the control port of 127.0.0.1."""
    await serve(LightHosts().control, "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
