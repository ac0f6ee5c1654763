"""What a member tells the master of itself in each exchange; a new master needs nothing else."""

import msgspec

from stele.core.control import commands as m
from stele.core.delta import DeltaLog
from stele.member import limits
from stele.member.control.migrations import Migrations, hand_over_point
from stele.member.copy.sessions import CopySessions
from stele.member.node import Node
from stele.member.replication.replica import Replica

POSITIONS_SECONDS = 1.0
"""How old the positions and sizes of tablets in a report may be."""

NUMBER_BITS = 32
"""Reports that one process makes at most, as a power of two."""


class Reporter:
    """Makes the reports of one process: each tells of the tablets that changed since one that the master has.

    States, generations, promises and room are told as they are now, because the master decides on them;
    positions, sizes and counts once in POSITIONS_SECONDS: to look at all tablets takes long where many are.
    """

    def __init__(self, node: Node, migrations: Migrations, sessions: CopySessions) -> None:
        self._node, self._migrations, self._sessions = node, migrations, sessions
        # A master takes no two processes for one another: each has numbers of its own.
        self._delta_log = DeltaLog[int, m.TabletReport](node.instance.incarnation << NUMBER_BITS)
        self._reported: dict[int, tuple[object, ...]] = {}
        self._all_reported_at = float("-inf")
        self._stats = m.Stats()
        self._first_reply_unix_seconds: float | None = None

    def reply(self, code: str, detail: str, known: int) -> m.ExchangeReply:
        """The report for a master that has report `known`; the caller adds results and rows."""
        self._update_delta_log()
        base, tablets, dropped = self._delta_log.since(known)
        if self._first_reply_unix_seconds is None:
            # As late as can be: the kubelet may note the start of the container after the process runs.
            self._first_reply_unix_seconds = self._node.wall()
        made = self._reply(code, detail)
        free_bytes, sessions = self._node.disk_free_bytes, len(self._sessions.open)
        return msgspec.structs.replace(
            made,
            started_seconds=self._first_reply_unix_seconds,
            stats=msgspec.structs.replace(self._stats, disk_free_bytes=free_bytes, sessions=sessions),
            number=self._delta_log.number,
            base=base,
            tablets=tuple(tablets),
            dropped=tuple(dropped),
        )

    def _reply(self, code: str, detail: str) -> m.ExchangeReply:
        node, fetches = self._node, self._sessions.fetches
        return m.ExchangeReply(
            code=code,
            detail=detail,
            uuid=node.uuid,
            cluster=node.cluster,
            incarnation=node.instance.incarnation,
            epoch=node.table.epoch,
            stamp=node.table.stamp,
            member_list_version=node.table.member_list_version,
            accepted=_accepted(node),
            learners=tuple(_learners(node)),
            copies=tuple(self._migrations.copy_reports()),
            fetches=fetches.reports(),
            silent=tuple(silent_peers(node)),
            unserved=tuple(node.unserved()),
            sessions=self._sessions.reports(),
            staged=fetches.staged(),
            pod_uid=node.settings.pod_uid,
            boot_id=node.settings.boot_id,
        )

    def _update_delta_log(self) -> None:
        now = self._node.loop.time()
        everything = now - self._all_reported_at > POSITIONS_SECONDS
        if everything:
            self._all_reported_at, self._stats = now, stats(self._node)
        changed: dict[int, m.TabletReport] = {}
        gone = self._reported.keys() - self._node.replicas.keys()
        for partition, replica in self._node.replicas.items():
            if replica.block is None or replica.broken:
                gone.add(partition)
                continue
            mark = (replica.block, replica.generation, replica.tablet.promised)
            if everything or self._reported.get(partition) != mark:
                self._reported[partition] = mark
                changed[partition] = tablet_report(replica)
        self._delta_log.update(changed, gone)
        for partition in gone:
            self._reported.pop(partition, None)


def tablet_report(replica: Replica) -> m.TabletReport:
    assert replica.block is not None
    return m.TabletReport(
        partition=replica.partition,
        state=replica.block.state,
        generation=replica.generation,
        last=replica.last,
        applied=m.OpId(*replica.tablet.log.applied),
        promised=replica.tablet.promised,
        bytes=replica.size_bytes,
    )


def _accepted(node: Node) -> tuple[m.Row, ...]:
    found = (replica.meta.accepted for replica in node.replicas.values())
    return tuple(row for row in found if row is not None and row.version > node.rows[row.partition].version)


def _learners(node: Node) -> list[m.LearnerReport]:
    found = []
    for replica in node.replicas.values():
        owner = replica.owner
        if owner is None or owner.learner is None:
            continue
        learner = owner.learner
        progress = owner.progress.get(learner.member)
        match = 0 if progress is None else progress.match
        handed_over = hand_over_point(replica)
        found.append(
            m.LearnerReport(
                id=learner.id,
                partition=replica.partition,
                destination=learner.member,
                state=learner.state,
                lag=max(0, replica.tablet.log.last[1] - match),
                handed_over=handed_over,
            )
        )
    return found


def silent_peers(node: Node) -> list[m.SilentPeer]:
    """Members that an owned tablet waits for and that were not heard for a while."""
    needed: set[int] = set()
    for replica in node.replicas.values():
        if replica.owner is not None:
            needed.update(replica.owner.waited_for)
    found = []
    lost = _lost_since(node)
    least = max(limits.SILENT_MS_MIN, 2 * node.settings.heartbeat_ms)
    now = node.loop.time()
    for member in sorted(needed):
        link = node.links.get(member)
        heard_at = node.started_at if link is None else max(link.heard_at, node.started_at)
        silent_ms = int((now - heard_at) * 1000)
        if silent_ms >= least:
            found.append(m.SilentPeer(member, silent_ms))
        elif (lost_at := lost.get(member)) is not None and now - lost_at > limits.LOST_SECONDS_MAX:
            found.append(m.SilentPeer(member, int((now - lost_at) * 1000)))
    return found


def _lost_since(node: Node) -> dict[int, float]:
    """Since when a connected member takes no operations of some tablet: its own is broken or gone."""
    found: dict[int, float] = {}
    for replica in node.replicator.probing.values():
        owner = replica.owner
        for member in () if owner is None or not owner.appending else owner.members:
            lost_at = owner.progress[member].lost_at if owner is not None else 0.0
            if lost_at:
                found[member] = min(lost_at, found.get(member, lost_at))
    return found


def stats(node: Node) -> m.Stats:
    """What is counted over all tablets and requests; room and sessions are left out."""
    counters = node.command_executor.counters
    me = node.me
    owned = sum(1 for row in node.rows if row.owner == me)
    held = [r for r in node.replicas.values() if r.ready]
    return m.Stats(
        reads=counters.reads,
        writes=counters.writes,
        forwarded=counters.forwarded,
        errors=counters.errors,
        owned=owned,
        backups=sum(1 for r in held if r.tablet.named and r.tablet.row.owner != me),
        entries=sum(r.entries for r in held),
        bytes=sum(r.size_bytes for r in held),
    )
