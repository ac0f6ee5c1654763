"""One member: its tablets, its table, its sessions with others, and who does what when a row changes.

Rows change in two ways: by the master's exchange (persisted before they take effect) and by an owner that
knows a published row earlier (in memory; the master sends it again). Both end in `adopt`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from stele.core.control.commands import MemberInfo, Row
from stele.core.table.table import Partition, row_fault
from stele.core.tablet.follower import Tablet
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.log import Log
from stele.errors import Corrupt
from stele.member import limits
from stele.member.replication.follower import Follower
from stele.member.replication.gc import drop_leftovers
from stele.member.replication.group_commit import GroupCommit
from stele.member.replication.links import Inbound, InboundConnections, Link
from stele.member.replication.replica import PROMISES_LOST, Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.request import Request
from stele.member.replication.retention import unpin_logs
from stele.member.replication.table_cache import TableCache
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.executor import NO_SPACE, PASSIVE, CommandExecutor
from stele.member.serving.expiry import Expiry
from stele.member.serving.router import RequestRouter
from stele.member.settings import Settings
from stele.member.storage import failpoints
from stele.member.storage.disk_full import is_disk_full, is_stopping
from stele.member.storage.volume import CONSENSUS, TABLETS, MetaWriter, Volume
from stele.member.turn_budget import TurnBudget
from stele.ports.engine import Engine
from stele.wire import peer
from stele.wire.storage.volume import (
    TABLE_FILE,
    Consensus,
    CopyRecord,
    Instance,
    Superblock,
    Waited,
    encode_file,
)

log = logging.getLogger("stele.member")


class HandoverCanceller(Protocol):
    """Ends hand-overs that no master ends: asks the destination of each to refuse, answers who is asked."""

    def cancel_abandoned(self) -> None: ...
    def on_cancel(self, sender: Inbound, message: peer.CancelHandover) -> None: ...
    def on_cancel_result(self, member: int, message: peer.CancelHandoverResult) -> None: ...


class LoadedFiles(Protocol):
    """The files of bulk loads that the logs of this member name."""

    def has_load(self, replica: Replica, record: bytes, source: int) -> bool: ...


class Node:
    """Implements what links, replication, follower and store ask of the member. `wall`: Unix seconds."""

    def __init__(
        self,
        settings: Settings,
        files: tuple[Volume, Instance],
        engine: Engine,
        failed: Callable[[str], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.volume, self.instance = volume, _ = files
        self.engine = engine
        self._failed = failed
        self.wall = wall
        self.loop = asyncio.get_running_loop()
        self.slow = ThreadPoolExecutor(1, "slow")
        self._sync_thread = ThreadPoolExecutor(1, "sync")
        self._meta_thread = ThreadPoolExecutor(1, "meta")
        self.meta = MetaWriter(volume, self._meta_thread)
        self.table = TableCache(volume.load_table(), self.instance.uuid)
        self.tablets = TabletStore(engine)
        self.tablets.has_room = self._has_room
        self.lease_grantor = LeaseGrantor(self.loop.time(), settings.lease_ms / 1000)
        self.lease_holder = LeaseHolder()
        self.group_commit = GroupCommit(engine, settings.fsync, self._sync_thread, self._not_synced)
        leases = (self.lease_grantor, self.lease_holder)
        self.replicator = Replicator(self.tablets, self.group_commit, leases, self, self.loop)
        self.follower = Follower(self.replicator, self, self.loop)
        self.command_executor = CommandExecutor(
            self.replicator, self.lease_holder, self.loop.time, wall, TurnBudget(self.loop.call_soon)
        )
        self.router = RequestRouter(self, self.command_executor)
        self.tablets.on_cut = self.command_executor.cut
        self.tablets.on_broken = self.take_role
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushed_at = self.loop.time()
        self._flushing = False
        self._room_since = self.loop.time()
        self.table_dirty = False
        # Partitions whose row may be above what is promised for them, which no exchange has tidied yet.
        self.overtaken: set[int] = set()
        self._began_serving = 0
        self.inbound = InboundConnections(self, self.take_message)
        self._expiry = Expiry(self.command_executor)
        self.abandoned_handovers: HandoverCanceller
        self.loads: LoadedFiles
        self.row_changed: Callable[[int, Partition, Partition], None] = lambda partition, before, row: None
        self.pins: Callable[[int], int] = lambda partition: 2**62
        self.unpin: Callable[[int], None] = lambda partition: None
        self.disk_free_bytes = self.volume.free_bytes()
        self.started_at = self.loop.time()

    def failed(self, reason: str) -> None:
        """The process has to end, and acknowledges nothing until then: its disk may have lost something."""
        self.replicator.stop()
        self._failed(reason)

    # -- identity and routes

    @property
    def cluster(self) -> str:
        return self.settings.cluster

    @property
    def uuid(self) -> str:
        return self.instance.uuid

    @property
    def me(self) -> int:
        return self.table.me

    @property
    def rows(self) -> Sequence[Partition]:
        return self.table.rows

    @property
    def links(self) -> dict[int, Link]:
        return self.replicator.links

    @property
    def replicas(self) -> dict[int, Replica]:
        return self.tablets.replicas

    def uuid_of(self, member: int) -> str | None:
        info = self.table.members.get(member)
        return None if info is None else info.uuid

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run in the background; an error that nobody expected ends the process. Without room for it, or when
        the member stops, it is left undone.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if is_disk_full(error) or is_stopping(error):
            log.warning("background work is put off: %s", error)
            return
        log.error("background work failed", exc_info=error)
        self.failed(f"background work failed: {error}")

    # -- start

    def load(self) -> None:
        """Read the volume's tablets; none of them can keep the others from starting."""
        metas = self._load_metas()
        seen: set[int] = set()
        for partition, block in self.volume.load_all(TABLETS, Superblock):
            seen.add(partition)
            meta = metas.get(partition, PROMISES_LOST)
            if isinstance(block, Corrupt):
                log.error("partition %d stays offline: %s", partition, block)
                self.add_replica(partition, None, meta).broken = str(block)
            else:
                self._load_tablet(partition, block, meta)
        for partition in metas.keys() - seen:
            self.add_replica(partition, None, metas[partition])
        for replica in self.replicas.values():
            if replica.partition < len(self.rows):
                replica.tablet.row = self.rows[replica.partition]
            if replica.meta is PROMISES_LOST:
                replica.broken = replica.broken or (
                    f"what was promised for it is lost: {CONSENSUS}/{replica.partition} is damaged or missing"
                )
            if replica.meta != Consensus(replica.meta.promised):
                self.overtaken.add(replica.partition)
        self._find_missing()

    def _find_missing(self) -> None:
        """A tablet that the table names and the volume has not: offline, so that the loss is seen."""
        for partition, row in enumerate(self.rows):
            if self.me >= 0 and self.me in row.replicas:
                replica = self.replica_of(partition)
                if replica.block is None and not replica.broken:
                    replica.broken = f"row {row.version} names a tablet that is not on this volume"
                    log.error("partition %d: %s", partition, replica.broken)

    def _load_metas(self) -> dict[int, Consensus]:
        found: dict[int, Consensus] = {}
        for partition, meta in self.volume.load_all(CONSENSUS, Consensus):
            if isinstance(meta, Corrupt):
                # What was promised is not known any more: promise everything, so that nothing old is heard.
                log.error("partition %d: %s", partition, meta)
                found[partition] = PROMISES_LOST
            else:
                found[partition] = meta
        return found

    def _load_tablet(self, partition: int, block: Superblock, meta: Consensus) -> None:
        """COPYING goes back to DELETED; a deletion that was interrupted goes on with the sweep."""
        if block.state is TabletState.COPYING:
            block = msgspec.structs.replace(block, state=TabletState.DELETED)
            self.volume.write({f"{TABLETS}/{partition}": encode_file(block)})
            failpoints.hit("start.rolled_back")
        replica = self.tablets.load(partition, self.me, block, meta)
        try:
            if not replica.broken and drop_leftovers(self.engine, replica):
                failpoints.hit("start.swept")
        except Corrupt as error:
            self.tablets.break_off(replica, error)

    def add_replica(self, partition: int, block: Superblock | None, meta: Consensus) -> Replica:
        """A partition that this member knows something of."""
        replica = Replica(Tablet(partition, self.me, Log(), meta.promised), block, meta)
        if partition < len(self.rows):
            replica.tablet.row = self.rows[partition]
        self.replicas[partition] = replica
        return replica

    def replica_of(self, partition: int) -> Replica:
        """The partition's replica, made when nothing is known of it yet."""
        return self.replicas.get(partition) or self.add_replica(partition, None, Consensus())

    def start(self) -> None:
        """Take up the roles that the persisted table gives, and reach for the others."""
        # Before anything is served: the cluster may be Passive, or the volume full.
        self.refuse_writes()
        self.connect_members()
        for replica in self.replicas.values():
            self.take_role(replica)
        self.spawn(self._ticks())
        self.spawn(self._heartbeats())

    # -- members and rows

    def set_me(self, index: int) -> None:
        self.table.me = index
        for replica in self.replicas.values():
            replica.tablet.me = index

    def connect_members(self) -> None:
        """One link per other member of the dictionary, to its present address."""
        wanted = {i: info for i, info in self.table.members.items() if i != self.me and self.me >= 0}
        for index, link in list(self.links.items()):
            info = wanted.get(index)
            if info is None or (info.uuid, info.address) != (link.uuid, link.host):
                self.links.pop(index)
                self.spawn(link.stop())
        for index, info in wanted.items():
            if index not in self.links:
                self.links[index] = self._link(info)

    def _link(self, info: MemberInfo) -> Link:
        return Link(info, self.settings.peer_port, self, self)

    def adopt_from_owner(self, partition: int, row: Partition) -> None:
        known = self.rows[partition] if partition < len(self.rows) else None
        if known is None or row.version <= known.version or row_fault(row.replicas) is not None:
            return
        if text := self.table.version_jump(partition, row.version):
            log.error("a member told a row that is not taken: %s", text)
            return
        self.adopt(partition, row)
        self.overtaken.add(partition)
        self.table_dirty = True

    async def save_table(self, coming: Sequence[Row] | None = None) -> None:
        """The table with rows that come now; what owners told of is durable on return, too."""
        self.table_dirty = False
        try:
            await self.meta.save(TABLE_FILE, self.table.to_file(coming))
        except OSError:
            # What came from the master it sends again; what owners told is told once.
            self.table_dirty = self.table_dirty or coming is None
            raise

    def adopt(self, partition: int, row: Partition) -> None:
        """A newer published row takes effect."""
        before = self.rows[partition]
        self.table.set(partition, row)
        # Before it owns by the row: a service serves nothing that it has not heard of.
        self.row_changed(partition, before, row)
        replica = self.replicas.get(partition)
        if replica is not None and replica.tablet.adopt(row):
            self.take_role(replica)
        self.router.drain(partition)

    def take_role(self, replica: Replica) -> None:
        """Own, go on owning, or stop, as the row says."""
        row = replica.tablet.row
        if row.owner == self.me and self.me >= 0 and replica.ready:
            if replica.owner is None:
                replica.start_owning()
            elif replica.owner.tablet.row.version > replica.owner_row:
                replica.owner.row_changed(row)
            replica.owner_row = row.version
            self.replicator.own(replica)
            self.replicator.mark_dirty(replica)
            self.replicator.to_apply(replica)
        elif replica.owner is not None:
            self.step_down(replica)

    def step_down(self, replica: Replica) -> None:
        """Serve the tablet no more. What was logged and not committed may or may not survive."""
        replica.owner = None
        follows = replica.ready and replica.tablet.named
        self.router.send_again(self.command_executor.give_up(replica, follows=follows))

    # -- hooks of replication

    def applied(self, replica: Replica) -> None:
        self.command_executor.applied(replica)

    def serving(self, replica: Replica) -> None:
        owner = replica.owner
        assert owner is not None
        self._began_serving += 1
        replica.forget_ahead()
        self.router.drain(replica.partition)
        if owner.wants_waiting:
            self.wants_promise(replica)

    def leases_changed(self) -> None:
        self.command_executor.leases_changed()

    def wants_promise(self, replica: Replica) -> None:
        """Persist that every write waits for the learner, then wait for it; in this order."""
        owner = replica.owner
        if owner is None or owner.learner is None or replica.promising:
            return
        replica.promising = True
        learner = owner.learner
        self.spawn(self._promise(replica, Waited(learner.id, learner.member, learner.base)))

    async def _promise(self, replica: Replica, waited: Waited) -> None:
        try:
            async with replica.lock:
                owner = replica.owner
                if owner is None or owner.learner is None or owner.learner.id != waited.id:
                    return
                await self.save_meta(replica, waited=waited)
                if replica.owner is not None:
                    replica.owner.wait_for_learner(waited.id)
        finally:
            replica.promising = False

    async def save_meta(self, replica: Replica, **changes: Any) -> None:
        """Change what was promised for a partition; durable, and in memory, on return. Hold its lock."""
        made = msgspec.structs.replace(replica.meta, **changes)
        if made != replica.meta:
            await self.meta.save(f"{CONSENSUS}/{replica.partition}", made)
            replica.meta = made
            for name, value in changes.items():
                failpoints.hit(f"{name}.{'saved' if value else 'cleared'}")

    async def save_block(self, replica: Replica, block: Superblock) -> None:
        """Replace a superblock; durable, and in memory, on return. Hold the partition's lock."""
        await self.meta.save(f"{TABLETS}/{replica.partition}", block)
        replica.block = block
        replica.prefixes.clear()
        failpoints.hit(f"block.{block.state.lower()}")

    async def save_first_block(self, replica: Replica, block: Superblock) -> None:
        """As `save_block`, where no consensus metadata may be yet: no superblock is ever without, so that a
        start can tell that what was promised is missing.
        """
        await self.meta.save(f"{CONSENSUS}/{replica.partition}", replica.meta)
        failpoints.hit("create.consensus")
        await self.save_block(replica, block)

    def has_load(self, replica: Replica, record: bytes, source: int) -> bool:
        return self.loads.has_load(replica, record, source)

    # -- hooks of the follower

    def fill(self, replica: Replica) -> None:
        """An empty copy whose owner's log holds everything: READY without a copy."""
        copy = replica.meta.copy
        if copy is None or replica.busy or replica.state is not TabletState.COPYING:
            return
        replica.busy = True
        self.spawn(self._fill(replica, copy))

    async def _fill(self, replica: Replica, copy: CopyRecord) -> None:
        try:
            async with replica.lock:
                block = replica.block
                if replica.meta.copy != copy or block is None or block.state is not TabletState.COPYING:
                    return
                self.tablets.clear_log(replica)
                await self.group_commit.sync()
                await self.save_block(replica, msgspec.structs.replace(block, state=TabletState.READY))
                self.reset_tablet(replica, (0, 0), {})
        finally:
            replica.busy = False

    def reset_tablet(
        self, replica: Replica, applied: tuple[int, int], keyspaces: dict[bytes, tuple[int, int]]
    ) -> None:
        """The tablet begins again, at what a copy brought; promises and row stay."""
        self.command_executor.cut(replica, 0)
        replica.tablet.replace_log(Log(applied))
        replica.keyspaces = keyspaces
        replica.records.clear()
        replica.flushed = applied[1]

    # -- links

    def link_ready(self, link: Link) -> None:
        self.replicator.session_began(link)
        self.router.drain_all()

    def link_message(self, link: Link, message: peer.Message) -> None:
        if isinstance(message, peer.Forwarded):
            self.router.answered(link, message)
        elif isinstance(message, peer.CancelHandoverResult):
            self.abandoned_handovers.on_cancel_result(link.member, message)
        else:
            self.replicator.on_message(link, message)

    def link_drained(self, link: Link) -> None:
        self.replicator.send_behind(link)

    def link_lost(self, link: Link, requests: list[Request]) -> None:
        self.router.lost(requests)

    def take_message(self, sender: Inbound, message: peer.Message) -> None:
        if isinstance(message, peer.Forward | peer.ForwardScan | peer.ForwardCount):
            self.router.on_forward(sender, message)
        elif isinstance(message, peer.CancelHandover):
            self.abandoned_handovers.on_cancel(sender, message)
        else:
            self.follower.on_message(sender, message)

    # -- time

    async def _heartbeats(self) -> None:
        while True:
            self.replicator.heartbeat()
            await asyncio.sleep(self.settings.heartbeat_ms / 1000)

    async def _ticks(self) -> None:
        slow_at = 0.0
        while True:
            await asyncio.sleep(limits.TICK_SECONDS)
            now = self.loop.time()
            self.replicator.tick()
            self.router.drain_all()
            self.router.expire(now)
            for replica in self.replicas.values():
                if replica.waiters or replica.waiting_for_lease:
                    self.command_executor.expire(replica, now)
            self.command_executor.leases_changed()
            if self.tablets.stalled:
                self.replicator.wake()
            if now >= slow_at:
                slow_at = now + 1.0
                self._every_second(now)

    def _every_second(self, now: float) -> None:
        self.disk_free_bytes = self.volume.free_bytes()
        self.refuse_writes()
        self._check_stalled(now)
        self.abandoned_handovers.cancel_abandoned()
        if not self.tablets.stalled:
            self._housekeeping(now)

    def _housekeeping(self, now: float) -> None:
        """What needs the database to be written to."""
        self._expiry.run_once(self.replicas)
        scarce = self.disk_free_bytes < 2 * limits.NO_SPACE_BYTES
        unpin_logs(self.replicas.values(), self.pins, self.unpin, scarce=scarce)
        if self._began_serving:
            log.info("%d partitions serve now, %d do not yet", self._began_serving, len(self.unserved()))
            self._began_serving = 0
        if self.table_dirty:
            self.spawn(self.save_table())
        due = now - self._flushed_at >= limits.FLUSH_SECONDS and self.tablets.applied_bytes > 0
        if (due or self.tablets.applied_bytes >= limits.FLUSH_BYTES) and not self._flushing:
            self.spawn(self.flush())

    # -- a full volume

    def _has_room(self, size: int) -> bool:
        return self.volume.free_bytes() >= size + limits.LOG_FREE_BYTES_MIN

    def stalled(self) -> None:
        """The log takes nothing: refuse at once, and try again with the ticks."""
        self.refuse_writes()

    def _check_stalled(self, now: float) -> None:
        """End a process whose database is not mended by room alone: the next start opens it again."""
        if not self.tablets.stalled or self.disk_free_bytes < limits.NO_SPACE_BYTES:
            self._room_since = now
        elif now - self._room_since >= limits.STALLED_SECONDS_MAX:
            self.failed(f"the log takes nothing although there is room again: {self.tablets.stalled}")

    def _not_synced(self, error: BaseException) -> None:
        """What was written may not be on disk. A log that takes nothing acknowledges nothing either."""
        if (self.tablets.refused and is_disk_full(error)) or is_stopping(error):
            log.warning("log not synced: %s", error)
        else:
            self.failed(f"log not synced: {error}")

    def refuse_writes(self) -> None:
        """Why writes are refused, if they are: the cluster's state, or a full disk, which owners hear of."""
        full = bool(self.tablets.stalled) or self.disk_free_bytes < limits.NO_SPACE_BYTES
        self.replicator.full_here = full
        passive = self.table.state == "Passive"
        self.command_executor.refusal = PASSIVE if passive else NO_SPACE if full else None

    async def flush(self) -> None:
        """Make what is applied durable, then let logs go that nobody needs."""
        self._flushing = True
        try:
            self._flushed_at = self.loop.time()
            self.tablets.applied_bytes = 0
            ends = {p: (r, r.tablet.log, r.tablet.log.applied[1]) for p, r in self.replicas.items()}
            ends_of_log = self.volume.log_files()
            await self.group_commit.sync()
            failpoints.hit("flush.synced")
            await self.loop.run_in_executor(self.slow, self.engine.flush)
            await self.loop.run_in_executor(self.slow, self.volume.note_log_end, ends_of_log)
            failpoints.hit("flush.flushed")
            for partition, (replica, record_log, index) in ends.items():
                if replica.tablet.log is record_log:
                    replica.flushed = index
                    self.tablets.trim(replica, min(self.pins(partition), replica.trim_limit))
        finally:
            self._flushing = False

    async def drain(self) -> None:
        """Take no new work, and let what was taken be answered, for at most DRAIN_SECONDS_MAX."""
        self.router.stop()
        until = self.loop.time() + limits.DRAIN_SECONDS_MAX
        while self.router.busy() and self.loop.time() < until:  # noqa: ASYNC110  requests end in many places
            await asyncio.sleep(limits.DRAIN_LOOK_SECONDS)
        self.router.abandon()

    async def stop(self) -> None:
        """End in this order: nothing is acknowledged any more, connections to members end, the log is synced,
        small files are written, the database is closed (docs/internals/member.md, "Stopping").

        What is closed last is what others rely on: whatever was acknowledged is in it.
        """
        self.router.stop()
        self.replicator.stop()
        self.inbound.close_all("this member is stopping")
        for link in self.links.values():
            await link.stop()
        for task in list(self._tasks):
            task.cancel()
        self.tablets.write()
        await self.group_commit.stop()
        await self.loop.run_in_executor(self.slow, self.engine.sync_log)
        await self.meta.stop()
        await self.loop.run_in_executor(self.slow, self.engine.close)

    # -- reports

    def unserved(self) -> list[int]:
        """Partitions that this member owns by its table and does not serve."""
        return [
            partition
            for partition, row in enumerate(self.rows)
            if row.owner == self.me and not self._serves(partition)
        ]

    def _serves(self, partition: int) -> bool:
        replica = self.replicas.get(partition)
        return replica is not None and replica.owner is not None and replica.owner.serving
