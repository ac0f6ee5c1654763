"""Small decisions: who goes, who is made, who copies, what starts, and a promotion's rules."""

import pytest

from stele.core.control.commands import Accept, Fence, OpId, Result, Row
from stele.core.control.migration_queue import Queues
from stele.core.control.operations.copy_session import Engine, choose_engine
from stele.core.control.operations.promotion import Promotion, Step
from stele.core.control.scaling import Candidate, leaving, missing, next_index
from stele.core.placement.migration import copy, move
from stele.core.placement.plan import Plan
from stele.core.table.table import Partition


def member(index: int, drain: bool = False, reachable: bool = True, lost: bool = False) -> Candidate:
    return Candidate(index, drain, reachable, lost)


@pytest.mark.parametrize(
    ("members", "wanted", "gone"),
    [
        ([member(0), member(1), member(2)], 3, set()),
        ([member(0), member(1), member(2)], 2, {2}),
        ([member(0, drain=True), member(1), member(2)], 2, {0}),
        ([member(0), member(1, reachable=False), member(2)], 2, {1}),
        ([member(0, drain=True), member(1, reachable=False), member(2)], 1, {0, 1}),
        ([member(0), member(1, lost=True), member(2)], 2, {1}),
    ],
)
def test_who_leaves(members: list[Candidate], wanted: int, gone: set[int]) -> None:
    assert leaving(members, wanted) == gone


def test_indexes_are_never_used_again() -> None:
    assert next_index([0, 1], 5) == 5
    assert next_index([0, 7], 5) == 8
    assert missing([member(0), member(1, lost=True)], 3, 5) == (5, 6)


@pytest.mark.parametrize(
    ("desired", "size", "warm", "problem", "failure", "engine"),
    [
        ("Auto", 100, False, "", "", Engine.DIRECT),
        ("Auto", 64 << 20, False, "", "", Engine.SPARK),
        ("Auto", 1 << 20, True, "", "", Engine.SPARK),
        ("Auto", 1 << 30, True, "not ready", "", Engine.DIRECT),
        ("Auto", 1 << 30, True, "", "NO_EXECUTORS", Engine.DIRECT),
        ("Spark", 0, False, "", "", Engine.SPARK),
        ("Spark", 0, False, "not ready", "", Engine.DIRECT),
        ("Direct", 1 << 40, True, "", "", Engine.DIRECT),
    ],
)
def test_who_copies(
    *, desired: str, size: int, warm: bool, problem: str, failure: str, engine: Engine
) -> None:
    chosen, reason = choose_engine(
        desired, size, 64 << 20, warm=warm, copier_problem=problem, spark_failure=failure
    )
    assert chosen is engine
    assert reason


def test_limits_count_source_destination_and_owner() -> None:
    rows = tuple(Partition(1, (0, 1)) for _ in range(6))
    queues = Queues.of(Plan(migrations=tuple(move(number, 1, 1, 2) for number in range(6))), rows)
    able = frozenset({0, 1, 2})
    begun = list(queues.startable(rows, [frozenset({0})], frozenset(), able, 3))
    assert [each.partition for each in begun] == [0, 1]
    assert len(queues) == 4


def test_missing_copies_go_first_and_what_does_not_fit_is_dropped() -> None:
    rows = (Partition(1, (0, 1)), Partition(3, (0,)), Partition(1, (2, 1)))
    queues = Queues.of(Plan(migrations=(move(0, 1, 1, 2), copy(1, 1, 2), move(2, 0, 0, 1))), rows)
    begun = list(queues.startable(rows, [], frozenset(), frozenset({0, 1, 2}), 9))
    assert [each.partition for each in begun] == [1, 0]
    assert len(queues) == 0


def fenced(lasts: dict[int, OpId]) -> Promotion:
    promotion = Promotion(3, Partition(4, (0, 1, 2)), 6, (1, 2), True, 0.0, "p")
    for index, last in lasts.items():
        promotion.on_result(index, Fence(3, 6, True), Result(last=last), 1.0)
    return promotion


def test_nobody_is_chosen_before_all_live_replicas_answered() -> None:
    promotion = fenced({1: OpId(4, 9)})
    assert [member for member, _ in promotion.commands(1.0)] == [2]


def test_the_longest_log_is_chosen_and_the_hottest_of_equals() -> None:
    assert fenced({1: OpId(4, 9), 2: OpId(4, 10)}).row == (2, 1)
    assert fenced({1: OpId(4, 9), 2: OpId(4, 9)}).row == (1, None, 2)
    orders = fenced({1: OpId(4, 9), 2: OpId(4, 10)}).commands(1.0)
    assert orders == [(2, Accept("p", Row(3, 6, (2, 1)), OpId(4, 10)))]


def test_a_lease_that_runs_is_waited_for() -> None:
    promotion = fenced({})
    promotion.on_result(1, Fence(3, 6, True), Result("WAIT", wait_ms=500), 1.0)
    assert [member for member, _ in promotion.commands(1.2)] == [2]
    assert [member for member, _ in promotion.commands(1.6)] == [1, 2]


def test_a_refused_fence_or_row_begins_anew() -> None:
    promotion = fenced({1: OpId(4, 9)})
    promotion.on_result(2, Fence(3, 6, True), Result("STALE_TERM"), 1.0)
    assert promotion.step is Step.OUTDATED
    agreed = fenced({1: OpId(4, 9), 2: OpId(4, 9)})
    (chosen, order) = agreed.commands(1.0)[0]
    agreed.on_result(chosen, order, Result(), 1.0)
    assert agreed.step is Step.AGREED
    assert agreed.commands(1.0) == []
