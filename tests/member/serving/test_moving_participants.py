"""The four moments at which a participant of a transaction gets another owner, each in three ways.

The cases are those of Infinispan's design of state transfer ("Transactions"). The test plays the originator,
message by message: partition 0 is a participant whose owner changes, partition 1 coordinates.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.core.formats import TRANSACTIONS
from stele.core.kv.commands import OK
from stele.core.kv.keyslot import partition_of
from stele.core.kv.two_phase import Status, TxId, Verdict
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, Refused, Uncertain
from stele.member.admin.metrics import Metrics
from stele.member.admin.transactions import resolve, transaction_list
from stele.member.limits import WAIT_SECONDS_MAX
from stele.member.replication.request import Request
from stele.member.serving import participant
from stele.member.serving.forwarded import ForwardedRequests
from stele.member.serving.router import RequestRouter
from stele.ports.transactions import PartitionPart
from stele.wire.copy.bulk import LoadOrder
from stele.wire.transaction import Transaction
from stele.wire.two_phase import (
    ASK,
    DECIDE,
    END,
    HISTORY,
    MARK,
    OUTCOMES,
    PREPARE,
    AskMessage,
    EndMessage,
    IdMessage,
    PartMessage,
    command,
    text_of_id,
)
from tests.simulation.quiet_cluster import KEYSPACE, QuietCluster, QuietMember

assert PARTITIONS_MAX >= 2
MOVED, COORDINATOR = 0, 1
KEYS = {partition_of(key, 2): key for key in (b"a", b"b", b"c", b"d", b"e")}
GONE = ("a-member-that-is-gone", 1, 1)
COORDINATING = m.Row(COORDINATOR, 1, (2, 1))
ROWS = {"move": (3, 1, 2), "swap": (1, 0, 2), "promotion": (1, 2)}
"""Who has the partition after each way to another owner; it was (0, 1, 2)."""


class Pair(QuietCluster):
    """The same with a second partition, which members 2 and 1 have; `id` names the transaction."""

    def publish(self, **fields: object) -> None:
        running = [member for member in self.members if member.index not in self.dead]
        infos = tuple(member.info for member in running)
        for member in running:
            member.exchange(
                **{"member_list_version": 1, "members": infos, "rows": (self.row, COORDINATING)} | fields
            )

    dead: tuple[int, ...] = ()

    @property
    def id(self) -> tuple[str, int, int]:
        """One of member 2, which is there; of nobody, once it `left`."""
        return (
            GONE if self.left else (self.members[2].node.uuid, self.members[2].node.instance.incarnation, 1)
        )

    left = False


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    real = QuietMember.exchange

    def exchange(self: QuietMember, **fields: object) -> m.ExchangeReply:
        return real(self, **{"format": TRANSACTIONS, "partitions": 2} | fields)

    monkeypatch.setattr(QuietMember, "exchange", exchange)
    made = Pair(tmp_path, 4)
    made.store(0, 1, 2)
    made.run(3.0)
    for partition in (MOVED, COORDINATOR):
        assert ask(made, partition, [b"SET", KEYS[partition], b"1"]) == OK
    yield made
    made.close()


# -- messages, sent through member 2


def send(quiet: Pair, partition: int, args: list[bytes], keyspace: bytes = KEYSPACE, through: int = 2) -> Any:
    member = quiet.members[through]

    async def begin() -> list[Any]:
        outcome = member.process.loop.create_future()
        member.node.router.start(partition, keyspace, [args], outcome)
        return [outcome]

    return member.do(begin)[0]


def answer(quiet: Pair, outcome: Any, seconds: float = 14.0) -> Any:
    end = quiet.clock.now + seconds
    while not outcome.done():
        assert quiet.clock.now < end, "no reply"
        quiet.run(0.05)
    return outcome.exception() or outcome.result()[0]


def ask(quiet: Pair, partition: int, args: list[bytes]) -> Any:
    return answer(quiet, send(quiet, partition, args))


def part(quiet: Pair, partition: int, verb: bytes) -> list[bytes]:
    """A message that adds 1 to the key of a partition."""
    name = ask(quiet, COORDINATOR, command(HISTORY, b"name"))
    commands = Transaction([], [[b"INCR", KEYS[partition]]])
    return command(verb, PartMessage(quiet.id, COORDINATOR, name, [MOVED, COORDINATOR], commands))


def prepare(quiet: Pair) -> Any:
    return send(quiet, MOVED, part(quiet, MOVED, PREPARE))


def decide(quiet: Pair) -> Any:
    return ask(quiet, COORDINATOR, part(quiet, COORDINATOR, DECIDE))


def end(quiet: Pair, verdict: Verdict = Verdict.COMMIT) -> Any:
    return send(quiet, MOVED, command(END, EndMessage(quiet.id, verdict)))


# -- another owner


class Change:
    """The owner of partition 0 changes: `begin` up to where its owner serves no more, `finish` the rest."""

    def __init__(self, quiet: Pair, way: str) -> None:
        self.quiet, self.way = quiet, way
        self.row = m.Row(MOVED, quiet.row.version + 1, ROWS[way])
        self.owner = self.row.replicas[0]

    def begin(self) -> None:
        quiet, version = self.quiet, self.quiet.row.version
        if self.way == "move":
            quiet.begin_migration("m", 3)
            quiet.run(1.0)
            self.last = quiet.members[0].order(m.HandOver("m", MOVED)).last
        elif self.way == "swap":
            self.last = quiet.members[0].order(m.HandOver("m", MOVED, version, 1)).last
        else:
            quiet.members[0].crash()
            quiet.dead = (0,)

    def finish(self) -> None:
        quiet = self.quiet
        if self.way == "promotion":
            self.row = m.Row(MOVED, quiet.row.version + 2, ROWS[self.way])
            for index in (1, 2):
                quiet.members[index].order(m.Fence(MOVED, self.row.version, True))
            quiet.members[1].order(m.Accept("m", self.row))
        else:
            assert self.owner is not None
            quiet.members[self.owner].order(m.Accept("m", self.row, self.last))
        quiet.row = self.row
        quiet.publish(member_list_version=2)
        quiet.run(2.0)

    def all(self) -> None:
        self.begin()
        self.finish()


@pytest.fixture(params=ROWS)
def change(quiet: Pair, request: pytest.FixtureRequest) -> Change:
    return Change(quiet, request.param)


def values(quiet: Pair) -> list[Any]:
    return [ask(quiet, partition, [b"GET", KEYS[partition]]) for partition in (MOVED, COORDINATOR)]


def test_case_1_prepared_before_the_move(quiet: Pair, change: Change) -> None:
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    change.all()
    reads = send(quiet, MOVED, [b"GET", KEYS[MOVED]])
    quiet.run(0.5)
    assert not reads.done(), "the new owner has the lock"
    assert decide(quiet) == [Status.COMMITTED, [2]]
    assert answer(quiet, end(quiet))[0] == Status.DONE
    assert answer(quiet, reads) == b"2"
    assert values(quiet) == [b"2", b"2"]


def test_case_2_the_prepare_was_not_seen_by_the_old_owner(quiet: Pair, change: Change) -> None:
    change.begin()
    prepared = prepare(quiet)
    quiet.run(0.5)
    assert not prepared.done()
    change.finish()
    assert answer(quiet, prepared) == [Status.PREPARED, [2]]
    assert decide(quiet) == [Status.COMMITTED, [2]]
    assert answer(quiet, end(quiet))[0] == Status.DONE
    assert values(quiet) == [b"2", b"2"]


def test_case_3_the_commit_is_under_way(quiet: Pair, change: Change) -> None:
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    assert decide(quiet) == [Status.COMMITTED, [2]]
    change.begin()
    ended = end(quiet)
    change.finish()
    assert answer(quiet, ended)[0] == Status.DONE
    # A repeated message changes nothing, at whatever owner it arrives.
    assert answer(quiet, end(quiet))[0] == Status.DONE
    assert answer(quiet, prepare(quiet))[0] == Status.OVER
    assert values(quiet) == [b"2", b"2"]


def test_case_4_the_commit_is_under_way_and_the_originator_is_dead(quiet: Pair, change: Change) -> None:
    quiet.left = True
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    assert decide(quiet) == [Status.COMMITTED, [2]]
    change.all()
    quiet.run(5.0)
    assert values(quiet) == [b"2", b"2"]
    assert decide(quiet)[0] == Status.COMMITTED
    assert values(quiet) == [b"2", b"2"]


def test_the_originator_is_dead_before_it_decided(quiet: Pair, change: Change) -> None:
    quiet.left = True
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    change.all()
    quiet.run(5.0)
    assert values(quiet) == [b"1", b"1"]
    assert decide(quiet)[0] == Status.ABORTED
    assert answer(quiet, prepare(quiet))[0] == Status.OVER
    assert values(quiet) == [b"1", b"1"]


def test_the_coordinator_gets_another_owner(quiet: Pair) -> None:
    """Its outcome is in the log, like all else; the originator dies with it."""
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    assert decide(quiet) == [Status.COMMITTED, [2]]
    quiet.run(0.3)
    quiet.members[2].crash(power_lost=True)
    quiet.members[2].start()
    quiet.publish()
    quiet.run(6.0)
    assert values(quiet) == [b"2", b"2"]


def test_all_restart_with_a_lock(quiet: Pair) -> None:
    quiet.left = True
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    for member in quiet.members:
        member.crash(power_lost=True)
    for member in quiet.members:
        member.start()
    quiet.publish()
    reads = send(quiet, MOVED, [b"GET", KEYS[MOVED]])
    assert answer(quiet, reads) == b"1", "it was aborted by asking"
    assert decide(quiet)[0] == Status.ABORTED


def test_a_coordinator_without_its_data_does_not_guess(quiet: Pair) -> None:
    """The name of its data is another one: the transaction is in doubt, and a mark changes nothing."""
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    other = command(ASK, AskMessage(quiet.id, b"the data before"))
    assert ask(quiet, COORDINATOR, other)[0] == Status.UNKNOWN
    assert ask(quiet, COORDINATOR, command(MARK, IdMessage((quiet.id[0], quiet.id[1] + 1, 0)))) == 0
    assert ask(quiet, COORDINATOR, other)[0] == Status.UNKNOWN


@pytest.mark.parametrize("restart", [False, True])
def test_a_coordinator_with_an_older_copy_does_not_guess(
    quiet: Pair, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """A user accepts a copy that no row named any more: the outcome is lost with what came after it."""
    quiet.left, test = True, "tests.member.serving.test_moving_participants"
    prepared, decided = part(quiet, MOVED, PREPARE), part(quiet, COORDINATOR, DECIDE)
    monkeypatch.setattr(f"{test}.COORDINATING", m.Row(COORDINATOR, 2, (2,)))
    quiet.row = m.Row(MOVED, quiet.row.version + 1, (0, 3))
    quiet.store(0)
    assert answer(quiet, send(quiet, MOVED, prepared)) == [Status.PREPARED, [2]]
    assert ask(quiet, COORDINATOR, decided) == [Status.COMMITTED, [2]]
    quiet.members[2].crash()
    quiet.dead = (2,)
    monkeypatch.setattr(f"{test}.COORDINATING", m.Row(COORDINATOR, 4, (1,)))
    quiet.publish(member_list_version=2)
    if restart:
        quiet.members[1].crash(power_lost=True)
        quiet.members[1].start()
        quiet.publish(member_list_version=2)
    quiet.run(5.0)
    question = command(ASK, AskMessage(quiet.id, b"name"))
    assert answer(quiet, send(quiet, COORDINATOR, question, through=0))[0] == Status.UNKNOWN
    (facts,) = transaction_list(quiet.members[0].node).transactions
    assert facts.in_doubt
    again = send(quiet, COORDINATOR, command(HISTORY, b"other"), through=0)
    assert answer(quiet, again) == b"accepted/4"


def doubtful(quiet: Pair) -> str:
    """Prepare a transaction that counts on other data of the coordinator; its name."""
    quiet.left = True
    commands = Transaction([], [[b"INCR", KEYS[MOVED]]])
    message = PartMessage(GONE, COORDINATOR, b"the data before", [MOVED, COORDINATOR], commands)
    assert ask(quiet, MOVED, command(PREPARE, message)) == [Status.PREPARED, [2]]
    return text_of_id(TxId(*GONE))


@pytest.mark.parametrize(("verdict", "value"), [("commit", b"2"), ("abort", b"1")])
def test_a_user_ends_what_is_in_doubt_and_nothing_else(quiet: Pair, verdict: str, value: bytes) -> None:
    name = doubtful(quiet)
    owner = quiet.members[0]
    (facts,) = transaction_list(owner.node).transactions
    assert (facts.in_doubt, facts.live, facts.keys, facts.participants) == (False, False, 1, (0, 1))
    with pytest.raises(Refused, match="ends by itself"):
        owner.do(lambda: resolve(owner.node, name, verdict))
    reads = held(quiet, b"GET", KEYS[MOVED])
    quiet.run(4.0)
    (facts,) = transaction_list(owner.node).transactions
    assert (facts.transaction, facts.partition, facts.coordinator, facts.in_doubt) == (name, 0, 1, True)
    assert b"stele_transactions_in_doubt 1.0" in Metrics(owner.node).text(0)
    assert owner.exchange().in_doubt == 1
    for wrong in ("guess", ""):
        with pytest.raises(BadInput, match="commit or abort"):
            owner.do(lambda wrong=wrong: resolve(owner.node, name, wrong))  # type: ignore[misc]
    assert owner.do(lambda: resolve(owner.node, name, verdict)) == [MOVED]
    assert answer(quiet, reads) == value
    assert transaction_list(owner.node).transactions == ()
    assert b"stele_transactions_in_doubt 0.0" in Metrics(owner.node).text(0)
    with pytest.raises(Refused, match="has no locks"):
        owner.do(lambda: resolve(owner.node, name, verdict))


def test_in_doubt_is_known_again_after_a_change_of_the_owner(quiet: Pair, change: Change) -> None:
    doubtful(quiet)
    change.all()
    quiet.run(5.0)
    owner = quiet.members[change.row.replicas[0] or 0]
    (facts,) = transaction_list(owner.node).transactions
    assert facts.in_doubt


def test_a_tablet_whose_intents_contradict_each_other_goes_offline(
    quiet: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    real = participant.stored_intents

    def twice(*args: Any) -> Iterator[Any]:
        for id, intent in real(*args):
            yield from ((id, intent), (id._replace(number=99), intent))

    monkeypatch.setattr(participant, "stored_intents", twice)
    change = Change(quiet, "swap")
    change.all()
    assert "locked by two transactions" in quiet.members[1].replica.broken


def test_outcomes_go_when_a_mark_covers_them(quiet: Pair) -> None:
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    assert decide(quiet) == [Status.COMMITTED, [2]]
    assert answer(quiet, end(quiet))[0] == Status.DONE
    quiet.run(1.0)
    replica = quiet.members[0].replica
    assert replica.keyspaces[OUTCOMES][0] == 1
    mark = command(MARK, IdMessage((*quiet.id[:2], 2)))
    assert [ask(quiet, partition, mark) for partition in (MOVED, COORDINATOR)] == [0, 0]
    quiet.run(1.0)
    for member in (quiet.members[0], quiet.members[2]):
        for each in member.node.replicas.values():
            assert each.keyspaces.get(OUTCOMES, (0, 0))[0] == 0
    assert answer(quiet, prepare(quiet))[0] == Status.OVER
    assert decide(quiet)[0] == Status.OVER
    assert values(quiet) == [b"2", b"2"]


def run_through(quiet: Pair, index: int) -> Any:
    """Begin a whole transaction at a member, which adds 1 to both keys."""
    member = quiet.members[index]
    parts = {partition: PartitionPart([], [[b"INCR", key]]) for partition, key in KEYS.items()}

    async def begin() -> list[Any]:
        return [member.process.loop.create_task(member.node.transactions.run(KEYSPACE, parts, None))]

    return member.do(begin)[0]


def outcomes(quiet: Pair) -> int:
    running = [member for member in quiet.members if member.index not in quiet.dead]
    return sum(
        each.keyspaces.get(OUTCOMES, (0, 0))[0]
        for member in running
        for each in member.node.replicas.values()
    )


def test_an_originator_tells_which_of_its_transactions_are_over(quiet: Pair) -> None:
    kept = []
    for number in (2, 3, 4, 5, 6, 7):
        done = run_through(quiet, 3)
        quiet.run(0.3)
        assert done.result() == {0: [number], 1: [number]}
        kept.append(outcomes(quiet))
    assert max(kept) > 0, kept
    quiet.run(15.0)
    assert outcomes(quiet) == 0


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2])
def test_what_an_originator_left_is_ended_and_forgotten_once_it_is_back(quiet: Pair, seconds: float) -> None:
    """It dies at some moment of a transaction."""
    run_through(quiet, 3)
    quiet.run(seconds)
    quiet.members[3].crash(power_lost=True)
    quiet.dead = (3,)
    quiet.run(6.0)
    low, high = values(quiet)
    assert low == high
    quiet.dead = ()
    quiet.members[3].start()
    quiet.publish()
    quiet.run(30.0)
    assert outcomes(quiet) == 0
    assert values(quiet) == [low, high]
    assert run_through(quiet, 3)
    quiet.run(0.5)
    assert values(quiet) == [b"%d" % (int(low) + 1)] * 2


def held(quiet: Pair, *args: bytes) -> Any:
    """A request for the locked key; it waits."""
    outcome = send(quiet, MOVED, list(args))
    quiet.run(0.5)
    assert not outcome.done()
    return outcome


def test_requests_for_a_locked_key_wait_and_no_others(quiet: Pair) -> None:
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    key = KEYS[MOVED]
    waiting = [
        held(quiet, b"GET", key),
        held(quiet, b"SET", key, b"7"),
        held(quiet, b"STELE.ONCE", b"me", b"1", b"INCR", key),
    ]
    assert ask(quiet, MOVED, [b"SET", key + b"{" + key + b"}", b"v"]) == OK
    assert answer(quiet, end(quiet, Verdict.ABORT))[0] == Status.DONE
    assert [answer(quiet, each) for each in waiting] == [b"1", OK, 8]


def test_a_lock_is_waited_for_as_long_as_for_an_owner(quiet: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stele.member.serving.recovery.ASK_SECONDS", 100.0)
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    reads = send(quiet, MOVED, [b"GET", KEYS[MOVED]])
    failure = answer(quiet, reads, 16.5)
    assert failure.code == "TRYAGAIN"
    assert "locked" in failure.text


@pytest.mark.parametrize("owner", [1, 2])
def test_what_may_have_run_once_before_a_lock_is_not_told_as_undone(
    quiet: Pair, monkeypatch: pytest.MonkeyPatch, owner: int
) -> None:
    """Its owner died with the answer; the next one, here or elsewhere, had the key locked already."""
    monkeypatch.setattr("stele.member.serving.recovery.ASK_SECONDS", 100.0)
    monkeypatch.setitem(ROWS, "promotion", (owner, 3 - owner))
    prepared, change = part(quiet, MOVED, PREPARE), Change(quiet, "promotion")
    with monkeypatch.context() as patch:
        patch.setattr(ForwardedRequests, "_answer", lambda *_: None)
        once = send(quiet, MOVED, [b"STELE.ONCE", b"me", b"1", b"INCR", KEYS[MOVED]])
        quiet.run(0.5)
        change.begin()
        quiet.run(0.5)
    blocked, kept, member = send(quiet, MOVED, prepared, through=3), list[Request](), quiet.members[2]
    with monkeypatch.context() as patch:
        patch.setattr(RequestRouter, "_dispatch", keeping(once, kept))
        change.finish()
        assert answer(quiet, blocked) == [Status.PREPARED, [3]]

    async def again() -> None:
        (request,) = kept
        request.deadline = member.process.loop.time() + WAIT_SECONDS_MAX
        member.node.router.submit(request)

    member.do(again)
    assert isinstance(answer(quiet, once, 20.0), Uncertain)
    assert answer(quiet, end(quiet, Verdict.ABORT))[0] == Status.DONE
    assert ask(quiet, MOVED, [b"GET", KEYS[MOVED]]) == b"2", "it was done"


def keeping(outcome: Any, kept: list[Request]) -> Callable[[RequestRouter, Request], bool]:
    """A request gets no further: it is kept here."""
    real = RequestRouter._dispatch

    def dispatch(self: RequestRouter, request: Request) -> bool:
        if request.future is not outcome:
            return real(self, request)
        kept.append(request)
        return True

    return dispatch


def clear(quiet: Pair, keyspace: bytes) -> Callable[[], bool]:
    member = quiet.members[2]
    made: list[Any] = []

    async def begin() -> None:
        made.append(member.process.loop.create_task(member.node.router.clear(MOVED, keyspace)))

    member.do(begin)
    return lambda: bool(made[0].done())


def test_clearing_waits_for_locks_of_its_keyspace(quiet: Pair) -> None:
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    cleared, other = clear(quiet, KEYSPACE), clear(quiet, b"other")
    quiet.run(0.5)
    assert (cleared(), other()) == (False, True)
    assert decide(quiet) == [Status.COMMITTED, [2]]
    assert answer(quiet, end(quiet))[0] == Status.DONE
    quiet.run(0.5)
    assert cleared()
    assert values(quiet) == [None, b"2"]


def test_a_load_is_refused_while_keys_of_its_keyspace_are_locked(quiet: Pair) -> None:
    """Its rows would be under the changes that were promised."""
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    owner = quiet.members[0]
    for keyspace, code in ((KEYSPACE, "BUSY"), (b"other", "NOT_STAGED")):
        order = LoadOrder(quiet.row.version, (0, 1, 2), keyspace.decode(), 1, 1, 0)
        with pytest.raises(Refused) as refused:
            owner.do(lambda order=order: owner.node.loads.apply("load-1", MOVED, order))  # type: ignore[misc]
        assert refused.value.code == code


def test_a_decision_that_was_refused_stays_refused(quiet: Pair) -> None:
    name = ask(quiet, COORDINATOR, command(HISTORY, b"name"))
    watched = Transaction([(KEYSPACE, KEYS[COORDINATOR], b"not its fingerprint")], [])
    refused = command(DECIDE, PartMessage(quiet.id, COORDINATOR, name, [MOVED, COORDINATOR], watched))
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    assert ask(quiet, COORDINATOR, refused) == [Status.REFUSED, None]
    assert decide(quiet)[0] == Status.ABORTED
    assert answer(quiet, end(quiet, Verdict.ABORT))[0] == Status.DONE
    assert values(quiet) == [b"1", b"1"]


def test_nothing_is_prepared_while_the_cluster_is_passive_and_what_was_promised_is_done(quiet: Pair) -> None:
    assert answer(quiet, prepare(quiet)) == [Status.PREPARED, [2]]
    assert decide(quiet) == [Status.COMMITTED, [2]]
    quiet.publish(state=m.ClusterState.PASSIVE)
    assert answer(quiet, end(quiet))[0] == Status.DONE
    assert values(quiet) == [b"2", b"2"]
    other = PartMessage(
        (*quiet.id[:2], 2),
        COORDINATOR,
        b"name",
        [MOVED, COORDINATOR],
        Transaction([], [[b"GET", KEYS[MOVED]]]),
    )
    status, failure = ask(quiet, MOVED, command(PREPARE, other))
    assert (status, failure.code) == (Status.REFUSED, "CLUSTER_PASSIVE")


def test_an_unknown_message_is_an_error_and_nothing_else(quiet: Pair) -> None:
    for args in ([b"STELE.TX"], command(b"guess", b""), command(END, b"garbage")):
        assert ask(quiet, MOVED, args).code == "ERR"
    assert not isinstance(values(quiet)[0], Uncertain)
