"""Periodic work: heartbeats, expired requests, a volume that fills up, flushes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from stele.core.tablet.leases import LeaseHolder
from stele.member import limits
from stele.member.background import Background
from stele.member.control.abandoned_handover import AbandonedHandovers
from stele.member.copy.sessions import CopySessions
from stele.member.events.expired import ExpiredEntries
from stele.member.events.feed import Feed
from stele.member.events.moves import EntryMoves
from stele.member.live_settings import LiveSettings
from stele.member.replication import passes
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.flusher import Flusher
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.retention import unpin_logs
from stele.member.replication.tablet_store import TabletStore
from stele.member.replication.write_gate import WriteGate
from stele.member.serving.backup_reads import BackupReads
from stele.member.serving.expiry import Expiry
from stele.member.serving.originator import TransactionOriginator
from stele.member.serving.recovery import TransactionRecovery
from stele.member.serving.roles import Roles
from stele.member.serving.router import RequestRouter
from stele.member.tracking.invalidations import Invalidations
from stele.member.tracking.local_caches import LocalCaches
from stele.member.tracking.near_caches import NearCaches
from stele.member.tracking.near_values import NearValues

HEARTBEAT_LOOK_SECONDS = 1.0
"""Seconds after which a changed interval of heartbeats is in effect."""


@dataclass(eq=False)
class Ticker:
    """Ticks often; everything else runs once a second."""

    _settings: LiveSettings
    _lease_holder: LeaseHolder
    _tablets: TabletStore
    _metadata: MetadataStore
    _gate: WriteGate
    _replicator: Replicator
    _delayed_replies: DelayedReplies
    _router: RequestRouter
    _backup_reads: BackupReads
    _roles: Roles
    _expiry: Expiry
    _flusher: Flusher
    _sessions: CopySessions
    _handovers: AbandonedHandovers
    _invalidations: Invalidations
    _near_caches: NearCaches
    _near_values: NearValues
    _local_caches: LocalCaches
    _feed: Feed
    _moves: EntryMoves
    _expired_entries: ExpiredEntries
    _transactions: TransactionOriginator
    _transaction_recovery: TransactionRecovery
    _background: Background
    _failed: Callable[[str], None]

    def __post_init__(self) -> None:
        self._room_since = self._background.now()

    def start(self) -> None:
        self._background.spawn(self._ticks())
        self._background.spawn(self._heartbeats())

    async def _heartbeats(self) -> None:
        sent = float("-inf")
        while True:
            now = self._background.now()
            interval = self._heartbeat_seconds(now)
            if now >= sent + interval:
                self._replicator.heartbeat()
                sent = now
            await asyncio.sleep(min(sent + interval - now, HEARTBEAT_LOOK_SECONDS))

    def _heartbeat_seconds(self, now: float) -> float:
        """Return the interval, at most half of each lease: those of others may be shorter at first."""
        return min(self._settings.heartbeat_ms / 1000, self._lease_holder.shortest_seconds(now) / 2)

    async def _ticks(self) -> None:
        slow_at = 0.0
        while True:
            await asyncio.sleep(limits.TICK_SECONDS)
            now = self._background.now()
            self.tick(now)
            if now >= slow_at:
                slow_at = now + 1.0
                self.every_second(now)

    def tick(self, now: float) -> None:
        """Continue what waited for something, and fail what waited too long."""
        self._tablets.writer.look()
        self._replicator.tick()
        self._near_caches.tick()
        self._local_caches.tick()
        self._feed.tick()
        self._invalidations.tick()
        self._router.drain_all()
        self._router.expire(now)
        self._backup_reads.tick(now)
        self._delayed_replies.expire(now)
        self._delayed_replies.leases_changed()
        if self._tablets.writer.stalled:
            self._replicator.wake()

    def every_second(self, now: float) -> None:
        """Measure the free space, end abandoned hand-overs, and do work that writes to the database."""
        self._feed.every_second()
        self._moves.every_second()
        self._expired_entries.every_second()
        self._transactions.every_second()
        self._transaction_recovery.every_second()
        self._gate.measure()
        self._check_stalled(now)
        self._handovers.cancel_abandoned()
        if not self._tablets.writer.stalled:
            self._housekeeping()

    def _housekeeping(self) -> None:
        self._expiry.run_once()
        self._near_values.tick()
        if self._local_caches.every_second():
            self._metadata.table_changed()
        scarce = self._gate.free_bytes < 2 * limits.NO_SPACE_BYTES
        sessions = self._sessions
        space = 0 if scarce else self._settings.log_space_bytes
        sessions.note_log(unpin_logs(self._pinned(), sessions.pin, sessions.unpin, space))
        self._roles.log_served()
        if self._metadata.table_dirty:
            self._background.spawn(self._metadata.save_table())
        self._flusher.flush_if_due()

    def _pinned(self) -> list[Replica]:
        """Return the tablets whose log a copy or a destination may need."""
        replicas = self._tablets.replicas
        pinned = self._sessions.pinned.union(each.partition for each in passes.learning(replicas))
        return [replicas[each] for each in sorted(pinned) if each in replicas]

    def _check_stalled(self, now: float) -> None:
        """End a process whose database does not recover when space is free: the next start reopens it."""
        stalled = self._tablets.writer.stalled
        if not stalled or self._gate.free_bytes < limits.NO_SPACE_BYTES:
            self._room_since = now
        elif now - self._room_since >= limits.STALLED_SECONDS_MAX:
            self._failed(f"the log takes nothing although there is room again: {stalled}")
