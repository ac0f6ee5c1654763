"""`POST /v1/exchange`: adopt the published table, run commands, report (docs/reference/protocol.md)."""

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from stele.core.control import commands as m
from stele.core.formats import TRANSACTIONS
from stele.core.table.table import Partition
from stele.core.tablet.lifecycle import Event, step
from stele.errors import Corrupt, SteleError
from stele.member import limits
from stele.member.background import Background
from stele.member.control.abandoned_handover import AbandonedHandovers
from stele.member.control.clearing import KeyspaceClearer
from stele.member.control.client_security import ClientDemands
from stele.member.control.dispatch import CommandDispatcher
from stele.member.control.fencing import Fencing
from stele.member.control.last_copies import LastCopies
from stele.member.control.parts import in_parts
from stele.member.control.planned_stop import PlannedStop
from stele.member.control.report import Reporter
from stele.member.live_settings import LiveSettings
from stele.member.replication.lease_duration import LeaseDuration
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.tablet_store import TabletStore
from stele.member.replication.write_gate import WriteGate
from stele.member.serving.peers import Peers
from stele.member.serving.roles import Roles
from stele.member.storage import failpoints
from stele.member.storage.disk_full import raise_unless_disk_full
from stele.wire.storage.volume import Superblock

log = logging.getLogger("stele.exchange")


@dataclass(eq=False)
class Exchange:
    """Handles one exchange at a time; a second request waits for the first.

    What takes long to adopt goes on while requests are answered with what there is: a master that hears
    nothing takes the member for lost, and moves its partitions to others, which then have to write as much.
    """

    _cluster: str
    _uuid: str
    _tablets: TabletStore
    _metadata: MetadataStore
    _gate: WriteGate
    _roles: Roles
    _peers: Peers
    _dispatcher: CommandDispatcher
    _fencing: Fencing
    _handovers: AbandonedHandovers
    _planned_stop: PlannedStop
    _settings: LiveSettings
    _client_demands: ClientDemands
    _lease_duration: LeaseDuration
    _last_copies: LastCopies
    _clearer: KeyspaceClearer
    _reporter: Reporter
    _background: Background

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self._adoption: asyncio.Future[tuple[str, str]] | None = None
        self.started = False
        # After a disk error: what is in memory may be neither on disk nor in effect.
        self._half_adopted = False

    def start(self) -> None:
        """Answer exchanges from now on: the volume is loaded."""
        self.started = True

    async def handle(self, request: m.ExchangeRequest) -> m.ExchangeReply:
        """Check epoch and recipient, persist, adopt, run commands, and report. Never raises SteleError.

        Once it takes long to adopt, the reply says `adopting`. A master that takes over waits for the end: it
        has to know what this member has agreed to.
        """
        patience = min(limits.ADOPTION_SECONDS_MAX, self._lease_duration.grantor.lease_seconds / 3)
        try:
            async with asyncio.timeout(None if request.want_tablets else patience) as deadline, self._lock:
                return await self._handle(request, deadline)
        except TimeoutError:
            if not deadline.expired():
                raise
            code, detail = self._refusal(request)
            report = self._reporter.reply(code or m.OK, detail, request.known)
            return msgspec.structs.replace(report, adopting=True)

    async def _handle(self, request: m.ExchangeRequest, deadline: asyncio.Timeout) -> m.ExchangeReply:
        """Handle a request; `deadline` cancels this, but not the adoption, which alone it is about."""
        if self._adoption is not None:
            await asyncio.wait([self._adoption])
        code, detail = self._refusal(request)
        if code:
            return self._reporter.reply(code, detail, request.known)
        if not request.recipient:
            return self._report(request)
        self._handovers.on_exchange()
        if self._tablets.table.lacks_groups(request):
            return self._report(request)
        adoption = self._adoption = self._background.loop.create_future()
        self._background.spawn(self._run(request, adoption))
        await asyncio.wait([adoption])
        deadline.reschedule(None)
        code, detail = adoption.result()
        if code:
            return self._reporter.reply(code, detail, request.known)
        results = await self._dispatcher.run(request.commands)
        return msgspec.structs.replace(self._report(request), results=results)

    async def _run(self, request: m.ExchangeRequest, adoption: "asyncio.Future[tuple[str, str]]") -> None:
        """Adopt a request, and pass the result, or an unexpected error, to the one who waits for it."""
        try:
            adoption.set_result(await self._persist(request))
        except asyncio.CancelledError:
            adoption.cancel()
            raise
        except BaseException as error:
            adoption.set_exception(error)
            adoption.exception()
            log.exception("an exchange failed")
        finally:
            self._adoption = None

    async def _persist(self, request: m.ExchangeRequest) -> tuple[str, str]:
        """Persist and adopt. Returns the code and text of why that failed, if so."""
        try:
            # First: a new member serves clients as soon as it has rows.
            await self._client_demands.adopt(request.settings)
            await self._peers.adopt_tls(request.settings)
            await self._adopt(request)
            self._tablets.table.published(request.rows)
            await self._fencing.tidy()
            self._planned_stop.on_exchange(request)
            self._settings.adopt(request.settings)
            await self._lease_duration.adopt(None if request.settings is None else request.settings.lease_ms)
            self._last_copies.on_exchange(request.without_copy)
            self._clearer.on_exchange(request.clear)
            self._tablets.table.keyspaces.refuse_growth(request.over_quota)
        except SteleError as error:
            log.error("exchange refused: %s", error)
            return m.ResultCode.BAD_REQUEST, str(error)
        except OSError as error:
            raise_unless_disk_full(error)
            return m.ResultCode.NO_SPACE, str(error)
        return "", ""

    def _report(self, request: m.ExchangeRequest) -> m.ExchangeReply:
        report = self._reporter.reply(m.OK, "", request.known)
        return self._reporter.for_take_over(report, request.row_digests) if request.want_tablets else report

    def _refusal(self, request: m.ExchangeRequest) -> tuple[str, str]:
        if not self.started:
            return m.ResultCode.STARTING, "the member is loading its volume"
        if not self._peers.spoken.speaks(request.format):
            text = f"the cluster uses format {request.format}, this member speaks {self._peers.spoken}"
            return m.ResultCode.UNKNOWN_FORMAT, text
        if request.cluster != self._cluster:
            return m.ResultCode.WRONG_CLUSTER, f"this member belongs to cluster {self._cluster}"
        if request.recipient and request.recipient != self._uuid:
            return m.ResultCode.WRONG_MEMBER, f"this is member {self._uuid}"
        if request.epoch < self._tablets.table.epoch:
            return m.ResultCode.STALE_EPOCH, f"epoch {self._tablets.table.epoch} was seen"
        return m.ResultCode.BAD_REQUEST if (text := self._tablets.table.jump(request)) else "", text

    async def _adopt(self, request: m.ExchangeRequest) -> None:
        """Adopt rows and members: first superblocks of new tablets, then the table; only then they take
        effect."""
        table = self._tablets.table
        if request.self_index < 0:
            raise Corrupt(f"self_index is {request.self_index}; a member is told its index with its UUID")
        if request.partitions:
            table.resize(request)
        newer_rows: list[m.Row] = []
        async for rows in in_parts(request.rows):
            newer_rows += table.newer(rows)
        if not newer_rows and not self._half_adopted and table.knows(request):
            return
        reconnect, self._half_adopted = table.brings_members(request) or self._half_adopted, True
        me_before = table.me
        table.adopt(request)
        self._gate.update()
        if table.me != me_before:
            self._tablets.me_changed()
        await self._create_tablets(newer_rows)
        await self._note_older(newer_rows)
        await self._metadata.save_table(newer_rows)
        failpoints.hit("table.saved")
        table.saved()
        self._peers.require(table.features)
        self._tablets.engine.use_format(table.features)
        if reconnect:
            self._peers.connect()
        async for rows in in_parts(newer_rows):
            # Owners may have sent newer ones meanwhile.
            for row in table.newer(rows):
                self._roles.adopt(row.partition, Partition(row.version, row.replicas))
            self._metadata.overtaken.update(row.partition for row in rows)
        self._half_adopted = False

    async def _note_older(self, newer_rows: list[m.Row]) -> None:
        """Record before the table which copies this member owns only because a user accepts them."""
        if self._tablets.table.features < TRANSACTIONS:
            return
        for row in newer_rows:
            known, replica = self._tablets.rows[row.partition], self._tablets.replicas.get(row.partition)
            if replica is None or not replica.ready or row.replicas[:1] != (self._tablets.me,):
                continue
            accepted = replica.meta.accepted
            agreed = accepted is not None and accepted.version == row.version
            if known.version and self._tablets.me not in known.replicas and not agreed:
                async with replica.lock:
                    await self._metadata.save_meta(replica, older=row.version)

    async def _create_tablets(self, newer_rows: list[m.Row]) -> None:
        """Create empty tablets for new partitions whose row names this member."""
        async for rows in in_parts([row for row in newer_rows if self._tablets.me in row.replicas]):
            await asyncio.gather(*map(self._create, rows))

    async def _create(self, row: m.Row) -> None:
        replica = self._tablets.replica_of(row.partition)
        if replica.state is not None or replica.broken:
            return
        if self._tablets.rows[row.partition].version:
            # The tablet existed, or should have been copied: an empty one would hide the loss of data.
            self._tablets.mark_missing(replica, row.version)
            return
        async with replica.lock:
            state = step(replica.state, Event.CREATE)
            block = Superblock(state=state, generation=1, highest=1)
            await self._metadata.save_first_block(replica, block)
            failpoints.hit("create.superblock")
            self._tablets.reset(replica, (0, 0), {})
