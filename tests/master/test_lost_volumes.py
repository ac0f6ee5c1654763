"""What is said of a volume that is bound to a lost node, and of a missing right to see nodes."""

from dataclasses import replace

import pytest

from stele.core.control.failure_detector import MemberObject, NodeState, PodFacts, Replacement
from stele.master.lost_volumes import unavailable_volumes
from stele.master.member_status import member_status
from stele.master.view import View
from tests.master.test_statuses import condition, member, view
from tests.master.world import CONFLICT

BOUND = "the volume of demo-2 is bound to node n1, which is"


def lost(
    state: NodeState,
    problem: str = "Unschedulable",
    replacement: Replacement | None = None,
    lost: bool = False,
) -> View:
    """Member 2 is silent, and its next pod finds no node."""
    seen = view((0, 1), (0, 2))
    pod = PodFacts("u", "", "", ended=False, problem=problem, scheduled=False)
    liveness = seen.state.membership.liveness[2]
    liveness.member_object = MemberObject(
        2, "demo-2", pod=pod, node="n1", node_state=state, replacement=replacement
    )
    liveness.answered_seconds = 0.0
    seen.state.failover.lost = {1} if lost else set()
    return seen


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (lost(NodeState.OUT_OF_SERVICE), f"{BOUND} out of service: bring the node back, or: kubectl stele"),
        (lost(NodeState.NOT_READY, CONFLICT), f"{BOUND} not available: bring the node back, or: kubectl"),
        (lost(NodeState.GONE, replacement=Replacement.KEEP_VOLUME), f"{BOUND} gone: bring the node back"),
        (lost(NodeState.GONE, lost=True), f"{BOUND} gone, and may have the only copy of partitions 1: bring"),
    ],
)
def test_it_is_said_what_to_do(seen: View, text: str) -> None:
    assert unavailable_volumes(seen)[2].startswith(text)


@pytest.mark.parametrize(
    "seen",
    [
        lost(NodeState.GONE),
        lost(NodeState.NOT_READY),
        lost(NodeState.OUT_OF_SERVICE, problem=""),
    ],
)
def test_what_another_member_replaces_or_what_may_still_come_is_no_problem(seen: View) -> None:
    assert not unavailable_volumes(seen)


def test_nothing_is_replaced_where_no_member_may_join() -> None:
    seen = lost(NodeState.GONE)
    seen = replace(seen, desired=replace(seen.desired, state="Frozen"))
    assert unavailable_volumes(seen)[2].startswith(f"{BOUND} gone")


def test_a_missing_right_to_read_nodes_is_said_of_a_silent_member() -> None:
    seen = lost(NodeState.UNKNOWN)
    seen = replace(seen, nodes_problem="nodes cannot be read: 403")
    ready = condition(member_status(member(2), seen, 0), "Ready")
    assert ready.message.endswith("whether its node is lost is not known: nodes cannot be read: 403")
    assert "not known" not in condition(member_status(member(1), seen, 0), "Ready").message
