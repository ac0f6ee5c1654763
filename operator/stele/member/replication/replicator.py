"""Drives the owner's side of all tablets: batches, writes, sends, counts acknowledgements, applies, answers.

One turn (`_pump`) handles everything that arrived since the last: one write of the log for all partitions,
then one message per member for all partitions. Nothing is sent before it is written.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from stele.adapters import logs
from stele.core.tablet.follower import CODES, Code
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.log import OpId
from stele.core.tablet.owner import Fetch, Flow, LogPosition, Owner, Phase, Progress
from stele.member import limits
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.group_commit import GroupCommit
from stele.member.replication.links import Inbound, Link
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.replication.write_gate import WriteGate
from stele.wire import peer
from stele.wire.storage.log_record import Change, batch_record, noop_record
from stele.wire.two_phase import HISTORY_KEY, MARKS

log = logging.getLogger("stele.replication")

FETCH_INTERVAL_SECONDS = 1.0
APPLY_AGAIN_SECONDS = 0.2
"""Pause before operations are applied again that a full volume has refused."""


class Replicator:
    """Replicates the tablets that this member owns.

    `links` are the sessions to other members, by index; `full` are the members that report a nearly full
    volume; `handlers` receive members' replies, by message type.
    """

    def __init__(
        self,
        tablets: TabletStore,
        group_commit: GroupCommit,
        leases: tuple[LeaseGrantor, LeaseHolder],
        *,
        links: Mapping[int, Link],
        delayed_replies: DelayedReplies,
        gate: WriteGate,
        loop: asyncio.AbstractEventLoop,
        serving: Callable[[Replica], None],
        wants_promise: Callable[[Replica], None],
    ) -> None:
        """Connect the replicator. `serving` is called when an owner starts to serve.

        `wants_promise` is called when a learner has nearly caught up: persist that every write waits for it.
        """
        self.tablets = tablets
        self.group_commit = group_commit
        self.lease_grantor, self.lease_holder = leases
        self.links = links
        self.full: set[int] = set()
        self.handlers: dict[type[peer.Message], Callable[[Link, Any], None]] = {
            peer.Acks: self._on_acks,
            peer.Lease: self.on_lease,
            peer.ProbeResult: self._on_probe_result,
            peer.LogTail: self._on_tail,
        }
        self._delayed_replies = delayed_replies
        self._gate = gate
        self._serving = serving
        self._wants_promise = wants_promise
        self.probing: dict[int, Replica] = {}
        self._loop = loop
        self._context = logs.about_nothing()
        self._dirty: dict[int, Replica] = {}
        self._replies: list[tuple[Inbound, peer.Message]] = []
        self._to_apply: dict[int, Replica] = {}
        self._uncommitted: dict[int, Replica] = {}
        self._later: dict[int, Replica] = {}
        self._later_bytes = 0
        self._later_timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._begun: dict[int, Replica] = {}
        self._commit_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Acknowledge and commit nothing from now on, neither as owner nor as backup."""
        self._stopped = True
        self._dirty.clear()
        self._replies.clear()

    # -- gathering

    def append(self, replica: Replica, records: list[bytes]) -> None:
        """Append operations of the owner's term."""
        owner = replica.owner
        assert owner is not None
        self.tablets.log_append(replica, records, owner.term)
        self.mark_dirty(replica)

    def mark_dirty(self, replica: Replica) -> None:
        """Mark the tablet as having something to write or send."""
        self._dirty[replica.partition] = replica
        self.wake()

    def reply(self, to: Inbound, message: peer.Message) -> None:
        """Reply once everything appended so far counts as held."""
        self._replies.append((to, message))
        self.wake()

    def to_apply(self, replica: Replica) -> None:
        self._to_apply[replica.partition] = replica
        self.wake()

    def apply_later(self, replica: Replica, size: int) -> None:
        """Apply `size` bytes that a backup knows to be committed, together with what follows: no client
        waits for them."""
        self._later[replica.partition] = replica
        self._later_bytes += size
        if self._later_timer is None:
            self._later_timer = self._loop.call_later(limits.APPLY_DELAY_SECONDS, self.apply_delayed)
        elif self._later_bytes >= limits.APPLY_DELAY_BYTES_MAX:
            self.apply_delayed()

    def apply_delayed(self) -> None:
        """Apply in the next turn what `apply_later` was given."""
        if self._later_timer is not None:
            self._later_timer.cancel()
        self._later_timer, self._later_bytes = None, 0
        due, self._later = self._later, {}
        self._to_apply.update(due)
        self.wake()

    def wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump, context=self._context)

    def _pump(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        if not self.tablets.writer.write():
            # Probes are repeated five times a second; only acknowledgements need to wait for room.
            self._replies = [each for each in self._replies if not isinstance(each[1], peer.ProbeResult)]
            # Refuse at once; the ticks retry.
            self._gate.update()
            return
        dirty, self._dirty = self._dirty, {}
        replies, self._replies = self._replies, []
        ends = [(r, r.owner, r.tablet.log.last) for r in dirty.values() if r.owner is not None]
        self.feed(dirty.values())
        if ends or replies:
            self.group_commit.after_write(partial(self._on_durable, ends, replies))
        if self._to_apply:
            self._apply()

    def _on_durable(
        self, ends: list[tuple[Replica, Owner, OpId]], replies: list[tuple[Inbound, peer.Message]]
    ) -> None:
        """Count what was written as held by this member."""
        if self._stopped:
            return
        last_of = dict(replies)
        for to, message in replies:
            to.send(message, now=message is last_of[to])
        for replica, owner, last in ends:
            held = replica.owner is owner and replica.tablet.log.holds(last)
            if held and owner.on_synced(last[1]):
                self.to_apply(replica)
            if replica.early:
                self._delayed_replies.held(replica)

    def _apply(self) -> None:
        waiting, self._to_apply = self._to_apply, {}
        replicas = [r for r in waiting.values() if r.ready and not r.ingesting]
        complete = self.tablets.apply(replicas)
        for replica in replicas:
            self._applied(replica)
            behind = replica.tablet.log.applied[1] < replica.tablet.log.committed
            if complete or not behind or replica.ingesting:
                continue
            if self.tablets.data_refused:
                self._loop.call_later(APPLY_AGAIN_SECONDS, self.to_apply, replica)
            else:
                self.to_apply(replica)

    def _applied(self, replica: Replica) -> None:
        owner = replica.owner
        if owner is not None:
            if owner.applied():
                self._serving(replica)
            if owner.progress:
                self._schedule_commit(replica)
        self._delayed_replies.applied(replica)

    # -- sending

    def feed(self, replicas: Iterable[Replica], *, commits: bool = False) -> None:
        """Send members the operations of these tablets that they lack, as far as there is room."""
        touched: dict[int, Link] = {}
        for replica in replicas:
            owner = replica.owner
            if owner is None or not owner.appending:
                continue
            last, committed = replica.tablet.log.last[1], replica.tablet.log.committed
            for member, progress in owner.progress.items():
                lacks = progress.next <= last or (commits and progress.commit_sent < committed)
                if progress.flow is Flow.STREAM and lacks and (link := self._ready(member)) is not None:
                    link.behind[replica.partition] = None
                    touched[member] = link
        for link in touched.values():
            self.send_behind(link)

    def _ready(self, member: int) -> Link | None:
        link = self.links.get(member)
        return link if link is not None and link.ready else None

    def _schedule_commit(self, replica: Replica) -> None:
        """Send the commit index with the next operations, or alone after a short delay."""
        self._uncommitted[replica.partition] = replica
        if self._commit_timer is None:
            self._commit_timer = self._loop.call_later(limits.COMMIT_DELAY_SECONDS, self._send_commits)

    def _send_commits(self) -> None:
        self._commit_timer = None
        waiting, self._uncommitted = self._uncommitted, {}
        self.feed(waiting.values(), commits=True)

    def send_behind(self, link: Link) -> None:
        """Fill the window of one member, its partitions in turn. Unwritten operations are written first."""
        if link.behind and link.has_room and not self.tablets.writer.write():
            return
        while link.behind and link.has_room:
            items: list[peer.AppendItem] = []
            size = 0
            while link.behind and size < limits.APPEND_BYTES:
                partition = next(iter(link.behind))
                del link.behind[partition]
                item = self._item(link, partition, limits.APPEND_BYTES - size)
                if item is not None:
                    items.append(item)
                    size += 64 + sum(map(len, item.records))
            if items:
                link.send_append(items, size)

    def _item(self, link: Link, partition: int, bytes_max: int) -> peer.AppendItem | None:
        replica = self.tablets.replicas[partition]
        owner = replica.owner
        progress = None if owner is None else owner.progress.get(link.member)
        if owner is None or progress is None or progress.flow is not Flow.STREAM or not owner.appending:
            return None
        first, last = progress.next, replica.tablet.log.last[1]
        if first > last and progress.commit_sent >= replica.tablet.log.committed:
            return None
        prev_term = replica.tablet.log.term_at(first - 1)
        records = self.tablets.read_records(replica, first, bytes_max) if first <= last else []
        if prev_term is None or (first <= last and not records):
            progress.flow = Flow.PROBE
            self.probing[partition] = replica
            return None
        made = self._make_item(replica, progress, (prev_term, first - 1), records)
        if progress.next <= last:
            link.behind[partition] = None
        return made

    def _make_item(
        self, replica: Replica, progress: Progress, prev: OpId, records: list[bytes]
    ) -> peer.AppendItem:
        tablet = replica.tablet
        assert replica.owner is not None
        row = None
        if progress.version_sent < tablet.row.version:
            progress.version_sent = tablet.row.version
            row = (tablet.row.version, tablet.row.replicas)
        progress.next += len(records)
        progress.commit_sent = min(tablet.log.committed, progress.next - 1)
        return peer.AppendItem(
            partition=replica.partition,
            version=tablet.row.version,
            term=replica.owner.term,
            prev_term=prev[0],
            prev_index=prev[1],
            commit=tablet.log.committed,
            records=records,
            row=row,
        )

    # -- what members answer

    def on_lease(self, link: Link, lease: peer.Lease) -> None:
        member = link.member
        self.lease_holder.renewed(member, lease.at, lease.seconds, frozenset(lease.excluded))
        if lease.no_space != (member in self.full):
            log.warning("member %d: its volume %s", member, "is full" if lease.no_space else "has room again")
            (self.full.add if lease.no_space else self.full.discard)(member)
        for partition in lease.excluded:
            replica = self.tablets.replicas.get(partition)
            if replica is not None and replica.owner is not None and replica.owner.on_lease_excluded(member):
                self.probing[partition] = replica
        self._delayed_replies.leases_changed()

    def _on_acks(self, link: Link, acks: peer.Acks) -> None:
        link.acknowledged()
        for item in acks.items:
            replica = self.tablets.replicas.get(item.partition)
            owner = None if replica is None else replica.owner
            if replica is None or owner is None or owner.term != item.term:
                continue
            self._on_ack(link, replica, owner, item)
        if link.behind:
            self.send_behind(link)

    def _on_ack(self, link: Link, replica: Replica, owner: Owner, item: peer.AckItem) -> None:
        code = CODES[item.code]
        if owner.on_ack(link.member, item.term, code, item.match, item.promised):
            self.to_apply(replica)
        if code is not Code.OK:
            self._not_taken(link, replica, owner, code)
            return
        self.lease_holder.followed(link.member, item.partition, item.term)
        if owner.learner is not None and owner.wants_waiting:
            self._wants_promise(replica)

    def _not_taken(self, link: Link, replica: Replica, owner: Owner, code: Code) -> None:
        self.lease_holder.refused(link.member, replica.partition)
        self.probing[replica.partition] = replica
        if owner.phase is Phase.DEPOSED:
            log.warning("partition %d: member %d answers %s", replica.partition, link.member, code.name)

    def _on_probe_result(self, link: Link, result: peer.ProbeResult) -> None:
        for item in result.items:
            replica = self.tablets.replicas.get(item.partition)
            owner = None if replica is None else replica.owner
            if replica is None or owner is None:
                continue
            position = LogPosition(item.last, item.applied, item.empty)
            code = CODES[item.code]
            owner.on_probe_result(link.member, item.term, code, position, item.promised)
            if code is Code.OK and item.term == owner.term:
                self.lease_holder.followed(link.member, item.partition, item.term)
            self.step(replica)
            if not owner.all_streaming:
                self.probing[replica.partition] = replica
            self.to_apply(replica)
            self.mark_dirty(replica)
            if owner.wants_waiting:
                self._wants_promise(replica)

    # -- establishing

    def own(self, replica: Replica) -> None:
        """Start to establish, or continue, as the owner of the tablet."""
        self.probing[replica.partition] = replica
        # All that begin in one turn are visited together: a member may start to own thousands.
        if not self._begun:
            self._loop.call_soon(self._visit_begun)
        self._begun[replica.partition] = replica

    def resume(self, replica: Replica) -> None:
        """Continue as the owner after the row, the learner or the freeze changed."""
        self.own(replica)
        self.mark_dirty(replica)
        self.to_apply(replica)

    def _visit_begun(self) -> None:
        begun, self._begun = self._begun, {}
        self._visit(begun.values())

    def tick(self) -> None:
        """Probe the members whose position is unknown; called often."""
        self._visit(list(self.probing.values()))

    def _visit(self, replicas: Iterable[Replica]) -> None:
        now = self._loop.time()
        probes: dict[int, list[peer.ProbeItem]] = {}
        for replica in replicas:
            owner = replica.owner
            if owner is None or owner.all_streaming or not replica.ready:
                self.probing.pop(replica.partition, None)
                continue
            self._probe(replica, owner, now, probes)
            self._note_lost(owner, now)
            self.step(replica)
        for link in self.links.values():
            # What could not be written before may be sent now.
            self.send_behind(link)
        for member, items in probes.items():
            link = self.links[member]
            link.send(peer.Probe(items))
            link.send(peer.Heartbeat(now))

    def _probe(
        self, replica: Replica, owner: Owner, now: float, probes: dict[int, list[peer.ProbeItem]]
    ) -> None:
        row, learner = replica.tablet.row, owner.learner
        for member in owner.to_probe(now):
            if self._ready(member) is None:
                continue
            cut = learner is not None and learner.member == member and not learner.waited
            item = peer.ProbeItem(
                partition=replica.partition,
                version=row.version,
                term=owner.term,
                cut=cut,
                row=(row.version, row.replicas),
            )
            probes.setdefault(member, []).append(item)

    @staticmethod
    def _note_lost(owner: Owner, now: float) -> None:
        """Record since when a member of the row cannot be fed."""
        for member in owner.members:
            progress = owner.progress.get(member)
            if progress is not None and progress.flow is not Flow.STREAM and not progress.lost_at:
                progress.lost_at = now

    def step(self, replica: Replica) -> None:
        """Continue to establish as far as the known positions allow."""
        owner = replica.owner
        if owner is None:
            return
        fetch = owner.next_step()
        if fetch is not None:
            self._fetch(replica, owner, fetch)
        elif owner.ready_to_commit:
            self.append(replica, [self._first_record(replica, owner.term)])
            owner.appended_first()
            self.feed([replica])

    @staticmethod
    def _first_record(replica: Replica, term: int) -> bytes:
        """Return the first record of a term: it renames data of which later operations may be lost.

        What counts on the data before learns by that that outcomes may be among them.
        """
        if replica.meta.older <= replica.tablet.log.last[0]:
            return noop_record(term)
        return batch_record(term, [Change(MARKS, HISTORY_KEY, b"accepted/%d" % term)])

    def _fetch(self, replica: Replica, owner: Owner, fetch: Fetch, *, again: bool = False) -> None:
        now = self._loop.time()
        link = self._ready(fetch.member)
        if link is None or (not again and now - replica.fetched_at < FETCH_INTERVAL_SECONDS):
            return
        replica.fetched_at = now
        link.send(peer.FetchLog(replica.partition, owner.term, fetch.prev, limits.FETCH_BYTES))

    def _on_tail(self, link: Link, tail: peer.LogTail) -> None:
        """Append the tail of a longer log, then continue."""
        replica = self.tablets.replicas.get(tail.partition)
        owner = None if replica is None else replica.owner
        if replica is None or owner is None or tail.term != owner.term or owner.phase is not Phase.ADOPTING:
            return
        replica.fetched_at = 0.0
        fetch = owner.next_step()
        if not tail.found and fetch is not None:
            applied = replica.tablet.log.applied
            if tail.prev == applied:
                log.error("partition %d: no member's log goes on from %s", replica.partition, applied)
                replica.fetched_at = self._loop.time()
            else:
                self._fetch(replica, owner, Fetch(fetch.member, applied), again=True)
            return
        member = owner.tablet.me if fetch is None else fetch.member
        if self.tablets.take(replica, tail.prev, tail.records, member) is not Code.OK:
            # A file has to be fetched first: retry after a delay.
            replica.fetched_at = self._loop.time()
        self.step(replica)

    # -- sessions

    def session_began(self, link: Link) -> None:
        """Start a session: the member's positions and leases are unknown again."""
        self.lease_holder.begin_session(link.member)
        for replica in self.tablets.replicas.values():
            owner = replica.owner
            if owner is not None and link.member in owner.progress:
                owner.disconnected(link.member)
                self.probing[replica.partition] = replica
        link.send(peer.Heartbeat(self._loop.time()))
        self.tick()

    def heartbeat(self) -> None:
        now = self._loop.time()
        for link in self.links.values():
            link.send(peer.Heartbeat(now))
