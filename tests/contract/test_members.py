"""One suite for `ports.control_loop.Members`: an exchange with a member, and what the member makes of it.

Three ways: HTTP to a real member, the simulated network to a member of the simulation (both run the product's
exchange), and the member in memory that tests of the master use, which is a fake of all of it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from stele.adapters.members import room
from stele.adapters.members.client import MemberClient
from stele.adapters.members.room import Room
from stele.core.control import commands as m
from stele.core.formats import FIRST
from stele.core.table import digests
from stele.core.table.table import stamp_of
from stele.errors import Corrupt, Unavailable
from stele.member.admin.http import Admin
from stele.member.settings import Settings
from stele.wire import control
from tests.fakes.bridge import Bridged, pass_time
from tests.fakes.disk import Disk
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.members import FakeMember, FakeNet
from tests.fakes.network import Network
from tests.fakes.transfer import NoTransfer
from tests.member.harness.single_member import CLUSTER, SingleMember
from tests.simulation.master import Listeners, SimMembers
from tests.simulation.member import MemberProcess

PARTITIONS = 4
ME, OTHER, THIRD = 0, 1, 2
ROWS = tuple(m.Row(p, 1, (ME,) if p < 2 else (OTHER, THIRD)) for p in range(PARTITIONS))
"""Two are this member's own and empty, two are others'."""
DEADLINE_SECONDS = 20.0


@dataclass
class Case:
    """A member that is started and knows nothing, and how it is reached."""

    members: Any
    address: str
    nobody: str
    uuid: str
    announce: Callable[[], bool]
    """A planned stop; whether it has to wait."""

    def request(self, *commands: m.Command, **changes: Any) -> m.ExchangeRequest:
        made = m.ExchangeRequest(
            format=FIRST,
            cluster=CLUSTER,
            epoch=1,
            recipient=self.uuid,
            self_index=ME,
            partitions=PARTITIONS,
            replicas=2,
            member_list_version=1,
            members=(
                m.MemberInfo(ME, "m0", self.uuid, self.address),
                m.MemberInfo(OTHER, "m1", "uuid-1", self.nobody),
                m.MemberInfo(THIRD, "m2", "uuid-2", self.nobody),
            ),
            commands=commands,
        )
        return msgspec.structs.replace(made, **changes)

    async def ask(self, *commands: m.Command, **changes: Any) -> m.ExchangeReply:
        """Ask, again while it adopts, as a master does."""
        request = self.request(*commands, **changes)
        while True:
            reply: m.ExchangeReply = await self.members.exchange(self.address, request, DEADLINE_SECONDS)
            if not reply.adopting:
                return reply

    async def publish(self, *rows: m.Row) -> m.ExchangeReply:
        return await self.ask(rows=rows or ROWS)

    async def code(self, command: m.Command) -> str:
        """Of its result, once it is not WAIT any more."""
        for _ in range(100):
            (result,) = (await self.ask(command)).results
            if result.code != "WAIT":
                return result.code
            await asyncio.sleep(0.01)
        return "WAIT"


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[int]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Fresh(SingleMember):
    """One to which no table was published yet."""

    async def publish(self) -> Any:
        return None


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[Case]:
    async with AsyncExitStack() as stack:
        member = Fresh(folder)
        await member.start()
        stack.push_async_callback(member.stop)
        admin = Admin(member.node)
        port = await stack.enter_async_context(serving(admin.application()))
        client = await stack.enter_async_context(MemberClient(port=port))
        stop = member.node.planned_stop
        yield Case(client, "127.0.0.1", "127.0.0.9", "uuid-0", lambda: stop.announce(60).waiting)


@asynccontextmanager
async def simulated(folder: Path) -> AsyncIterator[Case]:
    clock = Clock(1)
    network = Network(clock)
    network.addresses = {"10.0.0.1": "m0"}
    machine = SimpleNamespace(process=None, place="m0")
    kubelet: Any = SimpleNamespace(clock=clock, network=network, at_address={"10.0.0.1": machine}.get)
    settings = Settings(Path("m0"), CLUSTER, "m0", retention_seconds=0)
    process = MemberProcess(
        settings,
        Disk(folder, clock),
        ProcessLoop(clock, "m0", network),
        lambda _: NoTransfer(),
        lambda *_: None,
    )
    machine.process = process
    pass_time(clock, 1.0)
    loop = ProcessLoop(clock, "master-0", network)
    listeners = Listeners(lambda *_: None, lambda *_: None)
    assert process.node is not None
    members, stop = Bridged(SimMembers(loop, kubelet, listeners), loop), process.node.planned_stop
    yield Case(members, "10.0.0.1", "10.0.0.9", process.node.uuid, lambda: stop.announce(60).waiting)
    process.loop.kill()


def in_memory() -> Case:
    net = FakeNet()
    member = net.members["10.0.0.1"] = FakeMember(net, "10.0.0.1", "uuid-0", CLUSTER)
    return Case(net, "10.0.0.1", "10.0.0.9", "uuid-0", member.announce)


@contextmanager
def quiet() -> Iterator[None]:
    """Members log nothing meanwhile; what other tests look for is logged again afterwards."""
    log = logging.getLogger("stele")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@pytest.fixture(params=["memory", "simulated", "real"])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    if request.param == "memory":
        yield in_memory()
        return
    with quiet():
        async with (simulated if request.param == "simulated" else real)(tmp_path / "volume") as made:
            yield made


# -- who is asked, and by whom


async def test_on_first_contact_a_member_tells_who_it_is_and_takes_nothing(case: Case) -> None:
    command = m.CreateTablet(0, 0)
    reply = await case.ask(command, recipient="", rows=ROWS, epoch=7)
    assert (reply.code, reply.uuid, reply.cluster) == ("OK", case.uuid, CLUSTER)
    assert (reply.results, reply.epoch, reply.incarnation) == ((), 0, 1)
    assert reply.tablets == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"recipient": "another"}, "WRONG_MEMBER"),
        ({"cluster": "another"}, "WRONG_CLUSTER"),
        ({"recipient": "", "cluster": "another"}, "WRONG_CLUSTER"),
        ({"epoch": 1}, "STALE_EPOCH"),
        ({"epoch": 1, "recipient": ""}, "STALE_EPOCH"),
    ],
)
async def test_who_is_not_meant_takes_nothing(case: Case, changes: dict[str, Any], code: str) -> None:
    await case.ask(epoch=2, rows=ROWS)
    newer = m.Row(0, 9, (OTHER,))
    reply = await case.ask(m.DeleteTablet(0, 1), **{"epoch": 3, "rows": (newer,)} | changes)
    assert (reply.code, reply.results, reply.epoch) == (code, (), 2)
    assert reply.stamp == stamp_of([1] * PARTITIONS)
    assert reply.uuid == case.uuid


async def test_nobody_there_is_unavailable(case: Case) -> None:
    with pytest.raises(Unavailable):
        await case.members.exchange(case.nobody, case.request(), DEADLINE_SECONDS)


# -- what was published


async def test_rows_are_told_back_by_their_stamp_and_in_full_when_asked(case: Case) -> None:
    reply = await case.publish()
    assert (reply.code, reply.epoch, reply.member_list_version) == ("OK", 1, 1)
    assert reply.stamp == stamp_of([1] * PARTITIONS)
    assert reply.rows == ()
    assert set((await case.ask(want_tablets=True)).rows) == set(ROWS)


async def test_of_rows_with_known_digests_only_ranges_that_differ_are_told(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "RANGE_ROWS", 2)
    await case.publish()
    same = await case.ask(want_tablets=True, row_digests=digests.row_digests(ROWS))
    assert (same.differing, same.rows, same.members) == ((), (), ())
    others = (ROWS[0], m.Row(1, 1, (OTHER,)), *ROWS[2:])
    reply = await case.ask(want_tablets=True, row_digests=digests.row_digests(others))
    assert (reply.differing, set(reply.rows)) == ((0,), set(ROWS[:2]))
    assert (await case.ask(row_digests=digests.row_digests(others))).differing is None


async def test_a_member_without_rows_differs_in_each_range(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "RANGE_ROWS", 2)
    reply = await case.ask(want_tablets=True, row_digests=digests.row_digests(ROWS))
    assert (reply.differing, reply.rows) == ((0, 1), ())


async def test_a_member_tells_its_table_without_adopting_anything(case: Case) -> None:
    """As a recovery asks: it does not know yet who the members are."""
    await case.publish()
    before = await case.ask(want_tablets=True)
    reply = await case.ask(recipient="", epoch=7, partitions=0, members=(), want_tablets=True)
    assert set(reply.rows) == set(ROWS)
    assert {each.index for each in reply.members} == {each.index for each in before.members} != set()
    assert (await case.ask()).epoch == before.epoch


async def test_an_older_row_changes_nothing(case: Case) -> None:
    await case.publish(*ROWS[1:], m.Row(0, 5, (ME, OTHER)))
    reply = await case.publish(*ROWS)
    assert reply.stamp == stamp_of([5, 1, 1, 1])


async def test_a_member_makes_the_tablets_of_a_first_row_that_names_it(case: Case) -> None:
    reply = await case.publish()
    assert {each.partition: (each.state, each.generation) for each in reply.tablets} == {
        0: ("READY", 1),
        1: ("READY", 1),
    }


async def test_only_what_changed_since_a_report_is_told(case: Case) -> None:
    first = await case.publish()
    assert first.base == 0
    again = await case.ask(known=first.number)
    assert (again.base, again.tablets) == (first.number, ())
    await case.publish(m.Row(0, 2, (OTHER, THIRD)))
    assert await case.code(m.DeleteTablet(0, 2)) == "OK"
    changed = await case.ask(known=again.number)
    assert [(each.partition, each.state) for each in changed.tablets] == [(0, "DELETED")]
    assert len((await case.ask(known=0)).tablets) == 2


# -- commands: one result each, and what is refused changes nothing

REFUSED: dict[str, tuple[m.Command, str]] = {
    "a copy of a row that is over": (m.StartTabletCopy("m1", 2, 7, OTHER), "STALE_VERSION"),
    "a copy of what is there by its row": (m.StartTabletCopy("m1", 0, 1, ME), "ILLEGAL_STATE"),
    "a learner of another's partition": (m.AddLearner("m1", 2, 1, ME), "NOT_OWNER"),
    "a learner that is not known": (m.AddLearner("m1", 0, 1, 9), "UNKNOWN_MEMBER"),
    "a learner of a row that is over": (m.AddLearner("m1", 0, 7, OTHER), "STALE_VERSION"),
    "a hand-over without a learner": (m.HandOver("m1", 0), "ILLEGAL_STATE"),
    "a hand-over of another's partition": (m.HandOver("m1", 2), "NOT_OWNER"),
    "a swap of another's partition": (m.HandOver("m1", 2, 1, THIRD), "NOT_OWNER"),
    "a swap of a row that is over": (m.HandOver("m1", 0, 7, OTHER), "STALE_VERSION"),
    "a swap with a member outside of the row": (m.HandOver("m1", 0, 1, OTHER), "ILLEGAL_STATE"),
    "a row of a tablet that is not there": (m.Accept("m1", m.Row(2, 2, (ME,))), "ILLEGAL_STATE"),
    "the end of a tablet that the row names": (m.DeleteTablet(0, 1), "ILLEGAL_STATE"),
    "the end of a tablet by a row that was not heard of": (m.DeleteTablet(2, 7), "STALE_VERSION"),
    "an empty tablet for another row": (m.CreateTablet(2, 7), "STALE_VERSION"),
    "files of a session that is not here": (m.Ingest("none", (0,)), "OK"),
    "the lock of another table": (m.LockState("l1", "Frozen", 99, 1), "STALE_VERSION"),
    "the lock of another list of members": (
        m.LockState("l1", "Frozen", stamp_of([1] * PARTITIONS), 2),
        "STALE_VERSION",
    ),
    "the renewal of a session that is not open": (m.OpenSession("s", (0,), renew=True), "SESSION_LOST"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_refused_is_refused_with_its_reason(case: Case, what: str) -> None:
    before = await case.publish()
    command, code = REFUSED[what]
    assert await case.code(command) == code
    assert await case.code(command) == code
    after = await case.ask()
    assert (after.stamp, after.tablets, after.accepted) == (before.stamp, before.tablets, ())
    assert (after.learners, after.copies) == ((), ())


HARMLESS: dict[str, m.Command] = {
    "an abort of what is not known": m.Abort("m9", 0),
    "the end of a session that is not known": m.CloseSession("s9"),
    "an unlock of what is not locked": m.UnlockState("l9"),
    "the end of a tablet that is not there": m.DeleteTablet(2, 1),
    "a fence of a tablet that is not there": m.Fence(2, 2, True),
}


@pytest.mark.parametrize("what", HARMLESS)
async def test_what_is_done_already_is_done(case: Case, what: str) -> None:
    await case.publish()
    for _ in range(2):
        assert await case.code(HARMLESS[what]) == "OK"


async def test_each_command_has_its_result_in_order(case: Case) -> None:
    await case.publish()
    reply = await case.ask(m.DeleteTablet(2, 7), m.Abort("m1", 0), m.HandOver("m1", 2))
    assert [each.code for each in reply.results] == ["STALE_VERSION", "OK", "NOT_OWNER"]


async def test_a_copy_begins_once_and_ends_with_its_abort(case: Case) -> None:
    await case.publish()
    command = m.StartTabletCopy("m1", 2, 1, OTHER)
    first, again = (await case.ask(command)).results[0], (await case.ask(command)).results[0]
    assert (first.code, first.generation, again.code, again.generation) == ("OK", 1, "OK", 1)
    assert await case.code(m.StartTabletCopy("m2", 2, 1, OTHER)) == "ALREADY_IN_PROGRESS"
    assert await case.code(m.DeleteTablet(2, 1)) == "MIGRATION_ACTIVE"
    assert await case.code(m.Ingest("none", (2,))) == "NOT_FOUND"
    (copy,) = (await case.ask()).copies
    assert (copy.id, copy.partition, copy.base, copy.generation) == ("m1", 2, 1, 1)
    assert await case.code(m.Abort("m1", 2)) == "OK"
    reply = await case.ask()
    assert reply.copies == ()
    assert {each.partition: each.state for each in reply.tablets}[2] == "DELETED"
    assert (await case.ask(m.StartTabletCopy("m3", 2, 1, OTHER))).results[0].generation == 2


async def test_a_learner_begins_once_and_ends_with_its_abort(case: Case) -> None:
    await case.publish()
    for _ in range(2):
        assert await case.code(m.AddLearner("m1", 0, 1, OTHER)) == "OK"
    assert await case.code(m.AddLearner("m2", 0, 1, THIRD)) == "MIGRATION_ACTIVE"
    (learner,) = (await case.ask()).learners
    assert (learner.id, learner.partition, learner.destination, learner.state) == ("m1", 0, OTHER, "PROBING")
    assert await case.code(m.HandOver("m1", 0)) == "ILLEGAL_STATE"
    assert await case.code(m.Abort("m1", 0)) == "OK"
    assert (await case.ask()).learners == ()


async def test_a_backup_that_does_not_answer_gets_no_swap(case: Case) -> None:
    await case.publish(m.Row(0, 2, (ME, OTHER)), *ROWS[1:])
    assert await case.code(m.HandOver("m1", 0, 2, OTHER)) == "BACKUP_BEHIND"
    assert (await case.ask()).learners == ()


async def test_an_accepted_row_is_told_until_it_is_published(case: Case) -> None:
    await case.publish(*ROWS[:2], m.Row(2, 1, (OTHER, ME)), ROWS[3])
    row = m.Row(2, 2, (ME, OTHER))
    for _ in range(2):
        assert await case.code(m.Accept("p1", row)) == "OK"
    assert (await case.ask()).accepted == (row,)
    assert await case.code(m.Accept("p2", m.Row(2, 1, (ME,)))) == "STALE_VERSION"
    assert (await case.publish(row)).accepted == ()
    assert await case.code(m.Accept("p1", row)) == "OK"


async def test_a_fence_stays_and_only_grows(case: Case) -> None:
    await case.publish(*ROWS[:2], m.Row(2, 1, (OTHER, ME)), ROWS[3])
    assert await case.code(m.Fence(2, 5, True)) == "OK"
    assert await case.code(m.Fence(2, 5, True)) == "OK"
    assert await case.code(m.Fence(2, 4, True)) == "STALE_TERM"
    (tablet,) = [each for each in (await case.ask()).tablets if each.partition == 2]
    assert tablet.promised == 5
    assert await case.code(m.StartTabletCopy("m1", 3, 1, OTHER)) == "OK"


async def test_a_planned_stop_is_reported_until_the_master_has_nothing_more_to_move(case: Case) -> None:
    assert not (await case.publish()).stopping
    assert not (await case.ask(may_stop=True)).stopping
    assert case.announce()
    assert (await case.ask()).stopping
    assert case.announce()
    await case.ask(may_stop=True)
    assert not case.announce()
    assert (await case.ask()).stopping
    assert case.announce()


async def test_a_lock_lets_nothing_new_begin_until_it_is_opened(case: Case) -> None:
    await case.publish()
    lock = m.LockState("l1", "Frozen", stamp_of([1] * PARTITIONS), 1)
    for _ in range(2):
        assert await case.code(lock) == "OK"
    copy = m.StartTabletCopy("m1", 2, 1, OTHER)
    assert await case.code(copy) == "STATE_LOCKED"
    assert await case.code(m.UnlockState("l0")) == "OK"
    assert await case.code(copy) == "STATE_LOCKED"
    assert await case.code(m.UnlockState("l1")) == "OK"
    assert await case.code(copy) == "OK"
    assert await case.code(lock) == "MIGRATION_ACTIVE"


async def test_a_new_master_finds_no_lock_of_the_one_before(case: Case) -> None:
    await case.publish()
    assert await case.code(m.LockState("l1", "Frozen", stamp_of([1] * PARTITIONS), 1)) == "OK"
    (result,) = (await case.ask(m.StartTabletCopy("m1", 2, 1, OTHER), epoch=2)).results
    assert result.code == "OK"


# -- what the way makes of answers


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[MemberClient]:
    app = web.Application()
    app.router.add_post("/v1/exchange", handler)
    async with serving(app) as port, MemberClient(port=port) as client:
        yield client


def reply() -> dict[str, Any]:
    made = m.ExchangeReply("OK", "", "uuid-0", CLUSTER, 1, 1, 0, 1)
    return cast(dict[str, Any], msgspec.to_builtins(made))


REQUEST = m.ExchangeRequest(format=1, cluster=CLUSTER, epoch=1, recipient="")


async def test_fields_of_a_newer_member_are_ignored() -> None:
    async def newer(request: web.Request) -> web.Response:
        return web.json_response(reply() | {"invented": {"later": 1}})

    async with answering(newer) as client:
        assert (await client.exchange("127.0.0.1", REQUEST, 2.0)).uuid == "uuid-0"


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, "hello"), (200, "{}"), (200, '{"code": 7}'), (500, "defect"), (400, "exchange: wrong"), (200, "")],
)
async def test_what_is_no_reply_is_corrupt(status: int, body: str) -> None:
    async def wrong(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with answering(wrong) as client:
        with pytest.raises(Corrupt, match=str(status)):
            await client.exchange("127.0.0.1", REQUEST, 2.0)


async def test_an_answer_that_comes_in_parts_is_read_to_its_end() -> None:
    """That of a member with thousands of tablets does not fit into what a socket gives at once."""
    rows = [[number, 1, [0, 1, 2]] for number in range(50_000)]
    body = msgspec.json.encode(reply() | {"rows": rows})

    async def in_parts(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for begin in range(0, len(body), 1 << 18):
            await response.write(body[begin : begin + (1 << 18)])
            await asyncio.sleep(0.01)
        return response

    async with answering(in_parts) as client:
        assert len((await client.exchange("127.0.0.1", REQUEST, 5.0)).rows) == len(rows)


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("recipient", ["", "uuid-0"])
async def test_an_answer_that_is_too_large_is_refused_with_the_limit(
    monkeypatch: pytest.MonkeyPatch, recipient: str, beyond: int
) -> None:
    """A member of the table may answer what its partitions take, another one as much as any table."""
    request = msgspec.structs.replace(REQUEST, recipient=recipient, partitions=271)
    monkeypatch.setattr(control, "REPLY_BYTES", 1_000)
    monkeypatch.setattr(control, "EXCHANGE_BYTES_MAX", 200_000)
    most = 1_000 + 256 * 271 if recipient else 200_000
    body = msgspec.json.encode(reply()).ljust(most + beyond)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async with answering(answer) as client:
        if not beyond:
            assert (await client.exchange("127.0.0.1", request, 2.0)).uuid == "uuid-0"
        else:
            with pytest.raises(Corrupt, match=f"more than {most} bytes"):
                await client.exchange("127.0.0.1", request, 2.0)


async def test_members_of_one_cluster_do_not_keep_the_operator_from_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is being read has a limit: for each cluster a share of it."""
    monkeypatch.setattr(room, "READING_SHARE_BYTES_MAX", 300_000)
    ended = asyncio.Event()

    async def without_end(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b" " * 250_000)
        await ended.wait()
        return response

    async def long(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(reply()).ljust(360_000))

    async with answering(without_end) as hostile, answering(long) as healthy:
        whole = Room(500_000)
        hostile._room, healthy._room = whole.share(), whole.share()
        asked = [asyncio.create_task(hostile.exchange("127.0.0.1", REQUEST, 9.0)) for _ in range(2)]
        (refused,), waiting = await asyncio.wait(asked, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Unavailable, match=r"members of this cluster take .* of 300000 bytes"):
            await refused
        assert 100_000 < whole.held_bytes <= 300_000
        assert (await healthy.exchange("127.0.0.1", REQUEST, 5.0)).uuid == "uuid-0"
        ended.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert whole.held_bytes == 0


def test_all_clusters_together_have_a_limit_too() -> None:
    whole = Room(1_000)
    one, other = whole.share(), whole.share()
    one.take(600)
    with pytest.raises(Unavailable, match="members of all clusters take 600 of 1000 bytes"):
        other.take(500)
    assert (one.held_bytes, other.held_bytes, whole.held_bytes) == (600, 0, 600)
    one.give(600)
    other.take(500)
    assert whole.held_bytes == 500


async def test_an_answer_that_does_not_come_or_breaks_off_is_unavailable() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response()

    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.abort()
        return response

    for handler in (hang, break_off):
        async with answering(handler) as client:
            with pytest.raises(Unavailable):
                await client.exchange("127.0.0.1", REQUEST, 0.2)


async def test_nothing_is_sent_where_a_member_points() -> None:
    """The request has the whole table, and would go anywhere, in plain."""
    asked = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect("/v1/other")

    async with answering(elsewhere) as client:
        with pytest.raises(Corrupt, match="answered 307"):
            await client.exchange("127.0.0.1", REQUEST, DEADLINE_SECONDS)
    assert asked == ["/v1/exchange"]
