"""A migration's steps at owner and destination: start, learn, hand over, abort; and deletion."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from stele.core.control import commands as m
from stele.core.placement.migration import Type, swapped
from stele.core.tablet.lifecycle import Event, TabletState, step
from stele.core.tablet.log import Log
from stele.core.tablet.owner import LearnerState, Owner
from stele.errors import Conflict, Refused, Stale
from stele.member import limits
from stele.member.background import Background
from stele.member.control.last_copies import LastCopies
from stele.member.copy.quarantined_log import keep_log_tail
from stele.member.events.moves import EntryMoves
from stele.member.live_settings import LiveSettings
from stele.member.replication.gc import BEYOND_LIMIT_S, drop_expired, quarantine
from stele.member.replication.latency import HandOverTimes
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.tablet_store import TabletStore
from stele.member.services.host import Services
from stele.member.serving.roles import Roles
from stele.member.serving.router import RequestRouter
from stele.wire.storage.volume import CopyRecord, Frozen, Superblock, Waited

log = logging.getLogger("stele.migrations")

HAND_OVER_SECONDS = 0.25
"""Seconds that one HandOver waits for the partition to drain before it replies WAIT."""
_HAND_OVER_STEP_SECONDS = 0.002


@dataclass(eq=False)
class Migrations:
    """Each step is persisted first, and holds the partition's lock meanwhile."""

    _settings: LiveSettings
    _last_copies: LastCopies
    _tablets: TabletStore
    _metadata: MetadataStore
    _replicator: Replicator
    _router: RequestRouter
    _roles: Roles
    _services: Services
    _background: Background
    _hand_over_times: HandOverTimes
    _moves: EntryMoves

    # -- at the destination

    async def start_copy(self, command: m.StartTabletCopy) -> m.Result:
        """Prepare to receive: COPYING under a new generation, or READY as before."""
        replica = self._tablets.replica_of(command.partition)
        async with replica.lock:
            copy = replica.meta.copy
            if copy is not None and copy.id == command.id and replica.copy_begun:
                self._check_goes_on(replica, copy)
                return m.Result(generation=copy.generation, last=replica.last)
            self._check_start(replica, command)
            generation = await self._begin_copy(replica, command)
            replica.copy_result = command.result
            self._services.begin(command, self._tablets.me)
        await self._services.until_notified(command.partition)
        return m.Result(generation=generation, last=replica.last)

    async def _begin_copy(self, replica: Replica, command: m.StartTabletCopy) -> int:
        """Persist the copy's record, then the superblock: after a crash in between, the same command
        repeats both."""
        generation, kept = self._next_generation(replica), replica.ready
        made = CopyRecord(command.id, command.base, command.owner, generation, kept)
        lost = replica.promises_lost
        promised = command.base if lost else replica.tablet.promised
        if not kept:
            await keep_log_tail(self._tablets, self._background, replica)
        await self._metadata.save_meta(replica, copy=made, promised=promised)
        if lost:
            replica.tablet.restore_promise(promised)
        await self._metadata.save_block(replica, self._receiving(replica, generation, kept, self._until_s()))
        if not kept:
            replica.broken = ""
            replica.tablet.replace_log(Log())
            replica.keyspaces = {}
            self._tablets.clear_log(replica)
        return generation

    async def create(self, command: m.CreateTablet) -> m.Result:
        """Create an empty tablet for a partition without copies. Existing data is never replaced."""
        replica, row = self._tablets.replica_of(command.partition), self._tablets.rows[command.partition]
        async with replica.lock:
            if row.version != command.base:
                raise Stale(f"the row has version {row.version}, not {command.base}", "STALE_VERSION")
            if replica.ready and replica.last == m.OpId():
                return m.Result()
            if replica.ready or replica.meta.copy is not None:
                raise Refused(f"it holds data up to {replica.last}, or receives some", "ILLEGAL_STATE")
            generation = self._next_generation(replica)
            await keep_log_tail(self._tablets, self._background, replica)
            block = self._receiving(replica, generation, False, self._until_s())
            await self._metadata.save_first_block(replica, block)
            replica.broken = ""
            self._tablets.clear_log(replica)
            # Before the superblock says READY: otherwise a power loss could restore the old log under it.
            await self._metadata.sync_log()
            ready = step(TabletState.COPYING, Event.FILL)
            await self._metadata.save_block(replica, msgspec.structs.replace(block, state=ready))
            self._tablets.reset(replica, (0, 0), {})
        return m.Result(generation=generation)

    @staticmethod
    def _check_goes_on(replica: Replica, copy: CopyRecord) -> None:
        if not copy.kept and replica.state is TabletState.DELETED:
            raise Refused(f"this member restarted during {copy.id}; abort it, begin another", "ILLEGAL_STATE")

    def _check_start(self, replica: Replica, command: m.StartTabletCopy) -> None:
        row, me = self._tablets.rows[command.partition], self._tablets.me
        if row.version != command.base:
            raise Stale(f"the row has version {row.version}, not {command.base}", "STALE_VERSION")
        if me in row.replicas:
            raise Refused(f"the row {row.replicas} names this member ({me}) already", "ILLEGAL_STATE")
        if replica.meta.copy is not None and replica.meta.copy.id != command.id:
            raise Conflict(f"migration {replica.meta.copy.id} is active", "ALREADY_IN_PROGRESS")
        if replica.tablet.promised > command.base and not replica.promises_lost:
            # No owner of that row would be accepted here: the copy could never catch up.
            raise Stale(f"term {replica.tablet.promised} was promised", "STALE_TERM")

    def _until_s(self) -> float:
        return self._background.wall() + self._settings.retention_seconds

    def _next_generation(self, replica: Replica) -> int:
        """Return the next generation from the superblock, since the data may be damaged."""
        if replica.block is not None:
            return replica.block.newest + 1
        return self._tablets.highest_generation(replica.partition) + 1

    @staticmethod
    def _receiving(replica: Replica, generation: int, kept: bool, until_s: float) -> Superblock:
        """Quarantine damaged data, as far as it exists."""
        if kept:
            assert replica.block is not None
            return msgspec.structs.replace(replica.block, highest=generation)
        before = TabletState.DELETED if replica.broken else replica.state
        state = step(before, Event.START_COPY)
        block, last = replica.block or Superblock(state, 0, 0), replica.last
        if (
            replica.broken
            and block.state is not TabletState.DELETED
            and (damaged := block.generation or generation - 1)
        ):
            block = quarantine(msgspec.structs.replace(block, generation=damaged), until_s, last)
        last = m.OpId(*max((last.term, last.index), (block.last.term, block.last.index)))
        return msgspec.structs.replace(
            block, state=state, generation=generation, highest=generation, last=last
        )

    # -- at the owner

    def _owner(self, partition: int) -> tuple[Replica, Owner]:
        replica = self._tablets.replicas.get(partition)
        if replica is None or replica.owner is None:
            row = self._tablets.rows[partition]
            raise Refused(f"the owner is member {row.owner} (version {row.version})", "NOT_OWNER")
        return replica, replica.owner

    async def add_learner(self, command: m.AddLearner) -> m.Result:
        """Start to feed the destination."""
        replica, _ = self._owner(command.partition)
        async with replica.lock:
            replica, owner = self._owner(command.partition)
            if command.destination not in self._tablets.table.members:
                raise Refused(f"member {command.destination} is not known here", "UNKNOWN_MEMBER")
            owner.add_learner(command.id, command.destination, command.base, command.result)
            self._replicator.own(replica)
            self._services.begin(command, command.destination)
        await self._services.until_notified(command.partition)
        await self._services.prepare(replica, command.id, frozen=False)
        return m.Result(last=replica.last)

    async def hand_over(self, command: m.HandOver) -> m.Result:
        """Freeze durably, drain, and bring the destination to the end of the log."""
        replica, _ = self._owner(command.partition)
        if command.swaps:
            await self._begin_swap(replica, command)
        async with replica.lock:
            replica, owner = self._owner(command.partition)
            if replica.meta.frozen is None or replica.meta.frozen.id != command.id:
                owner.freeze(command.id)
                learner, frozen = owner.learner, Frozen(command.id, owner.frozen_base)
                assert learner is not None, "freeze checked it"
                waited = Waited(learner.id, learner.member, learner.base)
                self._hand_over_times.begin(command.partition, self._background.now())
                await self._metadata.save_meta(replica, frozen=frozen, waited=waited)
            else:
                owner.check_hand_over(command.id)
        await self._services.prepare(replica, command.id, frozen=True)
        end = self._background.now() + HAND_OVER_SECONDS
        point = hand_over_point(replica)
        while point is None and self._background.now() < end:
            await asyncio.sleep(_HAND_OVER_STEP_SECONDS)
            point = hand_over_point(replica)
        if point is None:
            return m.Result(m.WAIT, "the partition is not drained yet", wait_ms=10)
        return m.Result(last=point)

    async def _begin_swap(self, replica: Replica, command: m.HandOver) -> None:
        """Announce the backup that is to take over, once, before clients have to wait."""
        async with replica.lock:
            replica, owner = self._owner(command.partition)
            if owner.learner is not None and owner.learner.id == command.id:
                return
            owner.begin_swap(command.id, command.backup, command.base, self._answers(command.backup))
            result = swapped(replica.tablet.row.replicas, command.backup)
            begun = m.AddLearner(
                command.id, command.partition, command.base, command.backup, Type.SWAP, result
            )
            self._services.begin(begun, command.backup)
        await self._services.until_notified(command.partition)

    def _answers(self, member: int) -> bool:
        """Return whether the member has answered of late: clients would wait for one that is silent."""
        link = self._replicator.links.get(member)
        silent_seconds = max(limits.SILENT_MS_MIN, 2 * self._settings.heartbeat_ms) / 1000
        now = self._background.now()
        return link is not None and link.ready and now - link.heard_at < silent_seconds

    # -- at both

    async def abort(self, command: m.Abort) -> m.Result:
        """Undo this member's part of the migration; nothing when the id is unknown."""
        replica = self._tablets.replicas.get(command.partition)
        if replica is None:
            return m.Result()
        async with replica.lock:
            await self._abort_copy(replica, command.id)
            await self.abort_learner(replica, command.id)
        return m.Result(last=replica.last)

    async def abort_learner(self, replica: Replica, id: str) -> None:
        """Forget the destination and thaw. Requires the partition's lock."""
        meta = replica.meta
        changes: dict[str, Any] = {}
        if meta.waited is not None and meta.waited.id == id:
            changes["waited"] = None
        if meta.frozen is not None and meta.frozen.id == id:
            changes["frozen"] = None
            self._hand_over_times.end(replica.partition, self._background.now())
        await self._metadata.save_meta(replica, **changes)
        self._services.aborted(replica.partition, id)
        if replica.owner is not None and replica.owner.drop_learner(id):
            self._replicator.resume(replica)
            self._router.drain(replica.partition)

    async def _abort_copy(self, replica: Replica, id: str) -> None:
        copy, accepted = replica.meta.copy, replica.meta.accepted
        if copy is None or copy.id != id:
            return
        row = self._tablets.rows[replica.partition]
        if accepted is not None and replica.meta.accepted_id == id and accepted.version > row.version:
            raise Refused(
                f"version {accepted.version} was accepted: only a published row of a higher version ends it",
                "ILLEGAL_STATE",
            )
        arrived = row.version > copy.base and self._tablets.me in row.replicas
        came = replica.received or replica.state is TabletState.COPYING
        if came and not copy.kept and not arrived:
            await self._tombstone(replica, keep_seconds=0)
        await self._metadata.save_meta(replica, copy=None)

    # -- deletion

    async def delete(self, command: m.DeleteTablet) -> m.Result:
        """Write a tombstone now; the data is deleted when its quarantine ends."""
        replica = self._tablets.replica_of(command.partition)
        async with replica.lock:
            row = self._tablets.rows[command.partition]
            if row.version < command.version:
                raise Stale(f"the row has version {row.version}, not yet {command.version}", "STALE_VERSION")
            if self._tablets.me in row.replicas:
                raise Refused(f"row {row.version} {row.replicas} names this member", "ILLEGAL_STATE")
            self._check_unneeded(replica)
            if replica.state is TabletState.READY:
                await self._tombstone(replica, keep_seconds=self._settings.retention_seconds)
        return m.Result(last=replica.last)

    @staticmethod
    def _check_unneeded(replica: Replica) -> None:
        meta, version = replica.meta, replica.tablet.row.version
        if meta.copy is not None:
            raise Conflict(f"migration {meta.copy.id} is active", "MIGRATION_ACTIVE")
        if meta.accepted is not None and meta.accepted.version > version:
            raise Refused(f"row {meta.accepted.version} that names it was accepted", "ILLEGAL_STATE")

    async def _tombstone(self, replica: Replica, *, keep_seconds: float) -> None:
        """Delete the tablet. Once the superblock is written, the deletion is only continued, never undone."""
        block = replica.block
        assert block is not None
        event = Event.ABANDON if block.state is TabletState.COPYING else Event.DELETE
        state = step(block.state, event)
        last = replica.last
        self._roles.retire(replica)
        until_s = self._background.wall() + keep_seconds
        moves = event is Event.DELETE and self._moves.wanted
        gone = quarantine(block, until_s, last, unreported=moves)
        await self._metadata.save_block(replica, msgspec.structs.replace(gone, state=state, last=last))
        replica.records.clear()
        replica.keyspaces = {}
        log.info("partition %d: deleted, its data stays for %g s", replica.partition, keep_seconds)

    async def collect_garbage(self) -> None:
        """Delete data whose quarantine has ended, unless it may be the last copy."""
        now_s = self._background.wall()
        for replica in list(self._tablets.replicas.values()):
            if replica.block is None or not replica.block.quarantined:
                continue
            # Of those beyond the limit, newer ones are kept in any case.
            due_s = BEYOND_LIMIT_S if self._last_copies.may_be_here(replica.partition) else now_s
            async with replica.lock:
                block = drop_expired(self._tablets.engine, replica, due_s)
                if block is not None:
                    await self._metadata.save_block(replica, block)


def hand_over_point(replica: Replica) -> m.OpId | None:
    """Return a frozen partition's last operation, once it is on disk and no request waits here."""
    owner, frozen = replica.owner, replica.meta.frozen
    if owner is None or frozen is None or frozen.id != owner.frozen or replica.owes:
        return None
    if owner.learner is None or owner.learner.state is not LearnerState.IN_SYNC:
        return None
    point = owner.handed_over
    return None if point is None else m.OpId(*point)
