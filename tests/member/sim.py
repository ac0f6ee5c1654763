"""A deterministic cluster: the real replication, follower and serving code on fake time, network and disks.

One seed decides everything: delays, crashes (with loss of unsynced logs), pauses, cut connections, what the
master does and when. One partition, because partitions do not depend on each other.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

import msgspec

from stele.adapters.memory.engine import MemoryEngine
from stele.core.table.table import Partition
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.log import Log
from stele.core.tablet.owner import LearnerState, Phase
from stele.errors import Refused, SteleError
from stele.member.replication.follower import Follower
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.request import Kind, Request
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.executor import CommandExecutor
from stele.member.storage.write_back import WriteBack
from stele.wire import peer
from stele.wire.storage import keys
from stele.wire.storage.volume import Consensus, Frozen, Superblock, Waited

P = 0
LEASE_SECONDS = 3.0
HEARTBEAT_SECONDS = 0.2
WINDOW_MESSAGES = 3
KEYSPACE = b"default"


class SimLoop:
    """Events in the order of their time, then of their making."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.wall_at_start = 1.7e9
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def wall(self) -> float:
        """Unix seconds."""
        return self.wall_at_start + self.now

    def at(self, when: float, callback: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (when, self._made, callback))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, callback = heapq.heappop(self._events)
            callback()
        self.now = until


class MemberLoop:
    """One process's view of time: nothing of a dead process runs, a paused one runs later."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.alive = True
        self.paused_until = 0.0

    def time(self) -> float:
        return self._loop.now

    def call_soon(self, callback: Callable[[], None]) -> object:
        return self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> "SimTimer":
        timer = SimTimer()
        self._loop.at(self._loop.now + delay, lambda: self._run(timer, callback))
        return timer

    def _run(self, timer: "SimTimer", callback: Callable[[], None]) -> None:
        if not self.alive or timer.cancelled:
            return
        if self._loop.now < self.paused_until:
            self._loop.at(self.paused_until, lambda: self._run(timer, callback))
        else:
            callback()


class SimTimer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimSyncer:
    """fsync Always: held once a sync that began later ended."""

    def __init__(self, member: "SimMember") -> None:
        self._member = member
        self._waiting: list[Callable[[], None]] = []

    def after_write(self, then: Callable[[], None]) -> None:
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self._member.later(0.001, 0.03, self._sync)

    def _sync(self) -> None:
        self._member.engine.sync_log()
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


class SimLink:
    """The dialling side of a session; messages keep their order, and all are lost with the session."""

    def __init__(self, owner: "SimMember", other: "SimMember") -> None:
        self.mine, self.other = owner, other
        self.member = other.index
        self.ready = False
        self.behind: dict[int, None] = {}
        self.in_flight = 0
        self._session = 0
        self._there = self._back = 0.0

    def open(self) -> None:
        self._session += 1
        self.ready = True
        self.in_flight = 0
        self.behind.clear()
        self.mine.replicator.session_began(self)  # type: ignore[arg-type]

    def cut(self) -> None:
        self._session += 1
        self.ready = False

    def send(self, message: peer.Message) -> None:
        if self.ready:
            other, process = self.other, self.other.loop
            inbound = SimInbound(self, self._session)
            self._there = self._deliver(
                self._there, process, lambda: other.deliver(inbound, process, message)
            )

    @property
    def has_room(self) -> bool:
        return self.in_flight < WINDOW_MESSAGES

    def send_append(self, items: list[peer.AppendItem], size: int) -> None:
        """Nothing leaves before it is written."""
        for item in items:
            for index, record in enumerate(item.records, item.prev_index + 1):
                assert self.mine.disk.get_log(keys.log_key(P, index)) == record, (index, item)
        self.in_flight += 1
        self.send(peer.Append(items))

    def acknowledged(self) -> None:
        self.in_flight -= 1

    def answer(self, session: int, message: peer.Message) -> None:
        process = self.mine.loop

        def take() -> None:
            if session == self._session and process is self.mine.loop:
                self.mine.replicator.on_message(self, copied(message))  # type: ignore[arg-type]

        if session == self._session:
            self._back = self._deliver(self._back, process, take)

    def _deliver(self, after: float, process: MemberLoop, callback: Callable[[], None]) -> float:
        loop, session = self.mine.sim, self._session
        when = max(after, loop.now + loop.random.choice((0.001, 0.002, 0.005, 0.02, 0.2)))

        def arrive() -> None:
            if session == self._session:
                process.call_soon(callback)

        loop.at(when, arrive)
        return when


class SimInbound:
    def __init__(self, link: SimLink, session: int) -> None:
        self._link, self._session = link, session
        self.sender = link.mine.index

    def send(self, message: peer.Message) -> None:
        self._link.answer(self._session, message)

    def close(self, reason: str) -> None:
        raise AssertionError(reason)


def copied(message: peer.Message) -> peer.Message:
    return peer.decode_message(peer.encode_message(message))


class SimMember:
    """What node.py does, for one partition and without files: `disk` survives a crash."""

    def __init__(self, sim: SimLoop, index: int, others: list["SimMember"]) -> None:
        self.sim, self.index, self.others = sim, index, others
        self.disk = MemoryEngine()
        self.engine = WriteBack(self.disk)
        self.block: Superblock | None = None
        self.meta = Consensus()
        self.row = Partition(0, ())
        self.up = False
        self.isolated_until = 0.0
        self.full_until = 0.0
        self.loop = MemberLoop(sim)
        self.links: dict[int, SimLink] = {}

    # -- process

    def start(self) -> None:
        self.up, self.loop = True, MemberLoop(self.sim)
        self.tablets = TabletStore(self.engine)
        self.tablets.has_room = lambda size: self.sim.now >= self.full_until
        self.lease_holder = LeaseHolder()
        granted = LeaseGrantor(self.sim.now, LEASE_SECONDS)
        self.replicator = Replicator(
            self.tablets, SimSyncer(self), (granted, self.lease_holder), self, self.loop
        )
        self.follower = Follower(self.replicator, self, self.loop)
        self.command_executor = CommandExecutor(
            self.replicator, self.lease_holder, self.loop.time, self.sim.wall
        )
        self.tablets.on_cut = self.command_executor.cut
        if self.block is not None and self.block.state == "COPYING":
            self.block = msgspec.structs.replace(self.block, state="DELETED")
        self.replica = self.tablets.load(P, self.index, self.block, self.meta)
        assert not self.replica.broken, self.replica.broken
        self.replica.tablet.row = self.row
        for other in self.others:
            if other is not self:
                self.links[other.index] = SimLink(self, other)
        self.replicator.links = self.links  # type: ignore[assignment]
        self.take_role()
        self._heartbeat()
        self._tick()

    def crash(self, *, power_lost: bool) -> None:
        self.up = self.loop.alive = False
        self.disk = self.disk.crashed(power_lost=power_lost)
        self.engine = WriteBack(self.disk)
        for other in self.others:
            for link in (other.links.get(self.index), self.links.get(other.index)):
                if link is not None:
                    link.cut()

    def isolate(self, until: float) -> None:
        """Cut it off from members and master; clients still reach it."""
        self.isolated_until = until
        for other in self.others:
            for link in (other.links.get(self.index), self.links.get(other.index)):
                if link is not None:
                    link.cut()

    def connects(self, other: "SimMember") -> bool:
        return other.up and max(self.isolated_until, other.isolated_until) <= self.sim.now

    def later(self, least: float, most: float, callback: Callable[[], None]) -> None:
        self.loop.call_later(self.sim.random.uniform(least, most), callback)

    def _heartbeat(self) -> None:
        self.replicator.heartbeat()
        self.loop.call_later(HEARTBEAT_SECONDS, self._heartbeat)

    def _tick(self) -> None:
        for link in self.links.values():
            if not link.ready and self.connects(link.other) and self.sim.random.random() < 0.3:
                link.open()
        self.replicator.tick()
        self.command_executor.leases_changed()
        if self.tablets.stalled:
            self.replicator.wake()
        if self.sim.random.random() < 0.02:
            self._flush()
        self.loop.call_later(0.05, self._tick)

    def _flush(self) -> None:
        replica = self.replica
        self.engine.sync_log()
        self.engine.flush()
        replica.flushed = replica.tablet.log.applied[1]
        self.tablets.trim(replica, replica.trim_limit)

    def deliver(self, inbound: SimInbound, process: MemberLoop, message: peer.Message) -> None:
        if process is self.loop and self.up:
            self.follower.on_message(inbound, copied(message))  # type: ignore[arg-type]

    # -- hooks

    def applied(self, replica: Replica) -> None:
        self.command_executor.applied(replica)

    def serving(self, replica: Replica) -> None:
        replica.forget_ahead()

    def leases_changed(self) -> None:
        self.command_executor.leases_changed()

    def stalled(self) -> None:
        """Writes are not refused here: so more of them wait for room."""

    def adopt_from_owner(self, partition: int, row: Partition) -> None:
        self.adopt(row, persist=False)

    def fill(self, replica: Replica) -> None:
        def done() -> None:
            if self.block is not None and self.block.state == "COPYING" and self.tablets.write():
                self.tablets.clear_log(replica)
                self.engine.sync_log()
                self.set_block("READY", self.block.generation)
                self.fresh((0, 0))

        self.later(0.001, 0.05, done)

    def wants_promise(self, replica: Replica) -> None:
        owner = replica.owner
        assert owner is not None
        assert owner.learner is not None
        learner = owner.learner

        def done() -> None:
            if replica.owner is not None and replica.owner.learner is learner:
                self.save(waited=Waited(learner.id, learner.member, learner.base))
                replica.owner.wait_for_learner(learner.id)

        self.later(0.001, 0.05, done)

    # -- files

    def save(self, **changes: Any) -> None:
        self.meta = self.replica.meta = msgspec.structs.replace(self.meta, **changes)

    def set_block(self, state: Any, generation: int) -> None:
        last = self.replica.last
        self.block = self.replica.block = Superblock(state, generation, generation, last)
        self.replica.prefixes.clear()

    def fresh(self, applied: tuple[int, int]) -> None:
        replica = self.replica
        replica.tablet.replace_log(Log(applied))
        replica.keyspaces = dict(self.tablets.read_state(P, replica.generation).keyspaces)
        replica.records.clear()

    # -- rows

    def adopt(self, row: Partition, *, persist: bool = True) -> None:
        if persist and row.version > self.row.version:
            self.row = row
            if self.block is None and row.version == 1 and self.index in row.replicas:
                self.set_block("READY", 1)
        if self.replica.tablet.adopt(row):
            self.take_role()

    def take_role(self) -> None:
        replica = self.replica
        row = replica.tablet.row
        if row.owner == self.index and replica.ready:
            if replica.owner is None:
                replica.start_owning()
            elif row.version > replica.owner_row:
                replica.owner.row_changed(row)
            replica.owner_row = row.version
            self.replicator.own(replica)
            self.replicator.mark_dirty(replica)
            self.replicator.to_apply(replica)
        elif replica.owner is not None:
            replica.owner = None
            for request in self.command_executor.give_up(replica, follows=replica.tablet.named):
                self.command_executor.uncertain(request)

    # -- commands of the master

    def fence(self, term: int, *, dead: bool) -> tuple[int, int] | None:
        replica, tablet = self.replica, self.replica.tablet
        holder = tablet.leader if tablet.leader is not None else tablet.row.owner
        if tablet.fence(term):
            if replica.owner is not None:
                replica.owner.phase = Phase.DEPOSED
            elif holder is not None:
                self.replicator.lease_grantor.leave(P, holder, self.loop.time())
        self.save(promised=max(term, self.meta.promised))
        if not dead and self.replicator.lease_grantor.wait_seconds(P, self.loop.time()) > 0:
            return None
        return replica.last.term, replica.last.index

    def add_learner(self, id: str, destination: int) -> None:
        owner = self.replica.owner
        if owner is None:
            raise Refused("not the owner")
        owner.add_learner(id, destination, self.replica.tablet.row.version)
        self.replicator.own(self.replica)

    def hand_over(self, id: str) -> tuple[int, int] | None:
        """The last operation, None while it is not drained."""
        replica = self.replica
        if replica.owner is None:
            raise Refused("not the owner")
        if self.meta.frozen is None:
            replica.owner.freeze(id)
            self.save(frozen=Frozen(id, replica.owner.frozen_base))
        else:
            replica.owner.check_hand_over(id)
        return None if replica.waiters or replica.waiting_for_lease else replica.owner.handed_over

    def abort(self, id: str) -> None:
        self.save(waited=None, frozen=None)
        replica = self.replica
        if replica.owner is not None and replica.owner.drop_learner(id):
            self.replicator.own(replica)
            self.replicator.mark_dirty(replica)
            self.replicator.to_apply(replica)

    def receive(self) -> None:
        """StartTabletCopy: a READY tablet stays, anything else begins anew."""
        if not self.replica.ready:
            generation = 1 if self.block is None else self.block.highest + 1
            self.set_block("COPYING", generation)
            self.tablets.clear_log(self.replica)
            self.replica.tablet.replace_log(Log())

    def ingest(self, source: "SimMember") -> None:
        """A whole copy of what the source applied, under the next generation."""
        begin, end = keys.tablet_range(P, source.replica.generation)
        self.ingest_entries(source.engine.scan(begin, end, 10**9), source.replica.tablet.log.applied)

    def ingest_entries(self, entries: list[tuple[bytes, bytes]], applied: tuple[int, int]) -> None:
        assert self.block is not None
        generation = self.block.highest + 1
        prefix = keys.tablet_prefix(P, generation)
        self.engine.write_data([(prefix + key[keys.TABLET_PREFIX_BYTES :], value) for key, value in entries])
        self.engine.flush()
        self.tablets.clear_log(self.replica)
        self.engine.sync_log()
        self.set_block("READY", generation)
        self.fresh(applied)

    # -- clients

    def entries(self) -> list[tuple[bytes, bytes]]:
        """What users stored, by the data as it is."""
        begin, end = keys.tablet_range(P, self.replica.generation)
        return [entry for entry in self.engine.scan(begin, end, 10**9) if keys.split_user(entry[0])]

    def call(self, args: list[bytes], future: Any) -> bool:
        """Run a command if this member thinks that it serves."""
        replica = self.replica
        if not self.up or self.sim.now < self.loop.paused_until:
            return False
        if replica.owner is None or not replica.owner.serving:
            return False
        request = Request(Kind.EXECUTE, P, KEYSPACE, future)
        request.commands = [args]
        request.deadline = self.sim.now + 1000
        self.command_executor.run(replica, request)
        return True

    @property
    def in_sync_learner(self) -> bool:
        owner = self.replica.owner
        return owner is not None and owner.learner is not None and owner.learner.state is LearnerState.IN_SYNC


class SimFuture:
    """What a request needs of a future."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, value: Any) -> None:
        self._done = True
        self._then(value[0])

    def set_exception(self, error: SteleError) -> None:
        self._done = True
        self._then(error)


def ask(member: SimMember, *args: bytes, seconds: float = 5.0) -> Any:
    """The reply of a member that serves, or the SteleError; AssertionError when none comes in that time."""
    replies: list[Any] = []
    assert member.call(list(args), SimFuture(replies.append)), "it does not serve"
    end = member.sim.now + seconds
    while not replies:
        assert member.sim.now < end, "no reply"
        member.sim.run(member.sim.now + 0.05)
    return replies[0]


def write(owner: SimMember, number: int) -> None:
    """So many acknowledged writes of one key."""
    for n in range(number):
        assert not isinstance(ask(owner, b"SET", b"k", b"%d" % n), Exception)
