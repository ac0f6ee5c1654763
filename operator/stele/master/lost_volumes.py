"""Volumes that no pod can have, because they are bound to a node that is lost. Pure."""

from stele.core.control.failure_detector import MemberObject, NodeState
from stele.core.control.replacement import only_copies
from stele.core.table.ids import MemberIndex
from stele.master.view import View

VOLUME_CONFLICT = "volume node affinity conflict"
"""The scheduler's words when no node can have the pod's volume."""

PARTITIONS_SHOWN = 10

STATES = {NodeState.GONE: "gone", NodeState.OUT_OF_SERVICE: "out of service"}


def unavailable_volumes(view: View) -> dict[MemberIndex, str]:
    """Return why members cannot have their volumes, and what to do, by their index.

    A member that another one replaces in a moment is not listed.
    """
    texts = {index: unavailable_volume(view, index) for index in view.state.membership.liveness}
    return {index: text for index, text in sorted(texts.items()) if text}


def unavailable_volume(view: View, index: MemberIndex) -> str:
    """Return why a member cannot have its volume, and what to do; empty when it can, or is replaced."""
    liveness = view.state.membership.liveness.get(index)
    if liveness is None or not liveness.gone(view.now, view.desired.timing):
        return ""
    member = liveness.member_object
    if member is None or not _is_bound(member):
        return ""
    only = only_copies(view.state, member.index)
    by_itself = (
        member.node_state is NodeState.GONE and member.replacement is None and view.desired.join_allowed
    )
    if member.index in view.state.membership.replaced or (by_itself and not view.state.failover.lost):
        return ""
    state = STATES.get(member.node_state, "not available")
    text = f"the volume of {member.name} is bound to node {member.node or '(unknown)'}, which is {state}"
    if not only:
        return f"{text}: bring the node back, or: kubectl stele replace {member.name}"
    more = f" and {len(only) - PARTITIONS_SHOWN} more" if len(only) > PARTITIONS_SHOWN else ""
    numbers = ", ".join(map(str, only[:PARTITIONS_SHOWN])) + more
    return (
        f"{text}, and may have the only copy of partitions {numbers}: bring the node or its disk back; "
        "spec.onPartitionLoss: ResetToEmpty gives them up"
    )


def _is_bound(member: MemberObject) -> bool:
    """Return whether its pod waits for a node because only a lost one can have the volume."""
    pod = member.pod
    if pod is None or pod.scheduled or not pod.problem:
        return False
    return member.node_state in STATES or VOLUME_CONFLICT in pod.problem
