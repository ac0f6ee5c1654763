"""A row that lacks copies does not wait for the rest of a plan (docs/internals/operator.md, "Plans")."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from stele.core.control.rebalance.planner import PLAN_PAUSE_SECONDS
from stele.core.control.state import State
from stele.core.placement.plan import plan
from stele.core.table.table import Partition, PartitionTable

if TYPE_CHECKING:
    from tests.simulation.world import World

RULE = "missing copies do not wait for a plan"
LATE_DECISIONS = 5
"""So many decisions, in more than PLAN_PAUSE_SECONDS, a copy may be missing that nothing is planned for: a
master that stands still decides nothing.
"""

Check = Callable[..., None]


class Plans:
    """Looks at what the master has planned, after the last plan that it made.

    `_late` has, for each row that lacks a copy, the master's time when that was seen first, and how many
    decisions were made since.
    """

    def __init__(self, world: "World", check: Check) -> None:
        self.world, self._check = world, check
        self._of: tuple[State | None, float] = (None, 0.0)
        self._decided = 0.0
        self._late: dict[int, tuple[float, int]] = {}

    def look(self) -> None:
        master = self.world.master
        state = None if master is None else master.state
        if state is None or not _may_plan(state):
            self._late = {}
            return
        now, of = state.decided_seconds, (state, state.rebalance.planned_seconds)
        if of != self._of:
            self._of, self._late = of, {}
        elif now == self._decided:
            return
        self._decided = now
        before = self._late
        self._late = {}
        for number in _addable(state, _unplanned(state, now)):
            since, decisions = before.get(number, (now, 0))
            self._late[number] = since, decisions + 1
            late = now - since > PLAN_PAUSE_SECONDS and decisions >= LATE_DECISIONS
            text = "{} waits since {:.1f} s for {} migrations of other partitions"
            shown = state.table.partitions[number], now - since, len(state.rebalance.queues)
            self._check(RULE, not late, text, *shown, partition=number)


def _may_plan(state: State) -> bool:
    """Whether a plan is under way, and nothing forbids another. While a member is away some rows wait for it;
    which, each plan chooses.
    """
    waits = (
        state.operations.promotions
        or state.failover.shrinking
        or state.rebalance.cancelled
        or state.operations.change.state != "Active"
    )
    if waits or not state.recovered or not state.rebalance.queues or not state.rebalance.plan_key:
        return False
    members, *_ = state.rebalance.plan_key
    return not any(each.away for each in members)  # type: ignore[attr-defined]


def _unplanned(state: State, now: float) -> list[int]:
    """Rows that lack copies and wait for nothing that the master has planned, nor for a pause."""
    _, replicas, *_ = state.rebalance.plan_key
    return [
        number
        for number, row in enumerate(state.table.partitions)
        if 0 < len(row.members) < replicas  # type: ignore[operator]
        and not any(
            number in some
            for some in (state.operations.migrations, state.rebalance.queues.waiting, state.table.staged)
        )
        and number not in state.rebalance.stopped
        and state.rebalance.retries.pauses.get(number, now) <= now
    ]


def _addable(state: State, numbers: list[int]) -> list[int]:
    """Those of them that a plan for the same situation has a copy for."""
    if not numbers:
        return []
    rows = list(state.table.partitions)
    for number, running in state.operations.migrations.items():
        rows[number] = Partition(running.version, running.result)
    members, replicas, *_ = state.rebalance.plan_key
    made = plan(PartitionTable(tuple(rows), state.table.members), members, replicas)  # type: ignore[arg-type]
    added = {each.partition for each in made.migrations if each.adds}
    return [number for number in numbers if number in added]
