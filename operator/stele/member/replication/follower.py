"""Requests from other members: operations of their tablets, positions of logs, leases."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stele.core.formats import INVALIDATION_MODE
from stele.core.table.table import Partition
from stele.core.tablet.follower import Code
from stele.core.tablet.lifecycle import TabletState
from stele.errors import Corrupt, Unavailable
from stele.member import limits
from stele.member.replication.links import Inbound
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.write_gate import WriteGate
from stele.wire import peer


class RowEvents(Protocol):
    def adopt_from_owner(self, partition: int, row: Partition) -> None:
        """Adopt a published row that the owner sent and this member lacks."""
        ...

    def fill(self, replica: Replica) -> None:
        """Make an empty copy READY, which the owner feeds from its log alone."""
        ...


@dataclass(eq=False)
class Follower:
    """Replies in order on the requesting connection, once what was appended counts as held.

    `handlers` receive requests, by message type. `_session` returns the session that a member has with this
    one.
    """

    _replicator: Replicator
    _gate: WriteGate
    _roles: RowEvents
    _session: Callable[[int], Inbound | None]
    _now: Callable[[], float]

    def __post_init__(self) -> None:
        self._tablets = self._replicator.tablets
        self.handlers: dict[type[peer.Message], Callable[[Inbound, Any], None]] = {
            peer.Append: self._on_append,
            peer.Heartbeat: self._on_heartbeat,
            peer.Probe: self._on_probe,
            peer.FetchLog: self._on_fetch,
        }

    def _on_append(self, sender: Inbound, message: peer.Append) -> None:
        try:
            acks = [self._append(sender.sender, item) for item in message.items]
        except Unavailable as error:
            # An operation of a later build: nothing here is damaged, and nothing of it is kept.
            sender.close(str(error), invalid=True)
        else:
            self._replicator.reply(sender, peer.Acks(acks))

    def _on_heartbeat(self, sender: Inbound, message: peer.Heartbeat) -> None:
        seconds, excluded = self._replicator.lease_grantor.renew(
            sender.sender, self._now(), sender.incarnation
        )
        version = self._tablets.table.member_list_version if sender.format >= INVALIDATION_MODE else 0
        lease = peer.Lease(
            message.at, seconds, tuple(excluded), no_space=self._gate.full, list_version=version
        )
        sender.send(lease)

    def _on_probe(self, sender: Inbound, message: peer.Probe) -> None:
        items = [self._probe_result(sender.sender, item) for item in message.items]
        self._replicator.reply(sender, peer.ProbeResult(items))

    def announce(self, replica: Replica) -> None:
        """Answer the owner's next probe before it asks: a copy has just become complete.

        Without a session, or when it follows another owner now, nothing is sent: the next probe finds out.
        """
        tablet, row = replica.tablet, replica.tablet.row
        session = None if tablet.leader is None else self._session(tablet.leader)
        if session is None:
            return
        known = (row.version, row.replicas)
        probe = peer.ProbeItem(tablet.partition, row.version, tablet.leader_term, cut=False, row=known)
        result = self._probe_result(session.sender, probe)
        if result.code == Code.OK:
            self._replicator.reply(session, peer.ProbeResult([result]))

    def _on_fetch(self, sender: Inbound, message: peer.FetchLog) -> None:
        sender.send(self._tail(message))

    def _check_leader(
        self, sender: int, partition: int, version: int, term: int, row: peer.RowValue | None
    ) -> tuple[Replica | None, Code]:
        """Return the tablet, and whether the sender is accepted as its owner; if so, follow it."""
        replica = self._tablets.replicas.get(partition)
        if replica is None or replica.broken:
            # Its data and promises are not to be trusted: reply with nothing, not even a term.
            return replica, Code.NO_TABLET
        code = replica.tablet.check(sender, version, term)
        if code is Code.ROW_NEEDED and row is not None:
            self._roles.adopt_from_owner(partition, Partition(row[0], row[1]))
            code = replica.tablet.check(sender, version, term)
        if code is not Code.OK:
            return replica, code
        self._follow(replica, sender, term)
        return replica, Code.OK if replica.ready else Code.NO_TABLET

    def _follow(self, replica: Replica, sender: int, term: int) -> None:
        tablet, lease_grantor = replica.tablet, self._replicator.lease_grantor
        before = tablet.leader
        if tablet.follow(sender, term):
            if before is not None and before != sender:
                lease_grantor.leave(tablet.partition, before, self._now())
            lease_grantor.follow(tablet.partition, sender)

    def _append(self, sender: int, item: peer.AppendItem) -> peer.AckItem:
        replica, code = self._check_leader(sender, item.partition, item.version, item.term, item.row)
        match = 0
        if replica is not None and code is Code.OK:
            code = self._take(sender, replica, item)
            match = item.prev_index + len(item.records)
        elif replica is not None and code is Code.NO_TABLET and item.prev_index == 0:
            self._roles.fill(replica)
        promised = 0 if replica is None else replica.tablet.promised
        return peer.AckItem(item.partition, item.term, int(code), match, promised)

    def _take(self, sender: int, replica: Replica, item: peer.AppendItem) -> Code:
        try:
            code = self._tablets.take(replica, (item.prev_term, item.prev_index), item.records, sender)
        except Corrupt as error:
            self._tablets.break_off(replica, error)
            return Code.NO_TABLET
        if code is Code.OK:
            replica.owner_commit = max(replica.owner_commit, item.commit)
            match = item.prev_index + len(item.records)
            if replica.tablet.log.commit(min(item.commit, match)):
                self._replicator.apply_later(replica, sum(map(len, item.records)))
        return code

    def _probe_result(self, sender: int, item: peer.ProbeItem) -> peer.ProbeResultItem:
        replica, code = self._check_leader(sender, item.partition, item.version, item.term, item.row)
        last = applied = (0, 0)
        promised, empty = 0, False
        if replica is not None:
            promised = replica.tablet.promised
            empty = code is Code.NO_TABLET and replica.state is TabletState.COPYING and not replica.broken
        if replica is not None and code is Code.OK:
            record_log = replica.tablet.log
            if item.cut:
                self._tablets.cut(replica, max(record_log.applied[1], record_log.committed))
            last, applied = record_log.last, record_log.applied
        return peer.ProbeResultItem(item.partition, item.term, int(code), last, applied, promised, empty)

    def _tail(self, ask: peer.FetchLog) -> peer.LogTail:
        """Return operations after `prev`, only to the owner that this member follows in that term."""
        replica = self._tablets.replicas.get(ask.partition)
        if replica is None or not replica.ready or replica.tablet.leader_term != ask.term:
            return peer.LogTail(ask.partition, ask.term, ask.prev, found=False, records=[])
        record_log = replica.tablet.log
        first = ask.prev[1] + 1
        if not record_log.holds(ask.prev) or first < record_log.first:
            return peer.LogTail(ask.partition, ask.term, ask.prev, found=False, records=[])
        records: list[bytes] = []
        if first <= record_log.last[1]:
            records = self._tablets.read_records(replica, first, min(ask.bytes_max, limits.FETCH_BYTES))
        return peer.LogTail(ask.partition, ask.term, ask.prev, found=True, records=records)
