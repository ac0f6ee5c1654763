"""Transactions across partitions: all interleavings of messages and faults, and bugs that they find."""

import pytest

from stele.core.kv import two_phase
from stele.core.kv.two_phase import (
    Intent,
    Locks,
    Outcome,
    Status,
    Step,
    TxId,
    Verdict,
    Write,
)
from stele.errors import Corrupt
from tests.core.kv.two_phase_world import ID, KEY, Faults, Partition, ViolationError, World, explore

ALL = {
    "repeated": Faults(repeats=1, writes=1, deaths=1),
    "cut": Faults(cuts=2, writes=1),
    "cut and dead": Faults(cuts=1, deaths=1, restarts=1),
    "watched": Faults(cuts=1, writes=2),
    "cleared": Faults(clears=1, restarts=1, deaths=1),
    "asked early": Faults(early_asks=1, cuts=1, repeats=1),
    "reset": Faults(resets=1, deaths=1),
    "lost": Faults(losses=1, deaths=1, repeats=1),
    "lost and cut": Faults(losses=1, cuts=1),
    "refused": Faults(refusals=1, cuts=1, repeats=1),
}


THREE = {
    "repeated by three": Faults(repeats=1, deaths=1),
    "cut by three": Faults(cuts=2, writes=1),
    "watched by three": Faults(cuts=1, writes=2),
    "restarted by three": Faults(restarts=1, deaths=1),
    "reset by three": Faults(resets=1, deaths=1),
    "lost by three": Faults(losses=1, deaths=1),
}


@pytest.mark.parametrize("name", [*ALL, *THREE])
def test_all_or_nothing_whatever_happens(name: str) -> None:
    faults = {**ALL, **THREE}[name]
    states, ends = explore(World.new(3 if name in THREE else 2, faults))
    assert states > 50
    assert "COMMITTED 1" in ends


def test_without_faults_it_commits() -> None:
    assert explore(World.new(3, Faults()))[1] == {"COMMITTED 1"}


def test_all_ends_are_reached() -> None:
    ends = explore(World.new(2, Faults(cuts=2, deaths=1, writes=1)))[1]
    assert {"COMMITTED 1", "ABORTED 0", "UNCERTAIN 0", "UNCERTAIN 1", "nothing 0", "nothing 1"} <= ends


# -- planted bugs


def forgotten_early(patch: pytest.MonkeyPatch) -> None:
    """Outcomes are removed although participants do not know them."""
    patch.setattr("tests.core.kv.two_phase_world.is_forgettable", lambda id, outcome, mark: True)


def repeated_prepare(patch: pytest.MonkeyPatch) -> None:
    """A Prepare that comes after the end is taken."""
    patch.setattr(two_phase, "settled", lambda ledger, id: False)


def guessing_coordinator(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that lost its data says that there was no decision."""

    def ask(ledger: two_phase.Ledger, id: TxId, history: bytes) -> Step:
        return real(ledger, id, ledger.history)

    real = two_phase.ask
    patch.setattr(two_phase, "ask", ask)


def clear_beside_an_intent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "may_clear", lambda world, part: True)


def locks_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    real = World.restart

    def restart(world: World, number: int) -> None:
        real(world, number)
        world.partitions[number].locked = False

    patch.setattr(World, "restart", restart)


def decision_in_memory(patch: pytest.MonkeyPatch) -> None:
    real = World.restart

    def restart(world: World, number: int) -> None:
        real(world, number)
        world.partitions[number].outcomes.clear()

    patch.setattr(World, "restart", restart)


def presumed_abort_not_logged(patch: pytest.MonkeyPatch) -> None:
    real = two_phase.ask
    patch.setattr(two_phase, "ask", lambda *args: real(*args)._replace(writes=()))


def lock_released_at_prepare(patch: pytest.MonkeyPatch) -> None:
    real = World.run

    def run(world: World, send: two_phase.Send) -> Step:
        step = real(world, send)
        world.partitions[send.partition].locked = False
        return step

    patch.setattr(World, "run", run)


def refusal_not_logged(patch: pytest.MonkeyPatch) -> None:
    """A watched value that went 0, 10, 0: the first Decide is refused, a repeated one is not."""
    real = two_phase.decide

    def decide(*args: object) -> Step:
        step = real(*args)  # type: ignore[arg-type]
        return step._replace(writes=()) if step.status is Status.REFUSED else step

    patch.setattr(two_phase, "decide", decide)


def end_not_remembered(patch: pytest.MonkeyPatch) -> None:
    real = two_phase.end

    def end(*args: object) -> Step:
        step = real(*args)  # type: ignore[arg-type]
        return step._replace(writes=tuple(each for each in step.writes if each.of is Intent))

    patch.setattr(two_phase, "end", end)


def guessing_participant(patch: pytest.MonkeyPatch) -> None:
    """A participant that knows no verdict says that there was none."""
    patch.setattr(two_phase, "recall", lambda ledger, id: Step(Status.ABORTED))


def nobody_recalled(patch: pytest.MonkeyPatch) -> None:
    """What others know is not asked for, when the coordinator has lost its data."""
    patch.setattr(World, "recalled", lambda world, number: Status.UNKNOWN)


def lost_part_not_counted(patch: pytest.MonkeyPatch) -> None:
    real = two_phase.end
    patch.setattr(two_phase, "end", lambda *args: real(*args)._replace(status=Status.DONE))


def marked_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """What the originator can do nothing about is taken for over."""
    patch.setattr(two_phase.Originator, "ended", property(lambda driver: driver.over))


BUGS = {
    forgotten_early: Faults(cuts=1, deaths=1),
    repeated_prepare: Faults(repeats=1),
    guessing_coordinator: Faults(resets=1, deaths=1),
    clear_beside_an_intent: Faults(clears=1),
    locks_not_rebuilt: Faults(restarts=1, writes=1),
    decision_in_memory: Faults(restarts=1, deaths=1),
    presumed_abort_not_logged: Faults(early_asks=1),
    lock_released_at_prepare: Faults(writes=1),
    refusal_not_logged: Faults(cuts=1, repeats=1, writes=2),
    end_not_remembered: Faults(repeats=1, deaths=1),
    guessing_participant: Faults(resets=1, deaths=1),
    nobody_recalled: Faults(resets=1, deaths=1),
    lost_part_not_counted: Faults(losses=1),
    marked_in_doubt: Faults(resets=1),
}


BY_THREE = (guessing_participant, nobody_recalled)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    participants = 3 if bug in BY_THREE else 2
    explore(World.new(participants, BUGS[bug]))
    bug(monkeypatch)
    with pytest.raises(ViolationError):
        explore(World.new(participants, BUGS[bug]))


# -- locks


def intent(*keys: bytes) -> Intent:
    return Intent(1, b"first", (0, 1), tuple((b"default", key) for key in keys), (), 0, 0)


def test_a_key_is_locked_for_all_but_its_transaction() -> None:
    locks = Locks([(ID, intent(b"k", b"l"))])
    assert not locks.are_free([KEY])
    assert locks.are_free([KEY], but=ID)
    assert locks.are_free([(b"other", b"k")])
    assert locks.any_in(b"default")
    assert locks.any_in(b"")
    assert not locks.any_in(b"other")
    locks.release(ID)
    assert locks.are_free([KEY])
    assert not locks.any_in(b"")
    assert (len(locks), locks.bytes) == (0, 0)
    locks.release(ID)


def test_two_intents_with_one_key_are_damage() -> None:
    other = TxId("other", 2, 3)
    with pytest.raises(
        Corrupt, match=r"b'k' of keyspace default .* originator\.1\.7 and other\.2\.3; .* copy"
    ):
        Locks([(ID, intent(b"k")), (other, intent(b"l", b"k"))])


def test_locks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = Locks([(ID, intent(b"k"))])
    assert not locks.full
    monkeypatch.setattr(two_phase, "INTENTS_MAX", 1)
    assert locks.full
    monkeypatch.undo()
    monkeypatch.setattr(two_phase, "INTENTS_BYTES_MAX", 8)
    assert locks.full


def test_a_mark_covers_earlier_numbers_and_incarnations() -> None:
    mark = two_phase.Mark(3, 5)
    covered = [(1, 9), (3, 4), (3, 5), (4, 0)]
    assert [two_phase.covers(mark, TxId("a", *each)) for each in covered] == [True, True, False, False]
    assert not two_phase.covers(None, ID)


def test_an_outcome_that_may_be_asked_for_is_kept() -> None:
    committed = Outcome(Verdict.COMMIT, (0,))
    assert not two_phase.is_forgettable(ID, committed, two_phase.Mark(2, 0))
    assert two_phase.is_forgettable(ID, committed, two_phase.Mark(1, 8))
    assert two_phase.is_forgettable(ID, Outcome(Verdict.COMMIT), two_phase.Mark(2, 0))


def test_all_participants_know() -> None:
    part = Partition(1, outcomes={ID: Outcome(Verdict.COMMIT, (0,), b"reply")})
    assert two_phase.told(part, ID).writes == (Write(ID, Outcome(Verdict.COMMIT), Outcome),)
    assert two_phase.told(Partition(1), ID) == Step(Status.DONE)
