"""What a member answers to messages that are not for it, too old, or do not fit: nothing is taken."""

import asyncio
from itertools import product
from typing import Any, cast

import msgspec
import pytest

from stele.adapters.tls.identity import TlsIdentity
from stele.core.control import commands as m
from stele.core.formats import SPOKEN, UNSTATED, FormatRange
from stele.core.table.table import Partition
from stele.core.tablet.follower import Code, Tablet
from stele.core.tablet.log import Log
from stele.core.tablet.owner import Flow
from stele.member import limits
from stele.member.replication.links import Inbound, InboundConnections, forwarded_bytes
from stele.member.replication.member_tls import MemberTls, Start
from stele.member.replication.replica import PROMISES_LOST
from stele.wire import peer
from stele.wire.storage.log_record import noop_record, put_record
from stele.wire.storage.volume import MemberSecurity
from tests.member.harness.single_member import ME, OTHER, THIRD, P, SingleMember
from tests.simulation.quiet_cluster import QuietCluster


def put(term: int, value: bytes = b"v") -> bytes:
    return put_record(term, b"default", b"k", value, 0)


async def backup(made: SingleMember, *terms: int, commit: int = 0) -> None:
    """Make this member the backup of OTHER, in row 2, with these operations behind (1, 5)."""
    await made.receive("c")
    await made.store((OTHER, ME))
    ack = await made.acked(made.append((1, 5), [put(term) for term in terms], commit=commit, term=max(terms)))
    assert (ack.code, ack.match) == (Code.OK, 5 + len(terms))


# -- who is meant


async def keep(security: MemberSecurity) -> None:
    raise AssertionError(security)


class Who:
    cluster, uuid, incarnation, me, formats = "cluster", "uuid-0", 1, ME, SPOKEN
    tls = MemberTls(TlsIdentity(None), "cluster", Start(MemberSecurity()), keep, lambda: 0.0)

    def name_of(self, member: int) -> str:
        return "demo-1" if member == OTHER else ""

    def uuid_of(self, member: int) -> str | None:
        return {OTHER: "uuid-1"}.get(member)


class Wire:
    def __init__(self) -> None:
        self.peer, self.certificate, self.chain = "?", None, frozenset[bytes]()
        self.full = False
        self.sent: list[peer.Message] = []
        self.closed = ""

    def send(self, message: peer.Message, *, now: bool = False) -> None:
        self.sent.append(message)

    def greeted(self) -> None:
        """From now on it reads everything."""

    def close(self, reason: str, *, invalid: bool = False) -> None:
        self.closed = reason


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, ""),
        ({"format": 99}, "UNKNOWN_FORMAT"),
        ({"cluster": "another"}, "WRONG_CLUSTER"),
        ({"recipient_uuid": "uuid-before"}, "WRONG_MEMBER"),
        ({"sender_uuid": "uuid-before"}, "UNKNOWN_MEMBER"),
        ({"sender": 7}, "UNKNOWN_MEMBER"),
        ({"sender": -1}, "UNKNOWN_MEMBER"),
    ],
)
def test_a_greeting_names_both_sides_or_nothing_is_taken(change: dict[str, Any], code: str) -> None:
    taken: list[peer.Message] = []
    inbound = Inbound(InboundConnections(cast("Any", Who()), lambda sender, message: taken.append(message)))
    wire = cast("Any", Wire())
    hello = peer.Hello(peer.GREETING_FORMAT, "cluster", OTHER, "uuid-1", "uuid-0")
    inbound.received(wire, msgspec.structs.replace(hello, **change))
    answer = wire.sent[0]
    if code:
        assert isinstance(answer, peer.HelloRejected)
        assert (answer.code, code in wire.closed) == (code, True)
    else:
        assert answer == peer.Welcome("uuid-0", SPOKEN)
    inbound.received(wire, peer.Heartbeat(1.0))
    assert taken == ([] if code else [peer.Heartbeat(1.0)])


async def test_requests_wait_while_their_sender_reads_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[peer.Message] = []
    inbound = Inbound(InboundConnections(cast("Any", Who()), lambda sender, message: taken.append(message)))
    wire = cast("Any", Wire())
    inbound.opened(wire)
    inbound.received(wire, peer.Hello(peer.GREETING_FORMAT, "cluster", OTHER, "uuid-1", "uuid-0"))
    requests = [peer.Forward(n, 1, P, b"default", [[b"GET", b"k"]], 9) for n in range(4)]
    size = forwarded_bytes(requests[0])
    monkeypatch.setattr(limits, "FORWARDS_WAITING_BYTES_MAX", 3 * size)
    wire.full = True
    for message in (*requests, peer.Heartbeat(1.0)):
        inbound.received(wire, message)
    assert taken == [peer.Heartbeat(1.0)], "what replicates waits for nothing"
    assert wire.sent[-1] == peer.Forwarded(
        3, "Unavailable", f"requests of {3 * size} bytes wait until this member's answers are read", b""
    )
    wire.full = False
    inbound.drained(wire)
    inbound.received(wire, requests[3])
    assert taken[1:] == requests


# -- formats


def greeted(formats: FormatRange) -> tuple[InboundConnections, Inbound, Any]:
    """A member with these formats has dialled."""
    all_inbound = InboundConnections(cast("Any", Who()), lambda sender, message: None)
    inbound, wire = Inbound(all_inbound), cast("Any", Wire())
    inbound.opened(wire)
    hello = peer.Hello(peer.GREETING_FORMAT, "cluster", OTHER, "uuid-1", "uuid-0", formats)
    inbound.received(wire, hello)
    return all_inbound, inbound, wire


async def test_a_session_has_the_format_that_both_sides_speak() -> None:
    for formats, expected in ((UNSTATED, 1), (SPOKEN, 2), (FormatRange(2, 3), 2)):
        _, inbound, wire = greeted(formats)
        assert wire.sent == [peer.Welcome("uuid-0", SPOKEN)]
        assert inbound.format == expected


async def test_ranges_that_do_not_meet_are_refused_with_both() -> None:
    _, inbound, wire = greeted(FormatRange(3, 4))
    text = "member 1 speaks formats 3 to 4, member 0 formats 1 to 2: upgrade the older one"
    assert wire.sent == [peer.HelloRejected("UNKNOWN_FORMAT", text)]
    assert inbound.sender < 0


async def test_a_session_without_the_features_ends_when_they_rise() -> None:
    for formats, ends in ((UNSTATED, True), (SPOKEN, False)):
        all_inbound, _, wire = greeted(formats)
        all_inbound.require(SPOKEN.most)
        assert (wire.closed == "the session has format 1, the cluster uses 2 now") is ends


async def test_an_operation_of_a_later_build_damages_nothing(made: SingleMember) -> None:
    """The connection ends, and says why; the tablet goes on from where it was."""
    await backup(made, 2)
    later = bytearray(put(2))
    later[8] = 99
    with pytest.raises(AssertionError, match=r"UNKNOWN_FORMAT: log record of kind 99.*: upgrade this member"):
        made.append((2, 6), [put(2), bytes(later)], term=2)
    await made.until_quiet()
    assert not made.replica.broken
    assert made.replica.tablet.log.last == (2, 6)
    ack = await made.acked(made.append((2, 6), [put(2)], term=2))
    assert (ack.code, ack.match) == (Code.OK, 7)


# -- operations


async def test_operations_of_an_older_term_are_refused(made: SingleMember) -> None:
    await backup(made, 2)
    assert await made.code(m.Fence(P, 4, True)) == "OK"
    ack = await made.acked(made.append((2, 6), [put(2)], term=3))
    assert (ack.code, ack.promised, made.replica.tablet.log.last) == (Code.STALE_TERM, 4, (2, 6))


async def test_operations_of_a_member_that_is_not_the_owner_are_refused(made: SingleMember) -> None:
    await backup(made, 2)
    item = peer.AppendItem(P, 2, 2, 2, 6, 0, [put(2)])
    ack = await made.acked(made.tell(peer.Append([item]), THIRD))
    assert (ack.code, made.replica.tablet.log.last) == (Code.STALE_VERSION, (2, 6))


async def test_a_row_that_is_not_known_yet_is_asked_for_and_then_adopted(made: SingleMember) -> None:
    await backup(made, 2)
    item = peer.AppendItem(P, 3, 3, 2, 6, 0, [put(3)])
    ack = await made.acked(made.tell(peer.Append([item]), THIRD))
    assert (ack.code, made.replica.tablet.log.last) == (Code.ROW_NEEDED, (2, 6))
    row = (3, (THIRD, ME))
    ack = await made.acked(made.tell(peer.Append([msgspec.structs.replace(item, row=row)]), THIRD))
    assert (ack.code, made.replica.tablet.log.last) == (Code.OK, (3, 7))
    assert made.node.rows[P] == Partition(*row)


async def test_operations_that_do_not_follow_are_refused(made: SingleMember) -> None:
    await backup(made, 2)
    for prev in ((2, 7), (1, 6), (2, 9)):
        ack = await made.acked(made.append(prev, [put(2)]))
        assert (ack.code, made.replica.tablet.log.last) == (Code.LOG_MISMATCH, (2, 6))


async def test_a_tombstone_and_another_member_take_nothing(made: SingleMember) -> None:
    assert (await made.acked(made.append((0, 0), [put(1)]))).code == Code.NO_TABLET
    answers = made.tell(peer.Probe([peer.ProbeItem(P, 1, 1, False, (1, (OTHER, THIRD)))]))
    await made.until_quiet()
    (answer,) = answers.answers
    assert isinstance(answer, peer.ProbeResult)
    assert (answer.items[0].code, answer.items[0].empty) == (Code.NO_TABLET, False)
    assert P not in made.node.replicas


async def test_what_was_not_committed_gives_way_to_a_new_owner(made: SingleMember) -> None:
    """The tail that the old owner did not get everywhere is cut off; what is applied stays."""
    await backup(made, 2, 2, 2, commit=6)
    await made.store((THIRD, ME))
    ack = await made.acked(made.append((2, 7), [noop_record(3), put(3, b"new")], commit=9))
    assert (ack.code, ack.match) == (Code.OK, 9)
    log = made.replica.tablet.log
    assert (log.last, log.applied, made.get(b"k")) == ((3, 9), (3, 9), b"new")
    await made.restart()
    log = made.replica.tablet.log
    assert (log.last, log.term_at(7), log.term_at(8)) == ((3, 9), 2, 3)
    assert (await made.acked(made.append((3, 9), [], commit=9))).code == Code.OK
    ack = await made.acked(made.append((1, 5), [put(2)] * 4))
    assert (ack.code, "is applied here" in made.replica.broken) == (Code.NO_TABLET, True)


async def test_a_tail_is_given_to_the_owner_that_is_followed_only(made: SingleMember) -> None:
    await backup(made, 2, 2)
    cases = [(2, (1, 5), True, 2), (2, (2, 6), True, 1), (3, (1, 5), False, 0), (2, (2, 5), False, 0)]
    for term, prev, found, number in cases:
        tail = made.tell(peer.FetchLog(P, term, prev, 1000)).answers[0]
        assert isinstance(tail, peer.LogTail)
        assert (tail.found, len(tail.records)) == (found, number)


# -- promises


async def test_a_promise_is_on_the_disk_before_it_is_told(made: SingleMember) -> None:
    may_write = asyncio.Event()
    save = made.node.meta.save

    async def slow(name: str, value: Any) -> None:
        await may_write.wait()
        await save(name, value)

    made.node.meta.save = slow  # type: ignore[method-assign]
    fence = asyncio.create_task(made.code(m.Fence(P, 5, True)))
    await made.until_quiet()
    assert not fence.done()
    may_write.set()
    assert await fence == "OK"
    await made.restart(power_lost=True)
    assert made.replica.tablet.promised == 5


async def test_a_promise_that_cannot_be_written_is_not_given(made: SingleMember) -> None:

    async def fail(name: str, value: Any) -> None:
        raise OSError(28, "No space left on device")

    made.node.meta.save = fail  # type: ignore[method-assign]
    assert await made.code(m.Fence(P, 5, True)) == "NO_SPACE"
    assert await made.code(m.StartTabletCopy("c", P, 1, OTHER)) == "STALE_TERM"


async def test_start_tablet_copy_says_why_not(made: SingleMember) -> None:
    start = m.StartTabletCopy("c", P, 1, OTHER)
    for command, code in (
        (m.StartTabletCopy("c", 9, 1, OTHER), "BAD_REQUEST"),
        (m.StartTabletCopy("c", P, 2, OTHER), "STALE_VERSION"),
        (m.StartTabletCopy("c", P, 0, OTHER), "STALE_VERSION"),
        (start, "OK"),
        (start, "OK"),
        (m.StartTabletCopy("d", P, 1, OTHER), "ALREADY_IN_PROGRESS"),
        (m.Abort("c", P), "OK"),
        (m.Fence(P, 3, True), "OK"),
        (m.StartTabletCopy("e", P, 1, OTHER), "STALE_TERM"),
    ):
        assert await made.code(command) == code, command
    await made.store((OTHER, ME), by=2)
    assert await made.code(m.StartTabletCopy("f", P, 3, OTHER)) == "ILLEGAL_STATE"
    request = m.ExchangeRequest(1, made.node.settings.cluster, 1, "uuid-before", commands=(start,))
    assert (await made.exchange.handle(request)).code == "WRONG_MEMBER"


def test_what_was_promised_never_goes_back_whatever_log_comes() -> None:
    """Merging consensus metadata: the highest term wins, a vote stays, the row comes from outside."""
    row = Partition(3, (0, 1))
    for promised, mine, theirs, fence in product(range(4), repeat=4):
        log = Log()
        if mine:
            log.append(mine, 1, 1)
        made = Tablet(P, ME, log, promised)
        made.row = row
        before = made.promised
        assert before == max(promised, mine)
        made.replace_log(Log((theirs, theirs)))
        assert (made.promised, made.row) == (max(before, theirs), row)
        for term in range(4):
            code = made.check(0, 3, term)
            assert (code is Code.OK) == (term >= made.promised)
        assert made.fence(fence) == (fence > max(before, theirs))
        assert made.promised == max(before, theirs, fence)


# -- members that have nothing


def test_a_member_of_the_row_without_a_tablet_is_noted_and_asked_again(quiet: QuietCluster) -> None:
    """So that the owner can tell the master of it, which has it copied anew; not later, when it is well."""
    owner, gone = quiet.members[0], quiet.members[1]
    assert owner.ask(b"SET", b"k", b"1").text == "OK"
    block = gone.replica.block
    assert block is not None
    gone.replica.block = msgspec.structs.replace(block, state="DELETED")
    reply = owner.send(b"SET", b"k", b"2")
    quiet.run(2.0)
    progress = owner.owner.progress[1]
    assert (reply.done(), progress.flow) == (False, Flow.PROBE)
    assert progress.lost_at > 0
    gone.replica.block = block
    quiet.run(2.0)
    assert (reply.done(), progress.flow, progress.lost_at) == (True, Flow.STREAM, 0.0)


def test_a_destination_counts_only_once_the_promise_to_wait_is_on_the_disk(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRE_VOTER: its acknowledgements commit nothing, and nothing waits for it, before it is near the end."""
    owner, destination = quiet.members[0], quiet.members[3]
    monkeypatch.setattr(owner.node.roles, "wants_promise", lambda replica: None)
    quiet.begin_migration("m", 3)
    quiet.run(2.0)
    assert 3 not in owner.owner.waited_for
    destination.isolate()
    assert owner.ask(b"SET", b"k", b"1").text == "OK"
    for member in quiet.members[1:3]:
        member.isolate()
    destination.rejoin()
    reply = owner.send(b"SET", b"k", b"2")
    quiet.run(2.0)
    assert not reply.done()
    for member in quiet.members[1:3]:
        member.rejoin()
    quiet.run(8.0)
    assert reply.done()


@pytest.mark.parametrize("step", ["copy", "row"])
async def test_lost_promises_are_forgotten_on_disk_first(made: SingleMember, step: str) -> None:
    replica, save = made.node.tablets.replica_of(P), made.node.meta.save
    replica.meta, replica.tablet.promised = PROMISES_LOST, PROMISES_LOST.promised

    async def fail(name: str, value: Any) -> None:
        raise OSError(28, "No space left on device")

    made.node.meta.save = fail  # type: ignore[method-assign]
    if step == "copy":
        assert await made.code(m.StartTabletCopy("c", P, 1, OTHER)) == "NO_SPACE"
    else:
        with pytest.raises(OSError, match="No space"):
            await made.node.fencing._tidy(P, made.node.rows[P])
    assert replica.tablet.promised == PROMISES_LOST.promised
    made.node.meta.save = save  # type: ignore[method-assign]
    assert await made.code(m.StartTabletCopy("c", P, 1, OTHER)) == "OK"
    assert replica.tablet.promised == replica.meta.promised == 1
