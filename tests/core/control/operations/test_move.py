"""One migration: which orders in which order, and what each answer leads to."""

from dataclasses import dataclass

import pytest

from stele.core.control.commands import Accept, AddLearner, HandOver, OpId, Result, Row, StartTabletCopy
from stele.core.control.operations.move import DECIDED, TRANSITIONS, MigrationOperation, Step, begin
from stele.core.placement.migration import clear, copy, move, shift_down, shift_up
from stele.core.table.table import Partition
from stele.errors import Refused


@dataclass
class Learner:
    state: str
    id: str = "m"
    partition: int = 0
    destination: int = 2
    lag: int = 0


def give(running: MigrationOperation, code: str = "OK", **fields: object) -> None:
    """Answer every order that is out."""
    for member, order in running.commands(0.0):
        running.on_result(member, order, Result(code, **fields), 1.0)  # type: ignore[arg-type]


def until(running: MigrationOperation, step: Step) -> MigrationOperation:
    """Bring a migration of a new owner to a step the good way."""
    learner = Learner("IN_SYNC")
    while running.step is not step:
        if running.step is Step.CATCH_UP:
            running.heard_from_owner(learner, 1.0)
        else:
            give(running, last=OpId(1, 7), generation=3)
    return running


def owner_move() -> MigrationOperation:
    return begin("m", move(0, 0, 0, 2), Partition(4, (0, 1)), 0.0)


def test_a_move_of_the_owner_takes_every_step() -> None:
    running = owner_move()
    assert running.commands(0.0) == [(2, StartTabletCopy("m", 0, 4, 0, "MOVE", (2, 1)))]
    give(running, generation=5)
    assert running.commands(0.0) == [(0, AddLearner("m", 0, 4, 2, "MOVE", (2, 1)))]
    give(running)
    assert running.commands(0.0) == []
    running.heard_from_owner(Learner("IN_SYNC"), 2.0)
    assert running.commands(0.0) == [(0, HandOver("m", 0))]
    give(running, last=OpId(4, 9))
    assert running.commands(0.0) == [(2, Accept("m", Row(0, 5, (2, 1)), OpId(4, 9)))]
    give(running)
    assert running.step is Step.STORE


def test_a_backup_is_accepted_without_hand_over() -> None:
    running = begin("m", copy(0, 1, 2), Partition(4, (0,)), 0.0)
    give(running)
    give(running)
    running.heard_from_owner(Learner("IN_SYNC"), 2.0)
    assert running.commands(0.0) == [(2, Accept("m", Row(0, 5, (0, 2)), None))]


def test_a_shift_up_behind_the_owner_only_needs_its_consent() -> None:
    running = begin("m", shift_up(0, 2, 2, 1), Partition(4, (0, None, 2)), 0.0)
    assert running.commands(0.0) == [(2, Accept("m", Row(0, 5, (0, 2)), None))]


def test_a_shift_down_makes_the_old_owner_a_backup() -> None:
    running = begin("m", shift_down(0, 0, 0, 1, 2), Partition(4, (0,)), 0.0)
    assert running.result == (2, 0)
    assert running.owner_changes


def test_a_shift_up_to_the_owner_s_place_is_a_promotion() -> None:
    with pytest.raises(Refused, match="promotion"):
        begin("m", shift_up(0, 1, 1, 0, 0), Partition(4, (0, 1)), 0.0)


def test_a_row_that_shrinks_is_confirmed_first() -> None:
    running = begin("m", clear(0, 1, 1), Partition(4, (0, 1)), 0.0)
    assert running.step is Step.CONFIRM
    assert running.commands(0.0) == []
    running.confirmed(1.0)
    assert running.step is Step.STORE
    running = begin("m", shift_up(0, 2, 2, 1, 1), Partition(4, (0, 1, 2)), 0.0)
    assert running.step is Step.CONFIRM
    assert running.commands(0.0) == []
    running.confirmed(1.0)
    assert [order for _, order in running.commands(0.0)] == [Accept("m", Row(0, 5, (0, 2)), None)]


def test_wait_sends_the_same_order_again() -> None:
    running = owner_move()
    before = running.commands(0.0)
    give(running, "WAIT", wait_ms=10)
    assert running.commands(0.0) == before


@pytest.mark.parametrize("step", [Step.START, Step.ATTACH, Step.HAND_OVER])
def test_a_refusal_before_the_commit_rolls_back(step: Step) -> None:
    running = until(owner_move(), step)
    give(running, "STALE_VERSION")
    assert running.step is Step.ABORTED
    assert running.reason.startswith("STALE_VERSION")


def test_a_refusal_of_the_commit_voids_the_version() -> None:
    running = until(owner_move(), Step.ACCEPT)
    give(running, "ILLEGAL_STATE")
    assert running.step is Step.VOID


@pytest.mark.parametrize("step", sorted(DECIDED, key=lambda each: each.value))
def test_nothing_aborts_once_the_destination_was_asked(step: Step) -> None:
    running = until(owner_move(), Step.ACCEPT)
    running.step = step
    running.abort("MEMBER_GONE", 2.0)
    running.note_incarnation(2, 1, "demo-0", 2.0)
    running.note_incarnation(2, 2, "demo-0", 2.0)
    assert running.step is step


@pytest.mark.parametrize("step", [Step.START, Step.ATTACH, Step.CATCH_UP, Step.HAND_OVER])
def test_a_side_that_restarts_before_the_commit_begins_anew(step: Step) -> None:
    running = until(owner_move(), step)
    running.note_incarnation(0, 1, "demo-0", 2.0)
    running.note_incarnation(0, 2, "demo-0", 2.0)
    assert running.step is Step.ABORTED


def test_a_learner_that_vanishes_is_missed_only_after_it_was_seen() -> None:
    running = until(owner_move(), Step.CATCH_UP)
    running.heard_from_owner(None, 2.0)
    assert running.step is Step.CATCH_UP
    running.heard_from_owner(Learner("PROBING"), 2.0)
    running.heard_from_owner(None, 3.0)
    assert running.step is Step.ABORTED


def test_no_step_outside_the_table_is_taken() -> None:
    for step in Step:
        for to in Step:
            running = owner_move()
            running.step = step
            if to in TRANSITIONS[step]:
                running.go(to, 1.0)
                assert running.step is to
            else:
                with pytest.raises(Refused, match="ILLEGAL_STATE"):
                    running.go(to, 1.0)
                assert running.step is step
