"""Rows that are agreed to share the write of their shard, and wait no longer than is stated."""

from stele.core.control.failure_detector import MemberLiveness, MemberObject, Timing
from stele.core.control.migration_queue import Queues
from stele.core.control.operations.move import MigrationOperation, Step, begin
from stele.core.control.rebalance.scheduler import FROZEN_GATHER_SECONDS, STORE_GATHER_SECONDS, follow, start
from stele.core.control.state import Observation, State
from stele.core.placement.migration import Migration, clear, move
from stele.core.placement.plan import Plan
from stele.core.table.table import SHARD_PARTITIONS, Member, Partition, PartitionTable
from tests.fakes.spec import desired_spec

ROW = Partition(1, (0, 1))
START = 100.0
OTHER_SHARD = SHARD_PARTITIONS
DESIRED = desired_spec(4, 2, Timing(1.0, 3.0, 30.0), parallel_per_member=1)


def leadership(*running: MigrationOperation) -> State:
    """All members answer."""
    members = {index: Member(index, f"demo-{index}", f"uuid-{index}", "10.0.0.1") for index in range(4)}
    state = State(1, PartitionTable((ROW,) * (SHARD_PARTITIONS + 4), members), 1, 4, START, recovered=True)
    for operation in running:
        state.operations.begin(operation)
    answer(state, START)
    return state


def answer(state: State, now: float) -> None:
    for index in state.table.members:
        liveness = state.membership.liveness.setdefault(
            index, MemberLiveness(index, START, MemberObject(index, f"demo-{index}"))
        )
        liveness.answered_seconds = now


def under_way(partition: int, step: Step, migration: Migration | None = None) -> MigrationOperation:
    running = begin(f"m{partition}", migration or move(partition, 1, 1, 2), ROW, START)
    running.step = step
    return running


def staged(state: State, seconds: float) -> list[int]:
    """What is to be stored so long after the rows were agreed to."""
    state.table.clear_staged()
    follow(state, Observation(START + seconds, DESIRED, ()))
    return sorted(state.table.staged)


def test_rows_wait_for_others_of_their_shard_that_are_about_to_be_agreed() -> None:
    coming = under_way(1, Step.ACCEPT)
    state = leadership(under_way(0, Step.STORE), coming, under_way(OTHER_SHARD, Step.STORE))
    assert staged(state, 0.01) == [OTHER_SHARD]
    coming.step = Step.STORE
    assert staged(state, 0.02) == [0, 1, OTHER_SHARD]


def test_rows_wait_for_a_stated_time_at_most() -> None:
    state = leadership(under_way(0, Step.STORE), under_way(1, Step.HAND_OVER))
    assert staged(state, STORE_GATHER_SECONDS - 0.01) == []
    assert staged(state, STORE_GATHER_SECONDS) == [0]


def test_a_row_that_clients_wait_for_waits_a_moment_only() -> None:
    others = under_way(0, Step.STORE), under_way(1, Step.ACCEPT)
    state = leadership(*others, under_way(2, Step.STORE, move(2, 0, 0, 2)))
    assert staged(state, FROZEN_GATHER_SECONDS - 0.001) == []
    assert staged(state, FROZEN_GATHER_SECONDS) == [0, 2]


def test_nothing_waits_for_migrations_that_are_far_from_agreed() -> None:
    state = leadership(under_way(0, Step.STORE), under_way(1, Step.COPY), under_way(2, Step.CATCH_UP))
    assert staged(state, 0.0) == [0]


def test_nothing_waits_once_a_member_of_it_is_gone() -> None:
    state = leadership(under_way(0, Step.STORE), under_way(1, Step.ACCEPT))
    owner = state.membership.liveness[0]
    owner.answered_seconds, owner.since = START - 60, START - 60
    assert staged(state, 0.0) == [0]


def test_what_only_waits_to_be_stored_keeps_nobody_busy() -> None:
    for step, begun in ((Step.ACCEPT, set()), (Step.STORE, {3})):
        state = leadership(under_way(0, step))
        state.rebalance.queues = Queues.of(Plan(migrations=(move(3, 1, 1, 2),)), state.table.partitions)
        start(state, Observation(START, DESIRED, ()))
        assert state.operations.migrations.keys() - {0} == begun


def test_clearing_counts_until_it_is_stored() -> None:
    """Nobody is asked before, so all of a plan would begin at once."""
    state = leadership(under_way(0, Step.STORE, clear(0, 1, 1)))
    state.rebalance.queues = Queues.of(Plan(migrations=(clear(3, 1, 1),)), state.table.partitions)
    start(state, Observation(START, DESIRED, ()))
    assert state.operations.migrations.keys() == {0}
