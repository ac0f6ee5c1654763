"""Bugs of Infinispan's state transfer that must not come here, by number, and commands in each phase.

What a number stands for is in its first sentence; the commits are in Infinispan's history.
"""

from collections.abc import Callable
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.core.kv.commands import OK, Simple
from stele.core.kv.transaction import EXEC
from stele.core.tablet.owner import LearnerState
from stele.errors import SteleError, Uncertain
from stele.wire.storage.keys import split_user, tablet_range, unpack_value
from stele.wire.transaction import encode_transaction
from tests.simulation.quiet_cluster import P, QuietCluster, QuietMember

ID = "m"
PHASES = ("before", "freeze", "accept", "store", "publish")
COMMANDS: dict[str, tuple[tuple[bytes, ...], object, bytes | None]] = {
    "get": ((b"GET", b"%k"), b"1", b"1"),
    "put": ((b"SET", b"%k", b"2"), OK, b"2"),
    "replace": ((b"SET", b"%k", b"2", b"XX"), OK, b"2"),
    "put if absent": ((b"SETNX", b"%k", b"2"), 0, b"1"),
    "get and put": ((b"GETSET", b"%k", b"2"), b"1", b"2"),
    "remove": ((b"DEL", b"%k"), 1, None),
    "get and remove": ((b"GETDEL", b"%k"), b"1", None),
    "count": ((b"INCR", b"%k"), 2, b"2"),
    "count once": ((b"STELE.ONCE", b"client-%k", b"1", b"INCR", b"%k"), 2, b"2"),
    "expire": ((b"PEXPIREAT", b"%k", b"1"), 1, None),
    "type": ((b"TYPE", b"%k"), Simple("string"), b"1"),
}
"""Name -> command on the key %k, whose value is 1; its reply, and the value afterwards."""


class Move:
    """A migration of the only partition from member 0 to member 3, step by step."""

    def __init__(self, quiet: QuietCluster) -> None:
        self.quiet, self.last = quiet, m.OpId()
        quiet.begin_migration(ID, 3)
        quiet.run(1.0)
        assert quiet.members[0].learner.state is LearnerState.IN_SYNC
        self.row = m.Row(P, quiet.row.version + 1, (3, 1, 2))
        self.steps: dict[str, Callable[[], Any]] = {
            "before": lambda: None,
            "freeze": self.freeze,
            "accept": lambda: quiet.members[3].order(m.Accept(ID, self.row, self.last)),
            "store": self.store,
            "publish": quiet.publish,
        }

    def freeze(self) -> None:
        self.last = self.quiet.members[0].order(m.HandOver(ID, P)).last

    def store(self) -> None:
        """The destination is the first that hears of the stored row, and the others do not yet."""
        self.quiet.row = self.row
        infos = tuple(member.info for member in self.quiet.members)
        self.quiet.members[3].exchange(member_list_version=1, members=infos, rows=(self.row,))

    def run(self, *phases: str) -> None:
        for phase in phases:
            self.steps[phase]()


def contents(member: QuietMember) -> dict[bytes, bytes]:
    """Keys and values that users have stored here."""
    member.flush()
    entries = member.node.engine.scan(*tablet_range(P, member.replica.generation), 10**6)
    return {
        split[1]: unpack_value(value)[0]
        for key, value in entries
        if (split := split_user(key)) is not None and split[0] == b"default"
    }


def send(member: QuietMember, *args: bytes) -> Any:
    """Begin one command; the future of its replies."""

    async def begin() -> Any:
        return [member.send(*args)]

    return member.do(begin)[0]


def ask(member: QuietMember, *args: bytes) -> Any:
    return answered(member.cluster, send(member, *args))[0]


def answered(quiet: QuietCluster, *outcomes: Any) -> list[Any]:
    """The reply to each command, or the error; AssertionError when one has none within 20 s."""
    end = quiet.clock.now + 20.0
    while not all(outcome.done() for outcome in outcomes):
        assert quiet.clock.now < end, "no reply"
        quiet.run(0.05)
    return [outcome.exception() or outcome.result()[0] for outcome in outcomes]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_each_phase_of_a_move_has_its_effect_once(
    quiet: QuietCluster, name: str, phase: str
) -> None:
    """Commands through the old owner, a backup and the new owner, sent when the phase has been reached."""
    command, reply, value = COMMANDS[name]
    keys = {0: b"a", 1: b"b", 3: b"c"}
    for key in keys.values():
        assert quiet.members[0].ask(b"SET", key, b"1") == OK
    move, at = Move(quiet), PHASES.index(phase)
    move.run(*PHASES[: at + 1])
    outcomes = [
        send(quiet.members[via], *(word.replace(b"%k", key) for word in command)) for via, key in keys.items()
    ]
    move.run(*PHASES[at + 1 :])
    assert answered(quiet, *outcomes) == [reply] * 3
    quiet.run(2.0)
    wanted = {} if value is None else dict.fromkeys(keys.values(), value)
    assert [contents(quiet.members[index]) for index in (3, 1, 2)] == [wanted] * 3


@pytest.mark.parametrize("phase", PHASES)
def test_a_transaction_in_each_phase_of_a_move_has_its_effect_once(quiet: QuietCluster, phase: str) -> None:
    body = encode_transaction([], [[b"INCR", b"a"], [b"INCR", b"b"]])
    move, at = Move(quiet), PHASES.index(phase)
    move.run(*PHASES[: at + 1])
    outcomes = [send(quiet.members[via], EXEC, b"a", body) for via in (0, 1, 3)]
    move.run(*PHASES[at + 1 :])
    assert sorted(answered(quiet, *outcomes)) == [[1, 1], [2, 2], [3, 3]]
    quiet.run(2.0)
    assert [contents(quiet.members[index]) for index in (3, 1, 2)] == [{b"a": b"3", b"b": b"3"}] * 3


@pytest.mark.parametrize("phase", PHASES)
def test_ispn_3366_a_write_to_an_owner_that_goes_is_not_lost(quiet: QuietCluster, phase: str) -> None:
    """ISPN-3366: a write forwarded to a primary that shut down was answered, and in no copy.

    What is answered is at the new owner; else the client hears that it must look or send again.
    """
    move, at = Move(quiet), PHASES.index(phase)
    move.run(*PHASES[: at + 1])
    outcome = send(quiet.members[1], b"SET", b"k", b"v")
    move.run(*(each for each in PHASES[at + 1 :] if each != "publish"))
    quiet.members[0].crash()
    for index in (1, 2, 3):
        quiet.members[index].exchange(
            member_list_version=2,
            members=tuple(quiet.members[each].info for each in (1, 2, 3)),
            rows=(move.row,),
        )
    (reply,) = answered(quiet, outcome)
    quiet.run(2.0)
    assert reply == OK or isinstance(reply, SteleError)
    if reply == OK:
        assert ask(quiet.members[3], b"GET", b"k") == b"v"


def test_ispn_3443_a_copy_does_not_undo_a_later_write(quiet: QuietCluster) -> None:
    """ISPN-3443: state that was transferred overwrote values written since, or brought back removed keys.

    The copy is of one position of the log, and the log from there on is applied after it.
    """
    owner = quiet.members[0]
    for key in (b"kept", b"changed", b"removed"):
        owner.ask(b"SET", key, b"old")
    owner.write(60)
    owner.flush()
    quiet.begin_migration(ID, 3)
    quiet.run(3.0)
    assert owner.learner.state is LearnerState.NEEDS_COPY
    fetch = quiet.open_session("s", 3)
    owner.ask(b"SET", b"changed", b"new")
    owner.ask(b"DEL", b"removed")
    quiet.copy(fetch, 3)
    quiet.run(1.0)
    assert owner.learner.state is LearnerState.IN_SYNC
    assert contents(quiet.members[3]) == {b"kept": b"old", b"changed": b"new", b"k": b"59"}


def test_ispn_3422_a_conditional_write_is_not_refused_by_its_own_first_attempt(quiet: QuietCluster) -> None:
    """ISPN-3422: a putIfAbsent that was sent again after a change of owners found its own value, and failed.

    Members repeat no write that may have run, so the client hears UNCERTAIN; STELE.ONCE can be repeated.
    """
    quiet.members[2].isolate()
    outcomes = [
        send(quiet.members[3], b"SETNX", b"k", b"v"),
        send(quiet.members[3], b"STELE.ONCE", b"client", b"1", b"SETNX", b"once", b"v"),
    ]
    quiet.run(0.5)
    assert not any(outcome.done() for outcome in outcomes)
    quiet.members[0].crash()
    quiet.members[2].rejoin()
    promote(quiet, 1)
    plain, once = answered(quiet, *outcomes)
    assert isinstance(plain, Uncertain)
    assert once == 1
    assert ask(quiet.members[3], b"GET", b"k") == b"v"
    assert ask(quiet.members[3], b"STELE.ONCE", b"client", b"1", b"SETNX", b"once", b"v") == 1


def promote(quiet: QuietCluster, chosen: int) -> None:
    """The owner is dead: fence the others, and let one of them own the partition."""
    backups = [index for index in (1, 2) if index != chosen]
    row = m.Row(P, quiet.row.version + 2, (chosen, *backups))
    for index in (1, 2):
        quiet.members[index].order(m.Fence(P, row.version, True))
    quiet.members[chosen].order(m.Accept("promotion", row))
    publish(quiet, row, 1, 2, 3)
    quiet.run(1.0)


def publish(quiet: QuietCluster, row: m.Row, *running: int) -> None:
    """The row is stored; the members that run hear of it, and of no other member."""
    quiet.row = row
    infos = tuple(quiet.members[index].info for index in running)
    for index in running:
        quiet.members[index].exchange(member_list_version=2, members=infos, rows=(row,))


def test_ispn_3633_a_late_deletion_does_not_end_a_copy(quiet: QuietCluster) -> None:
    """ISPN-3633: an invalidation of what a node had before cancelled the write of a transferred entry.

    A member that had the partition earlier gets a copy of it; the order to delete the earlier one comes late.
    """
    quiet.members[0].ask(b"SET", b"k", b"v")
    Move(quiet).run(*PHASES)
    quiet.run(1.0)
    version = quiet.row.version
    back = m.StartTabletCopy("back", P, version, 3)
    quiet.members[0].order(m.DeleteTablet(P, version))
    quiet.members[0].order(back)
    late = quiet.members[0].command(m.DeleteTablet(P, version))
    quiet.members[3].order(m.AddLearner("back", P, version, 0))
    quiet.run(3.0)
    assert late.code == "MIGRATION_ACTIVE"
    assert quiet.members[3].learner.state is LearnerState.IN_SYNC
    assert contents(quiet.members[0]) == {b"k": b"v"}


def test_ispn_4490_a_new_master_ends_what_the_old_one_cancelled(quiet: QuietCluster) -> None:
    """ISPN-4490: members that missed the cancellation of a rebalance, as coordinators changed, kept it.

    They report learners and copies to each master, and an Abort that comes twice is fine.
    """
    owner = quiet.members[0]
    move = Move(quiet)
    move.run("freeze")
    outcome = send(quiet.members[1], b"SET", b"k", b"v")
    owner.order(m.Abort(ID, P))
    reports = [quiet.members[index].exchange(epoch=2, rows=()) for index in (0, 3)]
    assert [learner.id for learner in reports[0].learners] == []
    assert [copy.partition for copy in reports[1].copies] == [P]
    for index in (0, 3, 0, 3):
        assert quiet.members[index].exchange(epoch=2, commands=(m.Abort(ID, P),)).results[0].code == "OK"
    assert answered(quiet, outcome) == [OK]
    quiet.publish(epoch=2)
    assert not quiet.members[3].exchange(epoch=2, rows=()).copies
    again = quiet.members[3].exchange(epoch=2, commands=(m.StartTabletCopy("n", P, quiet.row.version, 0),))
    assert again.results[0].code == "OK"


def test_ispn_6107_nothing_is_taken_in_from_a_source_that_is_gone(quiet: QuietCluster) -> None:
    """ISPN-6107: segments without a source were fetched, and confirmed as if there had been one."""
    owner, destination = quiet.members[0], quiet.members[3]
    owner.write(60)
    owner.flush()
    quiet.begin_migration(ID, 3)
    quiet.run(3.0)
    fetch = quiet.open_session("s", 3)
    owner.isolate()
    destination.command(fetch)
    quiet.run(30.0)
    assert [each.state for each in destination.exchange(rows=()).fetches] != ["DONE"]
    assert destination.command(m.Ingest("s", (P,))).code != "OK"
    assert destination.command(m.Accept(ID, m.Row(P, 2, (3, 1, 2)), m.OpId(1, 60))).code != "OK"
    promote(quiet, 1)
    assert ask(quiet.members[2], b"GET", b"k") == b"59"


@pytest.mark.parametrize("number", [9187, 13147])
def test_ispn_9187_and_13147_no_learner_takes_over_that_missed_a_departure(
    quiet: QuietCluster, number: int
) -> None:
    """A node left during a rebalance: the joiner was dropped (ISPN-9187), or missed writes (13147).

    A new row ends the migration: its learner, in sync (9187) or copying (13147), is handed nothing, and the
    next one has the writes before and after the departure.
    """
    owner = quiet.members[0]
    owner.write(60)
    owner.flush()
    quiet.begin_migration(ID, 3)
    quiet.run(3.0)
    fetch = quiet.open_session("s", 3)
    if number == 9187:
        quiet.copy(fetch, 3)
        quiet.run(1.0)
        assert owner.learner.state is LearnerState.IN_SYNC
    owner.ask(b"SET", b"a", b"1")
    during = send(quiet.members[1], b"SET", b"b", b"2")
    quiet.members[2].crash()
    publish(quiet, m.Row(P, quiet.row.version + 2, (0, 1)), 0, 1, 3)
    after = send(quiet.members[1], b"SET", b"c", b"3")
    assert answered(quiet, during, after) == [OK, OK]
    quiet.run(2.0)
    assert owner.command(m.HandOver(ID, P)).code != "OK"
    row = m.Row(P, quiet.row.version + 1, (3, 1))
    assert quiet.members[3].command(m.Accept(ID, row, m.OpId(*owner.log.last))).code != "OK"
    quiet.members[3].order(m.Abort(ID, P))
    quiet.begin_migration("again", 3)
    quiet.run(3.0)
    if owner.learner.state is LearnerState.NEEDS_COPY:
        quiet.copy(quiet.open_session("again", 3), 3)
        quiet.run(1.0)
    assert owner.learner.state is LearnerState.IN_SYNC
    assert contents(quiet.members[3]) == {b"k": b"59", b"a": b"1", b"b": b"2", b"c": b"3"}


def test_ispn_13160_a_write_that_waits_does_not_hold_up_a_new_row(quiet: QuietCluster) -> None:
    """ISPN-13160: a write held the lock that the topology needed for which the write waited."""
    quiet.members[2].isolate()
    outcome = send(quiet.members[1], b"SET", b"k", b"v")
    quiet.run(1.0)
    assert not outcome.done()
    began = quiet.clock.now
    publish(quiet, m.Row(P, quiet.row.version + 2, (0, 1)), 0, 1, 3)
    assert quiet.clock.now - began < 1.0
    assert answered(quiet, outcome) == [OK]


def test_ispn_14982_a_copy_is_complete_when_its_own_transfer_is(quiet: QuietCluster) -> None:
    """ISPN-14982: of two transfers of one segment, the end of one was taken for that of the other.

    A transfer that is given up changes nothing for the next, which completes by itself.
    """
    owner, destination = quiet.members[0], quiet.members[3]
    owner.write(60)
    owner.flush()
    quiet.begin_migration(ID, 3)
    quiet.run(3.0)
    first = quiet.open_session("first", 3)
    destination.order(first)
    second = quiet.open_session("second", 3)
    destination.order(second)
    for member in (owner, destination):
        member.order(m.CloseSession("first"))
    quiet.run(5.0)
    assert destination.command(m.Ingest("first", (P,))).code != "OK"
    assert owner.learner.state is LearnerState.NEEDS_COPY
    destination.order(m.Ingest("second", (P,)))
    quiet.run(1.0)
    assert owner.learner.state is LearnerState.IN_SYNC
