"""Members that are replaced: their node is gone, they stay away, or a user asks for it.

See docs/internals/operator.md, "Lost nodes". A member in whose place another one comes gives up its data like
one that is drained; one that does not answer is removed as soon as no row names it. Its volume may have the
only copy of a partition; then nothing takes its place but by a user's decision.
"""

from collections.abc import Iterator

from stele.core.control.failover.repair import unusable
from stele.core.control.failure_detector import MemberObject, NodeState, Replacement
from stele.core.control.state import ForceDeletePod, Observation, State
from stele.core.table.ids import MemberIndex, PartitionId


def replaced_members(state: State, observation: Observation) -> dict[MemberIndex, str]:
    """Return why another member takes the place of these, by their index."""
    gone = unusable(state, observation.desired, observation.now)
    reasons = {each.index: _reason(state, observation, each, gone) for each in observation.members}
    return {index: reason for index, reason in reasons.items() if reason}


def _reason(
    state: State, observation: Observation, member: MemberObject, gone: frozenset[MemberIndex]
) -> str:
    if member.replacement is Replacement.NEW_VOLUME:
        return "spec.replacement is NewVolume"
    if member.index not in gone or not may_be_replaced(state, observation, member):
        return ""
    if member.node_state is NodeState.GONE:
        return f"its node {member.node} is gone"
    limit, lost = (
        observation.desired.replace_after_seconds,
        state.membership.liveness[member.index].lost_seconds,
    )
    if limit and lost is not None and observation.now - lost >= limit:
        return f"it has been away for {limit:g} s"
    return ""


def may_be_replaced(state: State, observation: Observation, member: MemberObject) -> bool:
    """Return whether another member may take its place without a user's decision.

    Not while a partition is lost: its volume may have a copy, even one in quarantine, that nobody else has.
    """
    desired, liveness = observation.desired, state.membership.liveness[member.index]
    allowed = desired.join_allowed and not desired.paused and member.replacement is None
    in_grace = liveness.in_grace(observation.now, desired.timing)
    return allowed and not in_grace and not state.failover.lost


def only_copies(state: State, index: MemberIndex) -> list[PartitionId]:
    """Return the partitions without a live copy of which this member's volume may have one."""
    lost = state.failover.lost
    named = {number for number in lost if index in state.table.partitions[number].members}
    return sorted(named | {number for number in lost if state.membership.has_copy(index, number)})


def stuck_pods(state: State, observation: Observation) -> Iterator[ForceDeletePod]:
    """Return the pods of silent members whose end no kubelet will ever confirm.

    Their processes may run all the same: whatever takes over from them waits for their leases.
    """
    if observation.desired.paused:
        return
    for member in observation.members:
        liveness, pod = state.membership.liveness[member.index], member.pod
        silent = liveness.gone(observation.now, observation.desired.timing)
        if silent and pod is not None and pod.scheduled and _is_stuck(member, terminating=pod.terminating):
            yield ForceDeletePod(member.index, pod.uid)


def _is_stuck(member: MemberObject, *, terminating: bool) -> bool:
    """Return whether its node is lost: an unready one only when a user says so."""
    match member.node_state:
        case NodeState.GONE:
            return True
        case NodeState.OUT_OF_SERVICE:
            return terminating
        case NodeState.NOT_READY:
            return member.replacement is not None
        case _:
            return False
