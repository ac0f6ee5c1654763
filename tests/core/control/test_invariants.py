"""A state that contradicts itself is found before anything is decided on it."""

from collections import Counter
from collections.abc import Callable

import pytest

from stele.core.control.decide import decide
from stele.core.control.invariants import BrokenInvariant
from stele.core.control.migration_queue import Queues
from stele.core.control.operations import cluster_state
from stele.core.control.operations.cluster_state import StateChange
from stele.core.control.operations.copy_session import CopySession
from stele.core.control.operations.move import MigrationOperation, Step, begin
from stele.core.control.operations.promotion import Promotion
from stele.core.control.progress import RebalancePhase, RebalanceProgress
from stele.core.control.state import Observation, State
from stele.core.placement.migration import Type, move
from stele.core.placement.plan import Plan
from stele.core.table.table import Partition, PartitionTable
from tests.fakes.spec import desired_spec

ROW = Partition(4, (0, 1))
PLAN = Plan((move(2, 0, 0, 2),))


def healthy() -> State:
    """A migration that waits for its copy, a promotion, and a plan with one migration that waits."""
    state = State(1, PartitionTable((ROW,) * 4, {}), 1, 3, 0.0, recovered=True)
    running = begin("m", move(0, 0, 0, 2), ROW, 0.0)
    running.step, running.session = Step.COPY, "s"
    state.operations.begin(running)
    state.operations.begin(Promotion(1, ROW, 6, (1,), True, 0.0, "p"))
    state.operations.begin(CopySession("s", 0, 2, {0: "m"}, {0: 1}, 0.0))
    state.rebalance.queues = Queues.of(PLAN, state.table.partitions)
    state.rebalance.progress = RebalanceProgress(1, PLAN, "", 0.0, 0, Counter())
    state.rebalance.counted_for["m"] = (state.rebalance.progress,)
    state.table.claimed[1] = 6
    return state


def migration(state: State) -> MigrationOperation:
    return state.operations.migrations[0]


def session(state: State) -> CopySession:
    return state.operations.sessions["s"]


def lose_an_id(state: State) -> None:
    migration(state).id = "other"


def lose_a_view(state: State) -> None:
    del state.operations._kinds[Promotion][1]


def store_another_row(state: State) -> None:
    state.table.partitions = (Partition(9, (2, 1)), *state.table.partitions[1:])


def take_partitions_away(state: State) -> None:
    state.table.partitions = state.table.partitions[:1]
    state.table.claimed.clear()


def forget_the_copy(state: State) -> None:
    session(state).partitions.clear()


def end_the_session(state: State) -> None:
    state.operations.end(session(state))


def close_without_members(state: State) -> None:
    session(state).close()
    session(state).closing.clear()


def lock_without_an_id(state: State) -> None:
    state.operations.change = StateChange("Active", "Passive", cluster_state.Step.LOCKING)


def commit_alone(state: State) -> None:
    committing = StateChange("Active", "Passive", cluster_state.Step.COMMITTING, "c")
    committing._asked = frozenset({0, 1})
    committing.agreed[0] = 1, (1, 1)
    state.operations.change = committing


def claim_what_is_stored(state: State) -> None:
    state.table.claimed[3] = ROW.version


def stage_beside_a_migration(state: State) -> None:
    state.table.staged[0] = Partition(6, (0, 1))


def lose_count_of_the_queues(state: State) -> None:
    state.rebalance.queues.left = 0


def count_for_what_is_over(state: State) -> None:
    state.operations.end(migration(state))
    state.operations.end(session(state))


def keep_a_plan_that_is_over(state: State) -> None:
    assert state.rebalance.progress is not None
    state.rebalance.progress.enter(RebalancePhase.DONE, 1.0)


def propose_in_a_plan_that_runs(state: State) -> None:
    state.rebalance.proposal = PLAN


def count_below_zero(state: State) -> None:
    assert state.rebalance.progress is not None
    state.rebalance.progress.done[Type.MOVE] -= 1


def copy_more_by_spark_than_at_all(state: State) -> None:
    state.rebalance.user_plans["mine"] = RebalanceProgress.of_user("mine", "uid", 0.0)
    state.rebalance.user_plans["mine"].bytes_by_spark = 1


BROKEN: dict[Callable[[State], None], str] = {
    lose_an_id: "other of partition 0 .* its id finds None",
    lose_a_view: "the views of 3 operations differ",
    store_another_row: "m of partition 0 began on",
    take_partitions_away: "p of partition 1 began on .*, not on None",
    forget_the_copy: "m waits for a copy that 's' does not make",
    end_the_session: "m waits for a copy that 's' does not make",
    close_without_members: "s waits for no member",
    lock_without_an_id: "LOCKING has no lock",
    commit_alone: "Passive is committed",
    claim_what_is_stored: "partition 3: 4 is claimed, 4 is stored",
    stage_beside_a_migration: "partition 0: .* is staged",
    lose_count_of_the_queues: "0 migrations of 1 partitions wait",
    count_for_what_is_over: r"plans count what is over: \['m'\]",
    keep_a_plan_that_is_over: "the present plan is over",
    propose_in_a_plan_that_runs: "what waits for approval is in no plan that does",
    count_below_zero: "counts of plan 1",
    copy_more_by_spark_than_at_all: "counts of plan mine",
}


def test_a_healthy_state_passes() -> None:
    healthy().check()


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_broken_state_is_refused(damage: Callable[[State], None]) -> None:
    state = healthy()
    damage(state)
    with pytest.raises(BrokenInvariant, match=BROKEN[damage]):
        state.check()


@pytest.mark.parametrize(
    ("step", "row", "made"),
    [
        (Step.ACCEPT, Partition(5, (2, 1)), False),
        (Step.STORE, Partition(5, (2, 1)), True),
        (Step.STORE, Partition(6, (2, 1)), False),
        (Step.VOID, Partition(5, ROW.replicas), False),
        (Step.VOID, Partition(6, ROW.replicas), True),
    ],
)
def test_a_migration_that_is_void_passes_the_row_that_may_be_accepted(
    step: Step, row: Partition, made: bool
) -> None:
    running = migration(healthy())
    running.step = step
    assert running.makes(row) is made


def test_a_row_is_staged_by_the_operation_that_changes_it() -> None:
    state = healthy()
    promotion = state.operations.promotions[1]
    promotion.step, promotion.chosen = type(promotion.step).AGREED, 1
    state.table.stage(1, Partition(promotion.term, promotion.row))
    state.check()
    state.table.stage(1, Partition(promotion.term + 1, promotion.row))
    with pytest.raises(BrokenInvariant, match=r"partition 1: .* is staged, not by p"):
        state.check()


def test_nothing_is_decided_on_a_broken_state() -> None:
    state = healthy()
    observation = Observation(1.0, desired_spec(3, 2), ())
    lose_a_view(state)
    with pytest.raises(BrokenInvariant, match="views"):
        decide(state, observation)
    state = healthy()
    state.table.staged[3] = Partition(5, (0, 1))
    with pytest.raises(BrokenInvariant, match="neither stored 1 rows nor dropped"):
        decide(state, observation)
    assert state.membership.liveness == {}, "what was observed is not taken in"
