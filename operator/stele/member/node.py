"""One member: its parts, composed, started and stopped."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.http_site import HttpAcceptor
from stele.adapters.tls.identity import TlsIdentity
from stele.core.formats import SPOKEN, FormatRange
from stele.core.security.rotation import GRACE_SECONDS
from stele.core.table.table import Partition
from stele.core.tablet.leases import LeaseHolder
from stele.errors import SteleError
from stele.member import limits
from stele.member.background import Background
from stele.member.bulk.loads import BulkLoads
from stele.member.bulk.local_loads import LocalLoads
from stele.member.control.abandoned_handover import AbandonedHandovers
from stele.member.control.clearing import KeyspaceClearer
from stele.member.control.client_security import ClientDemands, log_refused, stored_demands
from stele.member.control.dispatch import CommandDispatcher
from stele.member.control.exchange import Exchange
from stele.member.control.fencing import Fencing
from stele.member.control.last_copies import LastCopies
from stele.member.control.migrations import Migrations
from stele.member.control.planned_stop import PlannedStop
from stele.member.control.report import Reporter
from stele.member.control.state_lock import StateLock
from stele.member.copy.ingest import Ingester
from stele.member.copy.sessions import CopySessions
from stele.member.events.broadcast import Broadcast
from stele.member.events.expired import ExpiredEntries
from stele.member.events.feed import Feed
from stele.member.events.moves import EntryMoves
from stele.member.events.notifier import Notifier
from stele.member.live_settings import LiveSettings
from stele.member.replication.answered_before import note_answered
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.flusher import Flusher
from stele.member.replication.follower import Follower
from stele.member.replication.group_commit import GroupCommit
from stele.member.replication.latency import HandOverTimes
from stele.member.replication.lease_duration import LeaseDuration, stored_lease
from stele.member.replication.links import FORWARDS, Inbound, Link
from stele.member.replication.member_tls import (
    LIMITS,
    MemberTls,
    member_security_at_start,
    refusal_log,
)
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.table_cache import TableCache
from stele.member.replication.tablet_store import TabletStore
from stele.member.replication.write_gate import WriteGate
from stele.member.resp.access import Access
from stele.member.services.host import Services
from stele.member.services.runner import MemberView
from stele.member.serving.backup_reads import BackupReads
from stele.member.serving.executor import CommandExecutor
from stele.member.serving.expiry import Expiry
from stele.member.serving.forwarded import ForwardedRequests
from stele.member.serving.originator import TransactionOriginator
from stele.member.serving.peers import OnAnswer, OnQuestion, Peers
from stele.member.serving.recovery import TransactionRecovery
from stele.member.serving.roles import Roles
from stele.member.serving.router import RequestRouter
from stele.member.settings import Settings
from stele.member.storage.disk_full import is_disk_full, is_stopping, raise_unless_disk_full
from stele.member.storage.volume import (
    CHECKPOINTS,
    CLIENT_SECURITY,
    LEASE,
    STAGING,
    MetaWriter,
    Volume,
)
from stele.member.ticker import Ticker
from stele.member.tracking.invalidations import Invalidations
from stele.member.tracking.local_caches import LocalCaches
from stele.member.tracking.near_caches import NearCaches
from stele.member.tracking.near_values import NearValues
from stele.member.turn_budget import TurnBudget
from stele.ports.engine import Engine
from stele.ports.transfer import Transfer
from stele.services import MigrationAwareService
from stele.wire import peer
from stele.wire.copy.bulk import LOADS
from stele.wire.storage.volume import MEMBER_SECURITY, Instance

log = logging.getLogger("stele.member")


class Node:
    """Composes the parts, none of which knows it: each is given those that it needs.

    `failed` ends the process, which acknowledges nothing until then, because its disk may have lost data.
    `wall` returns Unix seconds; `formats` are those that this build speaks.
    """

    def __init__(
        self,
        settings: Settings,
        files: tuple[Volume, Instance],
        engine: Engine,
        *,
        transfer: Transfer,
        failed: Callable[[str], None],
        services: Mapping[str, MigrationAwareService] | None = None,
        wall: Callable[[], float] = time.time,
        formats: FormatRange = SPOKEN,
    ) -> None:
        self.settings, self.engine, self.formats = settings, engine, formats
        self.volume, self.instance = files
        self._failed = failed
        self._sync_thread = ThreadPoolExecutor(1, "sync")
        self._meta_thread = ThreadPoolExecutor(1, "meta")
        self.background = Background(self.failed, wall)
        self.live_settings = LiveSettings(settings)
        self.access = Access()
        self.tls = TlsIdentity(Path(settings.tls_dir) if settings.tls_dir else None, GRACE_SECONDS)
        self.client_tls = TlsAcceptor(self.tls, log_refused)
        self.admin_tls = HttpAcceptor(self.tls, refusal_log("admin"), LIMITS)
        self.links: dict[int, Link] = {}
        self._compose_tablets(transfer)
        self._compose_caches()
        self._compose_serving(services or {})
        self._compose_events()
        self._compose_control(transfer)
        self._compose_driving()

    def _compose_tablets(self, transfer: Transfer) -> None:
        """Create the tablets' parts. `roles` uses them and is created later, so the calls look it up."""
        volume, background = self.volume, self.background
        self.table = TableCache(volume.load_table(), self.uuid)
        self.meta = MetaWriter(volume, self._meta_thread)
        self.client_demands = ClientDemands(
            self.client_tls,
            stored_demands(volume),
            lambda file: self.meta.save(CLIENT_SECURITY, file),
            self.access.require,
        )
        self.member_tls = MemberTls(
            self.tls,
            self.settings.cluster,
            member_security_at_start(volume, self.settings.first_member_tls),
            lambda file: self.meta.save(MEMBER_SECURITY, file),
            background.wall,
        )
        self.lease_duration = LeaseDuration(
            stored_lease(volume, self.settings.lease_ms),
            self.settings.lease_ms,
            lambda file: self.meta.save(LEASE, file),
            background.now,
        )
        self.lease_grantor = self.lease_duration.grantor
        self.lease_holder = LeaseHolder()
        self.delayed_replies = DelayedReplies(
            self.lease_holder,
            background.now,
            lambda replica, request: self.invalidations.acknowledged(replica, request),  # noqa: PLW0108
        )
        self.local_loads = LocalLoads(volume.path(LOADS), self.table, transfer, background)
        self.tablets = TabletStore(
            self.engine,
            self.table,
            has_room=volume.has_room,
            on_cut=self.delayed_replies.cut,
            on_broken=lambda replica: self.roles.take_role(replica),  # noqa: PLW0108
            loads=self.local_loads,
        )
        self.gate = WriteGate(volume, self.table, self.tablets)
        self.group_commit = GroupCommit(self.engine, self.settings.fsync, self._sync_thread, self._not_synced)
        self.metadata = MetadataStore(volume, self.meta, self.tablets, self.group_commit)
        self.replicator = Replicator(
            self.tablets,
            self.group_commit,
            (self.lease_grantor, self.lease_holder),
            links=self.links,
            delayed_replies=self.delayed_replies,
            gate=self.gate,
            loop=background.loop,
            serving=lambda replica: self.roles.serving(replica),  # noqa: PLW0108
            wants_promise=lambda replica: self.roles.wants_promise(replica),  # noqa: PLW0108
        )

    def _compose_caches(self) -> None:
        background = self.background
        self.invalidations = Invalidations(
            self.tablets,
            self.delayed_replies.may_read,
            lambda member: self.peers.inbound.session(member),  # noqa: PLW0108
            lambda message: self.near_caches.invalidate(message),  # noqa: PLW0108
        )
        self.near_caches = NearCaches(
            self.table, self.links, background.now, partial(self.invalidations.broadcast, None)
        )
        self.table.routes.when_moved(self.near_caches.moved)
        self.near_values = NearValues(self.table.keyspaces, self.near_caches, background.now)
        self.local_caches = LocalCaches(
            self.table,
            self.lease_grantor,
            lambda: self.peers.inbound.sessions(),  # noqa: PLW0108
            self.near_caches,
            background,
        )

    def _compose_serving(self, services: Mapping[str, MigrationAwareService]) -> None:
        tablets, replicator, delayed_replies = self.tablets, self.replicator, self.delayed_replies
        background = self.background
        budget = TurnBudget(background.loop.call_soon)
        self.command_executor = executor = CommandExecutor(
            replicator,
            delayed_replies,
            self.gate,
            budget,
            background.now,
            background.wall,
            self.invalidations,
        )
        self.backup_reads = BackupReads(
            tablets,
            self.links,
            executor,
            delayed_replies,
            (self.lease_grantor, self.lease_holder),
            background.now,
            background.wall,
        )
        self.router = router = RequestRouter(
            tablets,
            self.links,
            executor,
            delayed_replies,
            self.backup_reads,
            lambda partition, row: self.roles.adopt_from_owner(partition, row),  # noqa: PLW0108
            self.near_caches,
            self.near_values,
            self.local_caches,
            lambda: self.live_settings.announce,
        )
        self._compose_transactions()
        view = MemberView(self.settings.name, tablets, router, background)
        self.services = Services(services, view, self.volume, self.meta, executor)
        self.hand_over_times = HandOverTimes()
        self._compose_roles()
        self.loads = BulkLoads(
            self.local_loads, tablets, replicator, executor, delayed_replies, router, background
        )

    def _compose_roles(self) -> None:
        replicator, background = self.replicator, self.background
        self.roles = Roles(
            self.tablets,
            self.metadata,
            replicator,
            self.delayed_replies,
            self.router,
            background,
            self._row_changed,
            lambda replica: self.follower.announce(replica),  # noqa: PLW0108
        )
        self.follower = Follower(
            replicator,
            self.gate,
            self.roles,
            lambda member: self.peers.inbound.session(member),  # noqa: PLW0108
            background.now,
        )

    def _compose_transactions(self) -> None:
        router, background = self.router, self.background
        self.transactions = TransactionOriginator(router, self.table, self.instance, background)
        router.transactions = self.transactions
        self.transaction_recovery = TransactionRecovery(
            self.tablets,
            router,
            self.transactions,
            self.instance,
            lambda member: self.peers.inbound.session(member),  # noqa: PLW0108
            background,
        )

    def _compose_events(self) -> None:
        executor = self.command_executor
        self.broadcast = Broadcast(self.links, self.background, executor.turn_budget)
        self.notifier = Notifier(
            self.tablets,
            executor.operation_events,
            executor.turn_budget,
            lambda events: self.feed.on_own_events(events),  # noqa: PLW0108
        )
        self.feed = Feed(self.table, self.links, self.notifier, self.broadcast)
        self.broadcast.pubsub.connect(self.feed)
        self.moves = EntryMoves(
            self.tablets,
            self.metadata,
            self.notifier,
            self.services.entries_moved,
            self.services.hears_of("entries_moved"),
            self.background,
        )
        self.expired_entries = ExpiredEntries(
            self.tablets,
            self.services.entries_expired,
            self.services.hears_of("entries_expired"),
            self.background,
        )

    def _compose_control(self, transfer: Transfer) -> None:
        settings, tablets, metadata, background = self.settings, self.tablets, self.metadata, self.background
        replicator, router, roles, services = self.replicator, self.router, self.roles, self.services
        self.sessions = CopySessions(settings, self.live_settings, self.volume, tablets, transfer, background)
        self.ingester = Ingester(
            self.live_settings, self.volume, tablets, metadata, background, self.follower.announce
        )
        self.last_copies = LastCopies(self.table, self.links, background.now)
        self.migrations = Migrations(
            self.live_settings,
            self.last_copies,
            tablets,
            metadata,
            replicator,
            router,
            roles,
            services,
            background,
            self.hand_over_times,
            self.moves,
        )
        self.fencing = Fencing(settings, tablets, metadata, self.lease_grantor, background)
        self.handovers = AbandonedHandovers(tablets, self.links, metadata, self.migrations, background)
        self.peers = Peers(
            settings,
            self.formats,
            self.instance,
            self.member_tls,
            self.links,
            tablets,
            replicator,
            router,
            self.near_caches,
            self.local_caches,
            background,
            self._answers(),
            self._questions(),
        )
        self.dispatcher = CommandDispatcher(
            tablets,
            self.migrations,
            self.fencing,
            self.sessions,
            self.ingester,
            StateLock(tablets, background.now),
            bool(services),
        )
        self.planned_stop = PlannedStop(self.lease_grantor, tablets.table, background)
        self.flusher = Flusher(self.volume, tablets, self.metadata, self.sessions.pin, background)

    def _answers(self) -> dict[type[peer.Message], OnAnswer]:
        """Return which part takes what members answer, by type."""
        return {
            **self.replicator.handlers,
            peer.Lease: self._on_lease,
            peer.Invalidate: self.near_caches.on_invalidate,
            peer.DropKeys: self.local_caches.on_drop,
            peer.Events: self.feed.on_events,
            peer.Forwarded: self.router.answered,
            peer.ReadIndexAnswer: self.backup_reads.on_answer,
            peer.CancelHandoverResult: self.handovers.on_cancel_result,
        }

    def _questions(self) -> dict[type[peer.Message], OnQuestion]:
        """Return which part takes what members begin to say, by type."""
        return {
            **self.follower.handlers,
            peer.Heartbeat: self._on_heartbeat,
            peer.KeysDropped: self.local_caches.on_dropped,
            **dict.fromkeys(FORWARDS, ForwardedRequests(self.tablets, self.router).take),
            peer.ReadIndex: self.backup_reads.on_ask,
            peer.CancelHandover: self.handovers.on_cancel,
            peer.Broadcast: self.invalidations.on_broadcast,
            peer.Publish: self.broadcast.on_publish,
            peer.Listen: self.notifier.on_listen,
        }

    def _reporter(self, clearer: KeyspaceClearer) -> Reporter:
        return Reporter(
            self.settings,
            self.live_settings,
            self.tls,
            self.access,
            self.peers,
            self.formats,
            self.instance,
            self.tablets,
            self.replicator,
            self.delayed_replies,
            self.gate,
            self.sessions,
            self.planned_stop,
            clearer,
            self.transaction_recovery,
            self.background,
        )

    def _compose_driving(self) -> None:
        tablets, gate, roles, sessions = self.tablets, self.gate, self.roles, self.sessions
        replicator, delayed_replies, background = self.replicator, self.delayed_replies, self.background
        clearer = KeyspaceClearer(self.router, background)
        self.exchange = Exchange(
            self.settings.cluster,
            self.uuid,
            tablets,
            self.metadata,
            gate,
            roles,
            self.peers,
            self.dispatcher,
            self.fencing,
            self.handovers,
            self.planned_stop,
            self.live_settings,
            self.client_demands,
            self.lease_duration,
            self.last_copies,
            clearer,
            self._reporter(clearer),
            background,
        )
        self.ticker = Ticker(
            self.live_settings,
            self.lease_holder,
            tablets,
            self.metadata,
            gate,
            replicator,
            delayed_replies,
            self.router,
            self.backup_reads,
            roles,
            Expiry(tablets, self.command_executor, delayed_replies, gate, self.expired_entries.removed),
            self.flusher,
            sessions,
            self.handovers,
            self.invalidations,
            self.near_caches,
            self.near_values,
            self.local_caches,
            self.feed,
            self.moves,
            self.expired_entries,
            self.transactions,
            self.transaction_recovery,
            background,
            self.failed,
        )

    def _row_changed(self, partition: int, before: Partition, row: Partition) -> None:
        self.hand_over_times.end(partition, self.background.now())
        self.near_caches.row_changed(partition)
        self.services.row_changed(partition, before, row)
        self.notifier.row_changed(partition, row)
        self.feed.row_changed(partition, before, row)
        self.moves.row_changed(partition, before, row)

    def _on_lease(self, link: Link, lease: peer.Lease) -> None:
        self.near_caches.vouched(link, lease)
        self.local_caches.on_lease(link, lease)
        self.replicator.on_lease(link, lease)

    def _on_heartbeat(self, sender: Inbound, heartbeat: peer.Heartbeat) -> None:
        self.local_caches.on_heartbeat(sender)
        self.follower.handlers[peer.Heartbeat](sender, heartbeat)

    # -- identity

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
    def replicas(self) -> dict[int, Replica]:
        return self.tablets.replicas

    # -- from start to end

    async def load(self) -> None:
        """Read the volume, without copy sessions and their files, which do not outlive a process."""
        for folder in (CHECKPOINTS, STAGING):
            await self.background.in_thread(self.volume.delete_folders, folder)
        self.metadata.load()
        note_answered(self.tablets, self.delayed_replies)

    def start(self) -> None:
        """Assume the roles in the persisted table, and connect to the other members."""
        # Before anything is served: the cluster may be Passive, or the volume full.
        self.gate.update()
        self.peers.connect()
        for replica in self.replicas.values():
            self.roles.take_role(replica)
        self.ticker.start()

    async def collect_garbage(self) -> None:
        """Delete what has expired or is left over."""
        while True:
            await asyncio.sleep(limits.GC_INTERVAL_SECONDS)
            try:
                await self.migrations.collect_garbage()
                await self.sessions.collect_garbage()
                await self.local_loads.collect_garbage(self.replicas.values())
            except (OSError, SteleError) as error:
                raise_unless_disk_full(error)
                log.warning("the sweep is postponed: %s", error)

    async def drain(self) -> None:
        """Accept no new work, and answer accepted work for at most DRAIN_SECONDS_MAX.

        Transactions across partitions end before that, so that nobody has to ask for their outcome.
        """
        self.transactions.stop()
        await self.background.until(lambda: not self.transactions.running, limits.DRAIN_SECONDS_MAX)
        self.router.stop()
        await self.background.until(lambda: not self.router.busy(), limits.DRAIN_SECONDS_MAX)
        self.router.abandon()

    async def stop(self) -> None:
        """Stop acknowledging, close connections to members, sync the log, write files, close the database.

        See docs/internals/member.md, "Stopping". The database is closed last, with everything that was
        acknowledged.
        """
        await self.sessions.stop()
        await self.services.stop()
        self.router.stop()
        self.replicator.stop()
        await self.peers.close("this member is stopping")
        self.background.cancel()
        self.tablets.writer.write()
        await self.group_commit.stop()
        await self.background.in_thread(self.engine.sync_log)
        await self.meta.stop()
        await self.background.in_thread(self.engine.close)

    def failed(self, reason: str) -> None:
        """End the process, and acknowledge nothing until then: its disk may have lost data."""
        self.replicator.stop()
        self._failed(reason)

    def _not_synced(self, error: BaseException) -> None:
        """Handle a failed sync: what was written may not be on disk, so nothing more is acknowledged."""
        if (self.tablets.writer.refused and is_disk_full(error)) or is_stopping(error):
            log.warning("log not synced: %s", error)
        else:
            self.failed(f"log not synced: {error}")
