"""Bugs planted in plans, in moves of users and in restarts of members."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from stele.core.control import decide
from stele.core.control.progress import RebalancePhase
from stele.core.control.rebalance import planner, user_plans
from stele.core.control.restarts import planned_stops, rolling_update
from stele.core.control.state import State
from stele.core.table.ids import MemberIndex
from tests.simulation.mutants.plant import Mutants


def plans_end_first() -> AbstractContextManager[Any]:
    """What a row lacks is planned when everything that was planned before is done."""
    return patch.object(planner, "_short", lambda state, seen: False)


def swaps_before_all_know_them() -> AbstractContextManager[Any]:
    """Owners are exchanged with backups whatever the features are."""
    return patch.object(planner, "_possible", lambda state, plan: plan)


def restarted_before_it_is_empty() -> AbstractContextManager[Any]:
    """A member counts as emptied as soon as it is to stop."""
    real = decide.empty_stopping

    def empty_stopping(state: State, observation: Any) -> None:
        real(state, observation)
        state.stops.may_stop = frozenset(state.stops.since)

    return patch.object(decide, "empty_stopping", empty_stopping)


def the_next_restarts_at_once() -> AbstractContextManager[Any]:
    """A member that was restarted counts as back as soon as it answers, whatever copies are missing."""
    stack = ExitStack()
    stack.enter_context(patch.object(rolling_update, "_unsettled", lambda *_: ""))
    stack.enter_context(patch.object(rolling_update, "_is_needed", lambda *_: False))
    stack.enter_context(patch.object(rolling_update, "_lacking", lambda *_: 0))
    return stack


def a_stop_is_never_over() -> AbstractContextManager[Any]:
    """A member that announced a stop counts as about to stop for as long as the master leads."""
    real = planned_stops._stopping

    def stopping(state: State, observation: Any) -> frozenset[MemberIndex]:
        return real(state, observation) | (state.stops.since.keys() & state.table.members.keys())

    return patch.object(planned_stops, "_stopping", stopping)


def moves_taken_for_done() -> AbstractContextManager[Any]:
    """A move of a user counts as done once nothing of it is under way."""
    return patch.object(user_plans, "_satisfied", lambda state, move: True)


def what_is_cancelled_never_ends() -> AbstractContextManager[Any]:
    """A plan of a user counts as busy for ever once it is cancelled."""
    real = user_plans._busy

    def busy(state: State, progress: Any) -> bool:
        return progress.phase is RebalancePhase.CANCELLING or real(state, progress)

    return patch.object(user_plans, "_busy", busy)


REBALANCES: Mutants = {
    swaps_before_all_know_them: ("mixed", 102, "nothing beyond the features"),
    plans_end_first: ("plans", 1, "missing copies do not wait for a plan"),
    moves_taken_for_done: ("moves", 0, "moves are done before they are said to be"),
    what_is_cancelled_never_ends: ("moves", 0, "safe, balanced and at rest in the end"),
    a_stop_is_never_over: ("planned", 0, "safe, balanced and at rest in the end"),
    restarted_before_it_is_empty: ("updates", 0, "only emptied members restart"),
    the_next_restarts_at_once: ("updates", 7, "one member restarts, and every other copy is there"),
}
