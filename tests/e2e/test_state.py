"""What the API server says: at rest or why not, and moves over the lives of several plans."""

from copy import deepcopy
from typing import Any

import pytest

from e2e.demo.state import MoveTracker, unsafe_reason

SAFE: dict[str, Any] = {
    "metadata": {"generation": 2},
    "status": {
        "observedGeneration": 2,
        "members": {"ready": 3, "current": 3},
        "partitions": {"total": 271, "safe": 271},
        "migrations": {"active": 0, "waiting": 0},
        "conditions": [{"type": "Balanced", "status": "True", "reason": "AsDesired"}],
    },
}


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("observedGeneration",), 1, "newest spec"),
        (("members", "ready"), 2, "2 of 3 members ready"),
        (("members", "current"), 4, "of 4 members"),
        (("partitions", "safe"), 270, "270 of 271"),
        (("partitions", "total"), 0, "partitions safe"),
        (("migrations", "active"), 1, "1 migrations"),
        (("migrations", "waiting"), 2, "2 migrations"),
        (("conditions",), [], "not balanced"),
    ],
)
def test_each_thing_that_is_not_at_rest(path: tuple[str, ...], value: object, reason: str) -> None:
    cluster = deepcopy(SAFE)
    place = cluster["status"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert reason in unsafe_reason(cluster, 3)


def plan(
    name: str, phase: str, planned: int, done: int, *, copied: int = 0, mode: str = "Execute"
) -> dict[str, Any]:
    status = {"phase": phase, "planned": {"move": planned}, "done": {"move": done}, "bytesCopied": copied}
    return {"metadata": {"name": name}, "spec": {"mode": mode}, "status": status}


def test_moves_of_earlier_plans_do_not_count() -> None:
    tracker = MoveTracker([plan("a", "Done", 9, 9, copied=900)])
    tracker.observe([plan("a", "Done", 9, 9, copied=900), plan("b", "Running", 10, 4, copied=40)])
    moves = tracker.moves()
    assert (moves.planned.total(), moves.done.total(), moves.bytes_copied) == (10, 4, 40)
    assert moves.fraction_done == 0.4


def test_a_plan_that_was_given_up_counts_with_what_it_did() -> None:
    tracker = MoveTracker([])
    tracker.observe([plan("a", "Superseded", 10, 4), plan("b", "Running", 6, 3)])
    assert tracker.moves().fraction_done == 0.7


def test_a_plan_that_the_operator_dropped_still_counts_and_dry_runs_never() -> None:
    tracker = MoveTracker([])
    tracker.observe([plan("a", "Done", 3, 3), plan("dry", "Proposed", 50, 0, mode="DryRun")])
    tracker.observe([])
    assert tracker.moves().done == {"move": 3}


def test_the_newest_refusal_is_told() -> None:
    tracker = MoveTracker([])
    assert tracker.refusal() == ""
    failed = plan("a", "Failed", 1, 0)
    failed["status"]["refusals"] = [{"reason": "NO_SPACE", "message": "the volume is full", "partition": 7}]
    tracker.observe([failed, plan("b", "Running", 1, 0)])
    assert tracker.refusal() == "partition 7: NO_SPACE the volume is full"
