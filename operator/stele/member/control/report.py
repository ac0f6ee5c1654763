"""A member's report to the master in each exchange; a new master needs nothing else."""

from dataclasses import dataclass

import msgspec

from stele.adapters.tls.identity import TlsIdentity
from stele.core.control import commands as m
from stele.core.copy.states import CopyState
from stele.core.delta import DeltaLog
from stele.core.formats import FormatRange
from stele.core.table.digests import differing_ranges
from stele.core.tablet.lifecycle import TabletState
from stele.member import limits
from stele.member.background import Background
from stele.member.control.clearing import KeyspaceClearer
from stele.member.control.keyspace_sizes import owned_sizes, vacant_keyspaces
from stele.member.control.migrations import hand_over_point
from stele.member.control.planned_stop import PlannedStop
from stele.member.copy.sessions import CopySessions
from stele.member.live_settings import LiveSettings
from stele.member.replication import passes
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.tablet_store import TabletStore
from stele.member.replication.write_gate import WriteGate
from stele.member.replication.write_rate import WriteRate
from stele.member.resp.access import Access
from stele.member.serving.peers import Peers
from stele.member.serving.recovery import TransactionRecovery
from stele.member.settings import Settings
from stele.wire.storage.volume import Instance

POSITIONS_SECONDS = 1.0
"""Maximum age, in seconds, of the positions and sizes of tablets in a report."""

TOTALS_TABLETS = 2_048
"""Sums over so many tablets are made again each POSITIONS_SECONDS, those over more less often."""

NUMBER_BITS = 32
"""Maximum number of reports by one process, as a power of two."""


@dataclass(eq=False)
class Reporter:
    """Creates the reports of one process; each has the tablets that changed since one that the master has.

    States, generations, promises and free space are current, because the master decides by them. Positions
    and sizes are updated once in POSITIONS_SECONDS, and sums over all tablets at most that often, since
    visiting all tablets takes long where there are many.
    """

    _settings: Settings
    _live: LiveSettings
    _tls: TlsIdentity
    _access: Access
    _peers: Peers
    _formats: FormatRange
    _instance: Instance
    _tablets: TabletStore
    _replicator: Replicator
    _delayed_replies: DelayedReplies
    _gate: WriteGate
    _sessions: CopySessions
    _planned_stop: PlannedStop
    _clearer: KeyspaceClearer
    _recovery: TransactionRecovery
    _background: Background

    def __post_init__(self) -> None:
        self._started_at = self._background.now()
        # Distinct numbers per process, so that the master does not confuse two processes.
        self._delta_log = DeltaLog[int, m.TabletReport](self._instance.incarnation << NUMBER_BITS)
        self._all_reported_at = float("-inf")
        self._rates: dict[int, WriteRate] = {}
        self._measured_at = self._started_at
        self._stats = m.Stats()
        self._totals, self._totals_at = (0, 0, 0), float("-inf")
        self._keyspaces: tuple[m.KeyspaceSize, ...] = ()
        self._keyspaces_number = 0
        self._first_reply_unix_seconds: float | None = None

    def reply(self, code: str, detail: str, known: int) -> m.ExchangeReply:
        """Return the report for a master that has report `known`; the caller adds results and rows."""
        seen = self._update_delta_log()
        base, tablets, dropped = self._delta_log.since(known)
        if self._first_reply_unix_seconds is None:
            # As late as possible: the kubelet may record the container's start after the process has started.
            self._first_reply_unix_seconds = self._background.wall()
        made = self._reply(code, detail, seen)
        free_bytes, sessions = self._gate.free_bytes, len(self._sessions.open)
        return msgspec.structs.replace(
            made,
            started_seconds=self._first_reply_unix_seconds,
            stats=msgspec.structs.replace(
                self._stats,
                disk_free_bytes=free_bytes,
                sessions=sessions,
                copy_log_bytes=self._sessions.log_bytes,
            ),
            number=self._delta_log.number,
            base=base,
            tablets=tuple(tablets),
            dropped=tuple(dropped),
            keyspaces=None if base and base >= self._keyspaces_number else self._keyspaces,
        )

    def for_take_over(self, reply: m.ExchangeReply, row_digests: bytes | None) -> m.ExchangeReply:
        """Add what only a new master needs to continue: sessions, and rows that differ from its own by their
        digests; without them the whole table, and the member list."""
        table, sessions = self._tablets.table, self._sessions.take_over()
        table.take_for_published()
        if row_digests is None:
            differing, members = None, tuple(table.members.values())
        else:
            differing, members = differing_ranges(table.digests, row_digests), ()
        return msgspec.structs.replace(
            reply,
            rows=table.to_rows(differing),
            differing=differing,
            members=members,
            sessions=sessions,
            groups=table.groups,
        )

    def _reply(self, code: str, detail: str, seen: passes.Survey) -> m.ExchangeReply:
        table, fetches = self._tablets.table, self._sessions.fetches
        return m.ExchangeReply(
            code=code,
            detail=detail,
            uuid=self._instance.uuid,
            cluster=self._settings.cluster,
            incarnation=self._instance.incarnation,
            epoch=table.epoch,
            stamp=table.stamp,
            published_stamp=table.published_stamp,
            member_list_version=table.member_list_version,
            accepted=self._accepted(seen.agreed),
            learners=tuple(map(_learner, seen.learning)),
            copies=tuple(map(_copy_report, seen.copying)),
            fetches=fetches.reports(),
            silent=tuple(self._silent_peers()),
            unserved=tuple(sorted(table.owned.difference(seen.serving))),
            sessions=self._sessions.reports(),
            staged=fetches.staged(),
            pod_uid=self._settings.pod_uid,
            boot_id=self._settings.boot_id,
            stopping=self._planned_stop.announced,
            formats=self._formats,
            features=table.features,
            catalog_version=table.keyspaces.catalog.version,
            cleared=self._clearer.cleared,
            groups_version=table.groups.version,
            vacant=vacant_keyspaces(self._tablets),
            in_doubt=len(self._recovery.in_doubt),
            identity=self._tls.digest,
            users=self._access.file.digest,
            users_problem=self._access.users_problem[: m.USERS_PROBLEM_MAX],
            member_tls=self._peers.tls.reported,
            plain_links=self._peers.plain_links,
        )

    def _update_delta_log(self) -> passes.Survey:
        now = self._background.now()
        everything = now - self._all_reported_at > POSITIONS_SECONDS
        replicas, changed = self._tablets.replicas, set[int]()
        if everything:
            self._all_reported_at, self._stats = now, self._count()
            changed = self._measure_rates(now)
        seen = passes.survey(replicas, positions=everything)
        changed.update([each.partition for each in seen.changed])
        reports = {
            each.partition: tablet_report(each, self._rates.get(each.partition))
            for each in map(replicas.__getitem__, changed)
            if each.seen_block is not None
        }
        self._delta_log.update(reports, seen.gone)
        if everything and (sizes := owned_sizes(self._tablets)) != self._keyspaces:
            self._keyspaces, self._keyspaces_number = sizes, self._delta_log.number
        return seen

    def _measure_rates(self, now: float) -> set[int]:
        """Measure the logs that grow, or did a moment ago. Returns the partitions that have another rate."""
        replicas, before = self._tablets.replicas, self._measured_at
        for replica, appended_bytes in passes.grown(replicas):
            self._rates.setdefault(replica.partition, WriteRate(appended_bytes, before))
        changed = {
            partition
            for partition, rate in self._rates.items()
            if rate.measure(replicas[partition].tablet.log.appended_bytes, now)
        }
        self._measured_at = now
        self._rates = {partition: rate for partition, rate in self._rates.items() if not rate.over}
        return changed

    def _accepted(self, agreed: list[Replica]) -> tuple[m.Row, ...]:
        accepted = (each.meta.accepted for each in agreed)
        rows = self._tablets.rows
        return tuple(row for row in accepted if row is not None and row.version > rows[row.partition].version)

    def _silent_peers(self) -> list[m.SilentPeer]:
        """Return members that an owned tablet waits for and that have been silent for a while."""
        now, lost = self._background.now(), self._lost_since()
        least = max(limits.SILENT_MS_MIN, 2 * self._live.heartbeat_ms)
        known = self._replicator.links.keys() | self._tablets.table.members.keys()
        silent: dict[int, int] = {}
        for member in known - {self._tablets.me}:
            if (silent_ms := self._silent_ms(member, now, lost, least)) is not None:
                silent[member] = silent_ms
        needed = self._waited_for() if silent else ()
        return [m.SilentPeer(member, silent[member]) for member in sorted(silent) if member in needed]

    def _silent_ms(self, member: int, now: float, lost: dict[int, float], least_ms: float) -> int | None:
        link = self._replicator.links.get(member)
        heard_at = self._started_at if link is None else max(link.heard_at, self._started_at)
        silent_ms = int((now - heard_at) * 1000)
        if silent_ms >= least_ms:
            return silent_ms
        lost_at = lost.get(member)
        if lost_at is None or now - lost_at <= limits.LOST_SECONDS_MAX:
            return None
        return int((now - lost_at) * 1000)

    def _waited_for(self) -> set[int]:
        """Return the members that owned tablets wait for; the cost is that of all of them."""
        owners = (replica.owner for replica in self._tablets.replicas.values())
        return {member for owner in owners if owner is not None for member in owner.waited_for}

    def _lost_since(self) -> dict[int, float]:
        """Return since when connected members have accepted no operations of some tablet, by member."""
        found: dict[int, float] = {}
        for replica in self._replicator.probing.values():
            owner = replica.owner
            for member in () if owner is None or not owner.appending else owner.members:
                lost_at = owner.progress[member].lost_at if owner is not None else 0.0
                if lost_at:
                    found[member] = min(lost_at, found.get(member, lost_at))
        return found

    def _count(self) -> m.Stats:
        """Count over all tablets and requests; free space and sessions are left out."""
        counters = self._delayed_replies.counters
        owned = self._tablets.table.owned
        backups, entries, size_bytes = self._sums(owned)
        counts = [each.counts for each in self._delayed_replies.latencies.values()]
        return m.Stats(
            reads=counters.reads,
            writes=counters.writes,
            forwarded=counters.forwarded,
            errors=counters.errors,
            owned=len(owned),
            backups=backups,
            entries=entries,
            bytes=size_bytes,
            durations=tuple(map(sum, zip(*counts, strict=True))),
        )

    def _sums(self, owned: set[int]) -> tuple[int, int, int]:
        """Return backups, entries and bytes, as `passes.totals` found them last."""
        now, replicas = self._background.now(), self._tablets.replicas
        if now - self._totals_at > POSITIONS_SECONDS * len(replicas) / TOTALS_TABLETS:
            self._totals, self._totals_at = passes.totals(replicas, owned), now
        return self._totals


def tablet_report(replica: Replica, rate: WriteRate | None = None) -> m.TabletReport:
    assert replica.block is not None
    return m.TabletReport(
        partition=replica.partition,
        state=replica.block.state,
        generation=replica.generation,
        last=replica.last,
        applied=m.OpId(*replica.tablet.log.applied),
        promised=replica.tablet.promised,
        bytes=replica.size_bytes,
        written_bytes_per_second=0 if rate is None else rate.reported,
    )


def _learner(replica: Replica) -> m.LearnerReport:
    owner = replica.owner
    assert owner is not None
    assert owner.learner is not None
    learner = owner.learner
    progress = owner.progress.get(learner.member)
    match = 0 if progress is None else progress.match
    return m.LearnerReport(
        id=learner.id,
        partition=replica.partition,
        destination=learner.member,
        state=learner.state,
        lag=max(0, replica.tablet.log.last[1] - match),
        handed_over=hand_over_point(replica),
        result=learner.result,
    )


def _copy_report(replica: Replica) -> m.CopyReport:
    state, error, copy = CopyState.STARTED, "", replica.meta.copy
    assert copy is not None
    # A copy that has not started did not fail: the master repeats the command, or aborts it.
    if replica.copy_begun and (replica.broken or replica.state is TabletState.DELETED):
        state, error = CopyState.FAILED, replica.broken or "this member restarted during the copy"
    elif replica.meta.accepted is not None and replica.meta.accepted_id == copy.id:
        state = CopyState.ACCEPTED
    elif replica.received:
        state = CopyState.INGESTED
    elif replica.state is TabletState.COPYING:
        state = CopyState.COPYING
    refused = replica.meta.refused is not None and replica.meta.refused.id == copy.id
    return m.CopyReport(
        copy.id,
        replica.partition,
        copy.base,
        state,
        copy.generation,
        error,
        replica.copy_result,
        refused,
    )
