"""Small decisions: who goes, who is made, who copies, what starts."""

import pytest

from stele.core.control.migration_queue import Queues
from stele.core.control.operations.copy_session import Engine, choose_engine
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
