"""Histories of clients in the deterministic cluster: nothing acknowledged is lost, nothing old is read."""

from collections.abc import Iterable
from typing import Any

import pytest

import stele.core.tablet.log
import stele.core.tablet.owner
import stele.member.limits
from stele.core.table.table import Partition
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.owner import LearnerState, Owner
from stele.errors import Corrupt, SteleError
from stele.wire.storage import keys
from tests.member.sim import SimFuture, SimLoop, SimMember, SimSyncer

KEYS = 16
CHAOS_SECONDS = 40.0
QUIET_SECONDS = 40.0
PATIENCE_SECONDS = 0.5


class History:
    """One writer per key with growing numbers: so a read may never be below what was known when it began."""

    def __init__(self) -> None:
        self.known = dict.fromkeys(range(KEYS), 0)
        self.tried = dict.fromkeys(range(KEYS), 0)
        self.acknowledged = 0
        self.reads = 0

    def read(self, key: int, least: int, found: int) -> None:
        assert found >= least, f"key {key}: {found} was read, {least} was known before"
        assert found <= self.tried[key], f"key {key}: {found} was read and never written"
        self.known[key] = max(self.known[key], found)
        self.reads += 1


class Sim:
    """Members, a master that does one thing at a time, clients, and trouble."""

    def __init__(self, seed: int, members: int = 4) -> None:
        self.loop = SimLoop(seed)
        self.random = self.loop.random
        self.members: list[SimMember] = []
        for index in range(members):
            self.members.append(SimMember(self.loop, index, self.members))
        for member in self.members:
            member.start()
        self.row = Partition(0, ())
        self.history = History()
        self.writing = [False] * KEYS
        self.chaos = True
        self.clients = True
        self.task: Any = None
        self.ids = 0
        self.steps: dict[str, int] = {}
        self.store((0, 1, 2), by=1)

    # -- the master

    def store(self, replicas: tuple[int | None, ...], by: int) -> None:
        self.row = Partition(self.row.version + by, replicas)
        self.publish()

    def publish(self) -> None:
        for member in self.members:
            if member.up and member.isolated_until <= self.loop.now:
                member.later(0.0, 0.2, lambda member=member, row=self.row: member.adopt(row))

    def reachable(self, member: SimMember) -> bool:
        return member.up and max(member.loop.paused_until, member.isolated_until) <= self.loop.now

    def master(self) -> None:
        """One step of what is under way, or begin something."""
        try:
            if self.task is None:
                self.task = self.choose()
            next(self.task)
        except StopIteration:
            self.task = None
        self.loop.at(self.loop.now + self.random.uniform(0.01, 0.3), self.master)

    def choose(self) -> Any:
        self.publish()
        self.forget()
        lost = [m for m in self.row.replicas if m is not None and not self.reachable(self.members[m])]
        live = [m for m in self.row.replicas if m is not None and m not in lost]
        spare = [m.index for m in self.members if m.index not in self.row.replicas and self.reachable(m)]
        if lost and live and lost[0] == self.row.owner:
            return self.promote(live)
        if lost and live:
            return self.drop(lost[-1])
        if live and max(self.members[m].replica.tablet.promised for m in live) > self.row.version:
            return self.finish_fence()
        if spare and len(self.row.replicas) < 3:
            return self.migrate(spare[0], None)
        if spare and self.chaos and self.random.random() < 0.3:
            return self.migrate(self.random.choice(spare), self.random.randrange(len(self.row.replicas)))
        return iter(())

    def count(self, step: str) -> None:
        self.steps[step] = self.steps.get(step, 0) + 1

    def promote(self, live: list[int]) -> Any:
        """Fence all that live; the longest log gets the row."""
        term, owner = self.row.version + 2, self.row.owner
        assert owner is not None
        lasts: dict[int, tuple[int, int]] = {}
        while len(lasts) < len(live):
            for index in live:
                member = self.members[index]
                if not self.reachable(member):
                    return
                last = member.fence(term, dead=not self.members[owner].up)
                if last is not None:
                    lasts[index] = last
            yield
        chosen = max(live, key=lambda index: lasts[index])
        yield
        if not self.reachable(self.members[chosen]):
            return
        self.count("promoted")
        self.store((chosen, *(index for index in live if index != chosen)), by=2)

    def finish_fence(self) -> Any:
        """A promotion was begun and given up: only a row of at least that version is served again."""
        yield
        self.count("fence finished")
        self.store(self.row.replicas, by=2)

    def drop(self, lost: int) -> Any:
        yield
        self.count("dropped")
        self.store(tuple(index for index in self.row.replicas if index != lost), by=2)

    def migrate(self, destination: int, at: int | None) -> Any:
        """COPY (at None) or MOVE of an index: start, learn, copy when needed, hand over, accept, store."""
        self.ids += 1
        id, base, owner = str(self.ids), self.row, self.row.owner
        assert owner is not None
        o, d = self.members[owner], self.members[destination]
        try:
            yield from self.wait_for(o, d, lambda: o.replica.tablet.row == base == d.replica.tablet.row)
            d.receive()
            o.add_learner(id, destination)
            yield from self.learn(o, d)
            last = None
            while at == 0 and last is None:
                yield from self.wait_for(o, d, lambda: True)
                last = o.hand_over(id)
                yield
            yield from self.wait_for(o, d, lambda: d.replica.ready)
            assert last is None or d.replica.tablet.log.holds(last)
        except (SteleError, TimeoutError):
            self.count("aborted")
            yield from self.undo(o, d, id)
            return
        replicas = list(base.replicas)
        if at is None:
            replicas.append(destination)
        else:
            replicas[at] = destination
        self.count("copied" if at is None else "moved owner" if at == 0 else "moved backup")
        self.store(tuple(replicas), by=1)

    def wait_for(self, o: SimMember, d: SimMember, done: Any) -> Any:
        """Until done; TimeoutError when one of both cannot be reached or it takes too long."""
        end = self.loop.now + 10
        while True:
            if not self.reachable(o) or not self.reachable(d) or self.loop.now > end:
                raise TimeoutError
            if done():
                return
            yield

    def learn(self, o: SimMember, d: SimMember) -> Any:
        while True:
            yield from self.wait_for(o, d, lambda: o.replica.owner is not None)
            owner = o.replica.owner
            if owner is None or owner.learner is None or not o.up:
                raise TimeoutError
            if owner.learner.state is LearnerState.IN_SYNC:
                return
            if owner.learner.state is LearnerState.NEEDS_COPY:
                self.count("copies")
                d.ingest(o)
            yield

    def undo(self, o: SimMember, d: SimMember, id: str) -> Any:
        """Tell both sides; one that cannot be reached is told by `forget` later."""
        for member in (o, d):
            if self.reachable(member):
                member.adopt(self.row)
                member.abort(id)
        yield

    def forget(self) -> None:
        """No migration is under way: what a member still reports of one is aborted."""
        for member in self.members:
            owner = member.replica.owner if self.reachable(member) else None
            if owner is not None and (owner.learner is not None or owner.frozen):
                # Rows come first in an exchange: what was stored is never aborted.
                member.adopt(self.row)
                member.abort(owner.frozen or (owner.learner.id if owner.learner else ""))

    # -- clients

    def client(self, key: int) -> None:
        if not self.clients:
            return
        if not self.writing[key]:
            self.write(key)
        self.read(key)
        self.loop.at(self.loop.now + self.random.uniform(0.05, 1.0), lambda: self.client(key))

    def write(self, key: int) -> None:
        number = self.history.tried[key] + 1

        def give_up() -> None:
            """It may still come true: later numbers are written all the same."""
            if self.history.tried[key] == number:
                self.writing[key] = False

        def ended(reply: Any) -> None:
            give_up()
            if not isinstance(reply, SteleError):
                self.history.acknowledged += 1
                self.history.known[key] = max(self.history.known[key], number)

        for member in sorted(self.shuffled(), key=lambda m: -m.replica.tablet.row.version):
            args = [b"SET", b"key%d" % key, b"%d" % number]
            self.history.tried[key] = number
            self.writing[key] = True
            if member.call(args, SimFuture(ended)):
                self.loop.at(self.loop.now + PATIENCE_SECONDS, give_up)
                return
            self.writing[key] = False
            self.history.tried[key] = number - 1

    def read(self, key: int) -> None:
        least = self.history.known[key]

        def ended(reply: Any) -> None:
            if not isinstance(reply, SteleError):
                self.history.read(key, least, int(reply or 0))

        for member in self.shuffled():
            member.call([b"GET", b"key%d" % key], SimFuture(ended))

    def shuffled(self) -> list[SimMember]:
        return self.random.sample(self.members, len(self.members))

    # -- trouble

    def trouble(self) -> None:
        if not self.chaos:
            return
        member = self.random.choice(self.members)
        kind = self.random.random()
        if not member.up:
            self.restart(member)
        elif kind < 0.25 and sum(m.up for m in self.members) > 2:
            member.crash(power_lost=self.random.random() < 0.5)
            self.writing = [False] * KEYS
            self.count("crashed")
        elif kind < 0.5:
            member.loop.paused_until = self.loop.now + self.random.uniform(0.1, 4)
            self.count("paused")
        elif kind < 0.7:
            member.isolate(self.loop.now + self.random.uniform(0.5, 5))
            self.count("isolated")
        elif kind < 0.85:
            member.full_until = self.loop.now + self.random.uniform(0.1, 4)
            self.count("full")
        else:
            self.random.choice(list(member.links.values())).cut()
        self.loop.at(self.loop.now + self.random.uniform(0.1, 2.0), self.trouble)

    def restart(self, member: SimMember) -> None:
        member.start()
        self.count("restarted")

    def run(self) -> None:
        self.loop.at(0.5, self.master)
        self.loop.at(2.0, self.trouble)
        for key in range(KEYS):
            self.loop.at(1.0, lambda key=key: self.client(key))
        self.loop.run(CHAOS_SECONDS)
        self.chaos = False
        for member in self.members:
            member.full_until = 0.0
            if not member.up:
                self.restart(member)
        self.writing = [False] * KEYS
        self.loop.run(CHAOS_SECONDS + QUIET_SECONDS)

    def check_quiet(self) -> None:
        """With no more trouble the cluster serves, has three replicas, and they are equal."""
        owner = self.members[self.row.owner or 0]
        assert owner.replica.owner is not None
        assert owner.replica.owner.serving, (owner.replica.owner.phase, self.row)
        assert len(self.row.replicas) == 3
        before = self.history.acknowledged
        self.loop.run(self.loop.now + 5)
        assert self.history.acknowledged > before
        self.check_equal()

    def check_equal(self) -> None:
        """Without clients all replicas come to the same operation, with the same data."""
        self.clients = False
        self.loop.run(self.loop.now + 5)
        replicas = [self.members[index] for index in self.row.replicas if index is not None]
        contents = [sorted((keys.split_user(k), v) for k, v in member.entries()) for member in replicas]
        assert all(content == contents[0] for content in contents)
        assert len({member.replica.tablet.log.applied for member in replicas}) == 1
        for member in replicas:
            counted = sum(count for count, _ in member.replica.keyspaces.values())
            assert counted == len(contents[0])


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are trimmed early, so that learners need copies."""
    shrink(monkeypatch.setattr)


def shrink(setattr: Any) -> None:
    setattr(stele.core.tablet.log, "SEGMENT_BYTES", 200)
    setattr(stele.core.tablet.owner, "FILL_BYTES_MAX", 300)
    setattr(stele.member.limits, "LOG_RETAINED_BYTES", 500)


def run(seed: int) -> Sim:
    sim = Sim(seed)
    sim.run()
    sim.check_quiet()
    assert sim.history.acknowledged > 50
    return sim


@pytest.mark.parametrize("seeds", [range(n, n + 10) for n in range(0, 60, 10)], ids=str)
def test_nothing_acknowledged_is_lost_and_nothing_old_is_read(seeds: range) -> None:
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_same_seed_is_the_same_history() -> None:
    assert run(7).steps == run(7).steps


def fails(seeds: Iterable[int]) -> bool:
    """Whether some seed finds something wrong; the first is one that did when this was written."""
    for seed in seeds:
        try:
            run(seed)
        except (AssertionError, Corrupt):
            return True
    return False


def test_the_checker_sees_writes_that_are_acknowledged_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(owner: Owner) -> bool:
        return owner.appending and owner.tablet.log.commit(owner.synced)

    monkeypatch.setattr(Owner, "advance", careless)
    assert fails([94, *range(150)])


def test_the_checker_sees_reads_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseHolder, "may_read", lambda *_: True)
    assert fails([77, *range(200)])


def test_the_checker_sees_a_fence_that_waits_for_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseGrantor, "wait_seconds", lambda *_: 0.0)
    assert fails([3, *range(80)])


def test_the_checker_sees_answers_that_did_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimSyncer, "after_write", lambda self, then: then())
    assert fails([26, *range(60)])
