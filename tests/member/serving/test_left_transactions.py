"""Transactions across partitions that are left: a part is lost, an end refused, an owner gone."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.core.kv import two_phase
from stele.core.kv.commands import Failure, Reply
from stele.core.kv.two_phase import Intent, Outcome, Status, TxId, Verdict
from stele.errors import BadInput, Unavailable, Uncertain
from stele.member.admin.metrics import Metrics
from stele.member.admin.transactions import resolve, transaction_list
from stele.member.serving import participant, recovery
from stele.member.serving.originator import TransactionOriginator
from stele.member.serving.recovery import TransactionRecovery
from stele.wire.two_phase import END, MARK, TOLD, EndMessage, IdMessage, command
from stele.wire.two_phase import answer as answer_of
from tests.member.serving import test_moving_participants as moving
from tests.member.serving.test_moving_participants import (
    COORDINATOR,
    MOVED,
    Change,
    Pair,
    answer,
    decide,
    end,
    outcomes,
    prepare,
    quiet,
    run_through,
    values,
)

__all__ = ["quiet"]


def test_a_participant_that_lost_its_part_says_so_once(quiet: Pair) -> None:
    """Nothing was prepared: as if the partition had gone on without its last operations."""
    assert decide(quiet) == [Status.COMMITTED, [2]]
    owner = quiet.members[0]
    assert answer(quiet, end(quiet, Verdict.COMMIT))[0] == Status.LOST
    assert answer(quiet, end(quiet, Verdict.COMMIT))[0] == Status.DONE
    assert b"stele_transactions_lost_parts_total 1.0" in Metrics(owner.node).text(0)
    assert answer(quiet, prepare(quiet))[0] == Status.OVER


def test_only_a_serving_owner_lists_locks(quiet: Pair) -> None:
    """One that hands its partition over may have locks that are over at the next."""
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    change = Change(quiet, "swap")
    change.begin()
    assert quiet.members[0].replica.locks is not None
    assert [len(transaction_list(each.node).transactions) for each in quiet.members] == [0, 0, 0, 0]
    change.finish()
    assert [len(transaction_list(each.node).transactions) for each in quiet.members] == [0, 1, 0, 0]


def refuse_ends(patch: pytest.MonkeyPatch) -> None:
    """Owners answer each End with an error."""

    def end(*args: Any) -> Any:
        raise BadInput("not now")

    patch.setattr(participant, "_end", end)


def test_a_participant_that_refuses_the_end_is_told_again(
    quiet: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it knows, the coordinator's outcome stays, also when the originator's process is another one."""
    with monkeypatch.context() as patch:
        refuse_ends(patch)
        run_through(quiet, 3)
        quiet.run(0.5)
        quiet.members[3].crash()
        quiet.members[3].start()
        quiet.publish()
        quiet.run(10.0)
        assert outcomes(quiet) > 0
    quiet.run(15.0)
    assert values(quiet) == [b"2", b"2"]
    assert outcomes(quiet) == 0


def test_what_its_originator_dropped_is_not_told_as_over(
    quiet: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was full just when the transaction was decided."""

    def tell(self: TransactionOriginator, running: Any) -> None:
        if running.driver.verdict is not None:
            raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionOriginator, "_tell", tell)
        done = run_through(quiet, 3)
        quiet.run(0.5)
    assert isinstance(done.exception(), Uncertain)
    quiet.run(0.1)
    mine = quiet.members[3].node.transactions
    assert mine.running == 0, "a drain does not wait for it"
    quiet.run(30.0)
    assert values(quiet) == [b"2", b"2"]
    assert outcomes(quiet) == 0, "once all participants know, a mark covers it"


def test_what_is_in_doubt_is_not_told_as_over(quiet: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A participant that forgets the verdict can tell it to no other one."""
    real, lows = TransactionOriginator._mark, list[int]()

    async def mark(self: TransactionOriginator, partition: int, low: int) -> bool:
        lows.append(low)
        return await real(self, partition, low)

    def unknown(*_: Any) -> two_phase.Step:
        return two_phase.Step(Status.UNKNOWN)

    monkeypatch.setattr(TransactionOriginator, "_mark", mark)
    monkeypatch.setattr(two_phase, "decide", unknown)
    monkeypatch.setattr(two_phase, "ask", unknown)
    done, mine, owner = run_through(quiet, 3), quiet.members[3].node.transactions, quiet.members[0]
    quiet.run(23.0)
    assert isinstance(done.exception(), Uncertain)
    (facts,) = transaction_list(owner.node).transactions
    assert (facts.in_doubt, mine.running, set(lows)) == (True, 0, {1})
    assert owner.do(lambda: resolve(owner.node, facts.transaction, "commit")) == [MOVED]
    quiet.run(15.0)
    assert (max(lows), outcomes(quiet)) == (2, 0), "all participants know what the user said"


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("silent", [MOVED, COORDINATOR])
def test_without_an_owner_nothing_is_done_and_no_lock_is_left(
    quiet: Pair, monkeypatch: pytest.MonkeyPatch, silent: int, known: bool
) -> None:
    """Its client hears TRYAGAIN after 15 s, whether or not this originator used the partitions before."""
    quiet.row = m.Row(MOVED, quiet.row.version + 1, (0, 1))
    monkeypatch.setattr(moving, "COORDINATING", m.Row(COORDINATOR, 2, (2,)))
    quiet.store(0, 1)
    quiet.run(1.0)
    if known:
        run_through(quiet, 3)
        quiet.run(0.5)
    before = [b"2", b"2"] if known else [b"1", b"1"]
    owner = quiet.members[2 if silent == COORDINATOR else 0]
    owner.crash()
    quiet.dead = (owner.index,)
    quiet.publish(member_list_version=2)
    done = run_through(quiet, 3)
    quiet.run(14.0)
    assert not done.done()
    quiet.run(3.0)
    told = done.exception() or done.result()
    assert isinstance(told, Unavailable) or told.code == "TRYAGAIN", "both are TRYAGAIN for clients"
    owner.start()
    quiet.dead = ()
    quiet.publish(member_list_version=3)
    quiet.run(5.0)
    assert [each for member in quiet.members for each in transaction_list(member.node).transactions] == []
    assert values(quiet) == before


# -- a coordinator that has lost its data, and what others know

ID = TxId("gone", 1, 1)
INTENT = Intent(2, b"the data before", (0, 1, 2), ((b"default", b"k"),), (), 0, 0)


class Partitions:
    """Each one's answer to a question; None: it does not answer."""

    def __init__(self, **told: Status | None) -> None:
        self.told, self.ended = {name.encode(): status for name, status in told.items()}, list[Any]()

    async def execute(self, partition: int, keyspace: bytes, commands: list[list[bytes]]) -> list[Any]:
        ((_, verb, body),) = commands
        if verb == END:
            self.ended.append((partition, body))
            return [answer_of(Status.DONE, None)]
        status = self.told[verb]
        if status is None:
            raise Unavailable(f"partition {partition} has no owner")
        return [answer_of(status, None)]


@pytest.mark.parametrize(
    ("ask", "known", "ended", "doubtful"),
    [
        (Status.UNKNOWN, Status.COMMITTED, Verdict.COMMIT, 0),
        (Status.UNKNOWN, Status.ABORTED, Verdict.ABORT, 0),
        (Status.UNKNOWN, Status.UNKNOWN, None, 1),
        (Status.UNKNOWN, None, None, 0),
        (Status.COMMITTED, None, Verdict.COMMIT, 0),
    ],
)
async def test_another_participant_is_asked_before_a_transaction_is_in_doubt(
    ask: Status, known: Status | None, ended: Verdict | None, doubtful: int
) -> None:
    partitions, background = Partitions(ask=ask, known=known), SimpleNamespace(now=lambda: 0.0)
    tested = TransactionRecovery(None, partitions, None, None, None, background)  # type: ignore[arg-type]
    await tested._ask(0, ID, INTENT)
    told = [] if ended is None else [(0, command(END, EndMessage(ID, ended))[2])]
    assert partitions.ended == told
    assert len(tested._in_doubt) == doubtful


# -- what processes that ended have left, while one partition cannot be told

SICK = 7
LEFT = {
    "first": {1: SICK, 2: 3},
    "second": {1: 3},
}
"""The participant besides the coordinator, by the number of a transaction, of each originator."""


class OneIsSick:
    """Notes what each partition is told; one does not take it."""

    def __init__(self, trouble: Unavailable | Uncertain | Failure) -> None:
        self.trouble, self.told, self.tries = trouble, list[Any](), 0

    async def execute(self, partition: int, keyspace: bytes, commands: list[list[bytes]]) -> list[Reply]:
        ((_, verb, body),) = commands
        if partition == SICK:
            self.tries += 1
            if isinstance(self.trouble, Failure):
                return [self.trouble]
            raise self.trouble
        self.told.append((partition, verb, body))
        return [0] if verb == MARK else [answer_of(Status.DONE, None)]


@pytest.mark.parametrize(
    ("trouble", "tries"),
    [
        (Unavailable("it has no owner"), 1),
        (Uncertain("its owner died"), 1),
        (Failure("TRYAGAIN", "no space"), 1),
        (Failure("ERR", "this one not"), 2),
    ],
)
async def test_a_partition_that_cannot_be_told_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, trouble: Any, tries: int
) -> None:
    """It is waited for once in a round, and what it has not heard of is kept."""

    def stored(_engine: Any, _replica: Any, member: str) -> list[tuple[TxId, Outcome]]:
        left = LEFT[member].items()
        return [(TxId(member, 1, number), Outcome(Verdict.COMMIT, (other,))) for number, other in left]

    monkeypatch.setattr(recovery, "originators", lambda *_: [TxId(member, 1, 1) for member in LEFT])
    monkeypatch.setattr(recovery, "stored_outcomes", stored)
    monkeypatch.setattr(TransactionRecovery, "_incarnation_of", lambda *_: 2)
    partitions, tablets = OneIsSick(trouble), SimpleNamespace(engine=None)
    tested = TransactionRecovery(tablets, partitions, None, None, None, None)  # type: ignore[arg-type]
    await tested._clean([SimpleNamespace(partition=each) for each in (4, 5)])  # type: ignore[misc]
    ended = [
        (each, TxId(member, 1, number)) for each in (4, 5) for member, number in (("first", 2), ("second", 1))
    ]
    mark = command(MARK, IdMessage(("second", 2, 0)))[2]
    for each, id in ended:
        assert (3, END, command(END, EndMessage(id, Verdict.COMMIT))[2]) in partitions.told
        assert (each, TOLD, command(TOLD, IdMessage(id))[2]) in partitions.told
    marks = [(each, body) for each, verb, body in partitions.told if verb == MARK]
    assert marks == [(4, mark), (5, mark)], "the first originator's outcomes are kept"
    assert partitions.tries == tries
