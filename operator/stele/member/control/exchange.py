"""`POST /v1/exchange`: adopt the published table, run commands, report (docs/reference/protocol.md)."""

import asyncio
import logging

import msgspec

from stele.core.control import commands as m
from stele.core.table.table import Partition
from stele.core.tablet.lifecycle import Event, step
from stele.errors import Corrupt, SteleError
from stele.member.control.dispatch import CommandDispatcher
from stele.member.control.report import Reporter
from stele.member.copy.sessions import CopySessions
from stele.member.node import Node
from stele.member.storage import failpoints
from stele.member.storage.disk_full import raise_unless_disk_full
from stele.wire.storage.volume import Superblock

log = logging.getLogger("stele.exchange")


class Exchange:
    """One at a time: the master is one, and a second request waits for the first."""

    def __init__(self, node: Node, dispatcher: CommandDispatcher) -> None:
        self._node = node
        self._dispatcher = dispatcher
        self._reporter = Reporter(node, dispatcher.migrations, dispatcher.sessions)
        self._lock = asyncio.Lock()
        self.started = False
        # After an error of the disk: what is in memory may not be on disk, or not be in effect.
        self._half_adopted = False

    @property
    def sessions(self) -> CopySessions:
        """The copy sessions that its commands open and close."""
        return self._dispatcher.sessions

    async def handle(self, request: m.ExchangeRequest) -> m.ExchangeReply:
        """Check epoch and recipient; persist, then adopt; run commands; report. Never raises SteleError."""
        async with self._lock:
            code, detail = self._refusal(request)
            if code or not request.recipient:
                return self._reporter.reply(code or "OK", detail, request.known)
            self._dispatcher.abandoned_handovers.on_exchange()
            try:
                await self._adopt(request)
                await self._tidy()
            except SteleError as error:
                log.error("exchange refused: %s", error)
                return self._reporter.reply("BAD_REQUEST", str(error), request.known)
            except OSError as error:
                raise_unless_disk_full(error)
                return self._reporter.reply("NO_SPACE", str(error), request.known)
            results = await self._dispatcher.run(request.commands)
            rows = self._node.table.to_rows() if request.want_tablets else ()
            made = self._reporter.reply("OK", "", request.known)
            return msgspec.structs.replace(made, results=results, rows=rows)

    def _refusal(self, request: m.ExchangeRequest) -> tuple[str, str]:
        node = self._node
        if not self.started:
            return "STARTING", "the member is loading its volume"
        if request.format != m.EXCHANGE_FORMAT:
            return "BAD_REQUEST", f"format is {request.format}; this member speaks {m.EXCHANGE_FORMAT}"
        if request.cluster != node.cluster:
            return "WRONG_CLUSTER", f"this member belongs to cluster {node.cluster}"
        if request.recipient and request.recipient != node.uuid:
            return "WRONG_MEMBER", f"this is member {node.uuid}"
        if request.epoch < node.table.epoch:
            return "STALE_EPOCH", f"epoch {node.table.epoch} was seen"
        return "BAD_REQUEST" if (text := node.table.jump(request)) else "", text

    async def _adopt(self, request: m.ExchangeRequest) -> None:
        """Rows and members: superblocks of new tablets first, then the table, and only then they count."""
        node, table = self._node, self._node.table
        if request.self_index < 0:
            raise Corrupt(f"self_index is {request.self_index}; a member is told its index with its UUID")
        if request.partitions:
            table.resize(request.partitions)
        newer_rows = table.newer(request.rows)
        if not newer_rows and self._is_known(request):
            return
        reconnect, self._half_adopted = self._brings_members(request) or self._half_adopted, True
        table.epoch = max(table.epoch, request.epoch)
        table.replicas = request.replicas or table.replicas
        table.state = request.state
        node.refuse_writes()
        if node.me != request.self_index:
            node.set_me(request.self_index)
        if self._brings_members(request):
            table.member_list_version = request.member_list_version
            table.members = {info.index: info for info in request.members}
        await self._create_tablets(newer_rows)
        await node.save_table(newer_rows)
        failpoints.hit("table.saved")
        if reconnect:
            node.connect_members()
        for row in table.newer(newer_rows):
            node.adopt(row.partition, Partition(row.version, row.replicas))
        node.overtaken.update(row.partition for row in newer_rows)
        self._half_adopted = False

    async def _tidy(self) -> None:
        """Forget promises that rows overtook, whoever told of them, once the rows are on disk."""
        node = self._node
        overtaken, dirty = node.overtaken, node.table_dirty
        node.overtaken = set()
        try:
            if overtaken and dirty:
                await node.save_table()
            await self._dispatcher.tidy(sorted(overtaken))
        except OSError:
            node.overtaken, node.table_dirty = node.overtaken | overtaken, node.table_dirty or dirty
            raise

    def _is_known(self, request: m.ExchangeRequest) -> bool:
        table = self._node.table
        return (
            not self._half_adopted
            and request.epoch == table.epoch
            and request.self_index == table.me
            and request.state == table.state
            and not self._brings_members(request)
            and request.replicas in {0, table.replicas}
        )

    def _brings_members(self, request: m.ExchangeRequest) -> bool:
        """A list always names its reader: an empty one was left out, and its version means nothing here."""
        newer = request.member_list_version > self._node.table.member_list_version
        return newer and bool(request.members)

    async def _create_tablets(self, newer_rows: list[m.Row]) -> None:
        """Empty tablets for partitions that this member hears of for the first time and is named in."""
        await asyncio.gather(*(self._create(row) for row in newer_rows if self._node.me in row.replicas))

    async def _create(self, row: m.Row) -> None:
        node = self._node
        replica = node.replica_of(row.partition)
        if replica.state is not None or replica.broken:
            return
        if node.rows[row.partition].version:
            # It was there, or should have come by a copy: an empty one would hide that data is lost.
            replica.broken = f"row {row.version} names a tablet that is not on this volume"
            log.error("partition %d: %s", row.partition, replica.broken)
            return
        async with replica.lock:
            state = step(replica.state, Event.CREATE)
            await node.save_first_block(replica, Superblock(state=state, generation=1, highest=1))
            failpoints.hit("create.superblock")
            node.reset_tablet(replica, (0, 0), {})
