"""A member hears that a migration was rolled back whatever else is stored: its owner may be frozen."""

import pytest

from stele.core.control.commands import Abort, ExchangeReply, LearnerReport, Reason, ReasonCode
from stele.core.control.gc import collect_garbage
from stele.core.control.operations import registry
from stele.core.control.operations.move import MigrationOperation, Step, begin
from stele.core.control.rebalance.scheduler import follow, note_stored
from stele.core.control.state import Observation, State
from stele.core.placement.migration import move
from stele.core.table.table import Partition
from stele.core.tablet.owner import LearnerState
from tests.core.control.test_gathered_writes import DESIRED, ROW, START, leadership

OWNER, NUMBER, OTHER = 0, 1, 2


def handing_over() -> tuple[State, MigrationOperation]:
    """A migration whose owner is frozen, and says so; its report is older than the table."""
    running = begin(f"m{NUMBER}", move(NUMBER, 0, 0, 2), ROW, START)
    running.step = Step.HAND_OVER
    state = leadership(running)
    frozen = LearnerReport(running.id, NUMBER, 2, LearnerState.IN_SYNC, 0)
    older = state.table.stamp.value
    state.apply({OTHER: Partition(2, ROW.replicas)})
    state.membership.liveness[OWNER].report = ExchangeReply(
        "OK", "", "uuid-0", "", 1, 1, older, 1, learners=(frozen,)
    )
    return state, running


def told(state: State) -> list[Abort]:
    found = collect_garbage(state, DESIRED, OWNER, state.membership.liveness[OWNER], START)
    assert all(isinstance(each, Abort) for each in found)
    return found  # type: ignore[return-value]


def test_a_frozen_owner_is_told_while_its_report_is_older_than_the_table() -> None:
    state, running = handing_over()
    assert told(state) == []
    running.abort(Reason(ReasonCode.BACKUP_BEHIND, "x"), START)
    follow(state, Observation(START, DESIRED, ()))
    assert told(state) == [Abort(running.id, NUMBER)]


def test_one_that_was_committed_is_not_aborted_by_an_older_report() -> None:
    state, running = handing_over()
    running.step = Step.STORE
    row = Partition(running.version, running.result)
    state.apply({NUMBER: row})
    note_stored(state, {NUMBER: row}, START)
    assert running.id not in state.operations
    assert told(state) == []


def test_only_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ROLLED_BACK_MAX", 2)
    state, running = handing_over()
    state.operations.note_rolled_back(running)
    for number in (3, 4):
        state.operations.note_rolled_back(begin(f"m{number}", move(number, 0, 0, 2), ROW, START))
    assert [state.operations.is_rolled_back(f"m{number}") for number in (NUMBER, 3, 4)] == [False, True, True]
