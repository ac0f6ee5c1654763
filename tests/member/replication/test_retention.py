"""What is kept, for whom and how much of it: logs, windows and queues have limits, and what happens there."""

import asyncio
from collections import deque
from typing import Any, cast

import pytest

from stele.core.control import commands as m
from stele.core.control.member_settings import MemberSettings
from stele.core.kv.dedup import ONCE
from stele.core.kv.keyspaces import NO_CATALOG
from stele.core.table.groups import NO_GROUPS
from stele.core.table.table import Partition
from stele.core.tablet.log import Log, over_limit
from stele.core.tablet.owner import LearnerState
from stele.errors import Unavailable, Uncertain
from stele.member import limits
from stele.member.replication.counters import Counters
from stele.member.replication.keyspaces import Keyspaces
from stele.member.replication.links import Link
from stele.member.replication.renewal import Hold
from stele.member.replication.request import Request
from stele.member.replication.routes import Routes
from stele.member.replication.write_rate import REPORTED_STEP, WriteRate
from stele.member.serving.router import RequestRouter
from stele.member.turn_budget import TurnBudget
from tests.member.harness.single_member import P, SingleMember, key_here
from tests.simulation.quiet_cluster import QuietCluster, small_logs

# -- logs


def test_what_a_crash_could_take_from_the_data_stays_in_the_log(quiet: QuietCluster) -> None:
    owner = quiet.members[0]
    owner.flush()
    flushed = owner.replica.flushed
    owner.write(60)
    owner.node.tablets.trim(owner.replica, owner.replica.trim_limit, limits.LOG_RETAINED_BYTES)
    assert owner.log.first <= flushed + 1
    owner.crash(power_lost=True)
    owner.start()
    quiet.run(5.0)
    assert owner.ask(b"GET", b"k") == b"59"
    owner.flush()
    assert owner.log.first > flushed + 1


def test_logs_of_many_tablets_keep_less_each(quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_RETAINED_BYTES", 1 << 20)
    owner = quiet.members[0]
    owner.write(60)
    owner.flush()
    kept = owner.log.first
    monkeypatch.setattr(limits, "LOG_RETAINED_BYTES_ALL", 500)
    owner.write(1)
    owner.flush()
    assert kept < owner.log.first < owner.log.last[1]


def test_a_destination_that_is_too_far_behind_needs_a_copy_and_the_log_goes(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_SPACE_BYTES", 4000)
    owner, destination = quiet.members[0], quiet.members[3]
    destination.isolate()
    quiet.begin_migration("n", 3)
    began = owner.log.applied[1]
    owner.write(10)
    owner.flush()
    quiet.run(2.0)
    assert owner.learner.pinned
    assert owner.log.first <= began + 1
    owner.write(100)
    owner.flush()
    quiet.run(2.0)
    assert not owner.learner.pinned
    owner.flush()
    assert owner.log.first > began + 1
    assert owner.log.bytes < 2000
    destination.rejoin()
    quiet.run(5.0)
    assert owner.learner.state is LearnerState.NEEDS_COPY
    quiet.copy(quiet.open_session("s", 3), 3)
    quiet.run(3.0)
    assert owner.learner.state is LearnerState.IN_SYNC
    assert owner.learner.pinned


def test_a_copy_of_all_that_was_there_when_it_began_is_not_made_twice(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written between the learner's start and its snapshot, much after it: values are large, so
    each is a segment of the log."""
    monkeypatch.setattr("stele.core.tablet.log.SEGMENT_BYTES", 1)
    owner = quiet.members[0]
    owner.write(20)
    owner.flush()
    quiet.begin_migration("n", 3)
    fetch = quiet.open_session("s", 3)
    owner.write(100)
    owner.flush()
    quiet.copy(fetch, 3)
    quiet.run(3.0)
    assert owner.learner.state is LearnerState.IN_SYNC


def test_a_destination_that_writes_wait_for_keeps_the_log(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_SPACE_BYTES", 0)
    owner, destination = quiet.members[0], quiet.members[3]
    quiet.begin_migration("m", 3)
    quiet.run(2.0)
    quiet.copy(quiet.open_session("s", 3), 3)
    quiet.run(2.0)
    assert owner.learner.waited
    destination.isolate()
    match = owner.learner.pin
    for n in range(60):
        owner.send(b"SET", b"k", b"%d" % n)
    quiet.run(3.0)
    owner.flush()
    assert owner.log.committed == match
    assert owner.learner.pinned
    assert owner.log.first <= match + 1


def test_the_largest_go_first_and_no_more_than_needed() -> None:
    assert over_limit({}, 10, 10) == []
    assert over_limit({1: 5, 2: 5}, 5, 10) == []
    assert over_limit({1: 5, 2: 6, 3: 1}, 5, 100) == [2]
    assert over_limit({1: 5, 2: 4, 3: 1}, 100, 9) == [1]
    assert over_limit({1: 5, 2: 4, 3: 1}, 100, 1) == [1, 2]
    assert over_limit({1: 5, 2: 4, 3: 1}, 100, 0) == [1, 2, 3]


def test_bytes_are_counted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stele.core.tablet.log.SEGMENT_BYTES", 10)
    log = Log()
    for _ in range(6):
        log.append(1, 1, 10)
    assert [log.bytes_between(*ends) for ends in ((0, 6), (2, 5), (5, 5), (6, 9))] == [60, 30, 0, 0]


async def test_a_copy_session_keeps_the_log_until_the_disk_is_scarce(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_logs(monkeypatch)
    made.node.peers.connect = lambda: None  # type: ignore[method-assign]
    await made.receive("c")
    await made.store((0,), by=1)
    await made.until_quiet()
    opened = await made.command(m.OpenSession("o", (P,), 60.0))
    assert opened.session is not None
    floor = opened.session.tablets[0].applied.index
    key = key_here()
    for n in range(80):
        await made.node.router.execute(P, b"default", [[b"SET", key, b"%d" % n]])
    await made.node.flusher.flush()
    log = made.replica.tablet.log
    assert log.first <= floor + 1
    made.node.ticker.every_second(0.0)
    await made.node.flusher.flush()
    assert log.first <= floor + 1
    made.node.volume.free_bytes = lambda: limits.NO_SPACE_BYTES + 1  # type: ignore[method-assign]
    made.node.ticker.every_second(0.0)
    await made.node.flusher.flush()
    assert log.first > floor + 1


async def test_the_master_says_how_much_log_is_kept_for_copies(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_logs(monkeypatch)
    made.node.peers.connect = lambda: None  # type: ignore[method-assign]
    await made.receive("c")
    await made.store((0,), by=1)
    await made.until_quiet()
    opened = await made.command(m.OpenSession("o", (P,), 60.0))
    assert opened.session is not None
    for n in range(80):
        await made.node.router.execute(P, b"default", [[b"SET", key_here(), b"%d" % n]])
    await made.node.flusher.flush()
    made.node.ticker.every_second(0.0)
    kept = made.node.sessions.log_bytes
    assert kept > 0
    made.node.live_settings.adopt(MemberSettings(log_space_bytes=2 * kept))
    made.node.live_settings.adopt(None)
    made.node.ticker.every_second(0.0)
    assert made.node.sessions.pin(P) < 2**62
    made.node.live_settings.adopt(MemberSettings(log_space_bytes=2 * kept - 2))
    made.node.ticker.every_second(0.0)
    assert (made.node.sessions.log_bytes, made.node.sessions.pin(P)) == (0, 2**62)


def test_a_write_rate_is_an_average_that_ends_at_nothing() -> None:
    rate = WriteRate(0, 0.0)
    for second in range(1, 31):
        rate.measure(second * 1000, float(second))
    assert rate.bytes_per_second == pytest.approx(1000, rel=0.01)
    rate.measure(0, 31.0)
    assert rate.bytes_per_second == pytest.approx(800, rel=0.01)
    for second in range(32, 90):
        rate.measure(0, float(second))
    assert int(rate.bytes_per_second) == 0


def test_a_write_rate_is_reported_in_steps() -> None:
    rate = WriteRate(0, 0.0)
    reported, size = list[int](), 0
    for second in range(1, 61):
        size += 3 * REPORTED_STEP
        if rate.measure(size, float(second)):
            reported.append(rate.reported)
    assert reported == [REPORTED_STEP, 2 * REPORTED_STEP, 3 * REPORTED_STEP]
    while not rate.over:
        rate.measure(size, rate.measured_at + 1.0)
    assert rate.reported == 0


def test_a_log_that_grows_slowly_is_measured_as_long_as_it_does() -> None:
    rate, size = WriteRate(0, 0.0), 0
    for second in range(1, 31):
        size += REPORTED_STEP * 3 // 4
        rate.measure(size, float(second))
        assert not rate.over
    assert rate.reported == REPORTED_STEP


# -- windows and queues


def test_a_full_window_lets_operations_wait_in_the_log(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PEER_WINDOW_MESSAGES", 3)
    owner, slow, backup = quiet.members[:3]
    quiet.network.cut(slow.place, owner.place)
    replies = []
    for n in range(50):
        replies.append(owner.send(b"SET", b"k", b"%d" % n))
        quiet.run(0.01)
    link = owner.node.links[1]
    assert (len(link.in_flight), link.behind) == (3, {P: None})
    assert slow.log.last < backup.log.last == owner.log.last
    assert not any(reply.done() for reply in replies)
    quiet.network.heal(slow.place, owner.place)
    quiet.run(3.0)
    assert all(reply.done() for reply in replies)
    assert slow.log.last == owner.log.last


@pytest.mark.parametrize("limit", ["PEER_WINDOW_BYTES", "PEER_WINDOW_MESSAGES"])
def test_a_window_is_full_at_its_bytes_and_at_its_messages(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, 3)

    class Room:
        full = False

        def send(self, message: object, *, now: bool = False) -> None:
            pass

    link = object.__new__(Link)
    link.ready, link._hold, link._connection = True, Hold.NOTHING, cast("Any", Room())
    link.in_flight, link.in_flight_bytes, link._heartbeats = deque(), 0, 0
    for _ in range(3):
        assert link.has_room
        link.send_append([], 1)
    assert not link.has_room
    link.acknowledged()
    assert link.has_room
    Room.full = True
    assert not link.has_room


class Stub:
    """What a store needs of the member: one partition of this member, that serves when it is told to."""

    me = 0
    rows = (Partition(1, (0, 1)),)
    keyspaces = Keyspaces()
    routes = Routes(NO_GROUPS, 1, NO_CATALOG)
    read = available_since = None
    clearing = 0
    locks = None
    unlocked = False

    def __init__(self) -> None:
        self.has_room = False
        self.row_of = self.rows.__getitem__
        self.ran: list[Request] = []
        self.counters = Counters()
        self.links: dict[int, Any] = {}
        self.replicas = {0: cast("Any", self)}
        self.owner = cast("Any", self)
        self.serving = True
        self.loads: dict[int, Any] = {}
        self.turn_budget = TurnBudget(asyncio.get_running_loop().call_soon)
        member = cast("Any", self)
        self.table = member
        self.store = RequestRouter(member, self.links, *[member] * 7)

    def answer(self, *_: object) -> None:
        """Neither applied data nor a near cache answers."""

    def run(self, replica: object, request: Request) -> None:
        self.ran.append(request)
        request.done(["ran"])

    def uncertain(self, request: Request) -> None:
        request.failed(Uncertain("?"))


async def asked(store: RequestRouter, *args: bytes) -> "asyncio.Task[Any]":
    task = asyncio.ensure_future(store.execute(0, b"default", [list(args)]))
    await asyncio.sleep(0)
    return task


@pytest.mark.plain
async def test_requests_wait_while_too_much_is_uncommitted_and_then_run_in_order() -> None:
    made = Stub()
    tasks = [await asked(made.store, b"SET", b"k", b"%d" % n) for n in range(5)]
    assert made.ran == []
    made.has_room = True
    made.store.drain(0)
    assert [await task for task in tasks] == [["ran"]] * 5
    assert [request.commands[0][2] for request in made.ran] == [b"0", b"1", b"2", b"3", b"4"]
    assert (made.store._waiting.requests, made.store._waiting.bytes) == (0, 0)


WAITING_BYTES = 1285
"""What `SET k v` takes while it waits, as it is counted."""


@pytest.mark.plain
@pytest.mark.parametrize(
    ("limit", "value"), [("QUEUE_REQUESTS_MAX", 3), ("QUEUE_BYTES_MAX", 3 * WAITING_BYTES)]
)
async def test_a_full_queue_answers_at_once_that_nothing_was_done(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, value)
    made = Stub()
    waiting = [await asked(made.store, b"SET", b"k", b"v") for _ in range(3)]
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable, match=f"3 requests of {3 * WAITING_BYTES} bytes wait here"):
            await (await asked(made.store, b"SET", b"k", b"v"))
    made.store.expire(1e12)
    for task in waiting:
        with pytest.raises(Unavailable, match="nothing was done"):
            await task
    assert (made.store._waiting.requests, made.store._waiting.bytes) == (0, 0)
    await asked(made.store, b"SET", b"k", b"v")
    made.has_room = True
    made.store.drain(0)


@pytest.mark.plain
async def test_what_may_be_repeated_goes_again_and_is_not_said_to_be_undone() -> None:
    made = Stub()
    once = await asked(made.store, ONCE, b"c", b"1", b"INCR", b"k")
    plain = await asked(made.store, b"INCR", b"k")
    read = await asked(made.store, b"GET", b"k")
    requests = list(made.store._waiting.take_all())
    made.store.lost(requests)
    with pytest.raises(Uncertain):
        await plain
    assert [request.commands[0][0] for request in made.store._waiting.queues[0]] == [ONCE, b"GET"]
    made.store.expire(1e12)
    with pytest.raises(Uncertain):
        await once
    with pytest.raises(Unavailable):
        await read


def test_there_is_no_room_above_the_bytes_that_are_not_committed(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes then waits in the queue, and runs when there is room."""
    monkeypatch.setattr(limits, "PENDING_BYTES_MAX", 500)
    owner = quiet.members[0]
    quiet.members[1].isolate()
    replies = [owner.send(b"SET", b"k", bytes(100)) for _ in range(50)]
    answers = owner.node.delayed_replies
    assert 0 < len(owner.replica.waiters) < 10
    quiet.run(2.0)
    assert (any(reply.done() for reply in replies), answers.has_room) == (False, False)
    quiet.members[1].rejoin()
    quiet.run(10.0)
    assert all(reply.done() for reply in replies)
    assert (answers.has_room, answers.pending_bytes) == (True, 0)
