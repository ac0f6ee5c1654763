"""Replaces outdated pods of new members whose process never started, such as one with a wrong image.

See docs/internals/operator.md, "Rolling updates". Members that have joined are left to the rolling update:
their places are kept, and their data may be needed.
"""

from collections.abc import Iterator

from stele.core.control.failure_detector import MemberObject
from stele.core.control.member_list import members_in_rows
from stele.core.control.state import AboutMember, Observation, ReplacePod, State, UpdateType


def replace_unstarted(state: State, observation: Observation) -> tuple[ReplacePod, ...]:
    """Return the outdated pods to delete that hold nothing, so that a corrected spec takes effect.

    Where users delete the pods themselves, or have stopped everything, they stay.
    """
    desired = observation.desired
    held_back = desired.paused or desired.update.type is UpdateType.ON_DELETE
    replaced = () if held_back else tuple(_unstarted(state, observation))
    _announce(state, replaced, {each.index: each.name for each in observation.members})
    return replaced


def _unstarted(state: State, observation: Observation) -> Iterator[ReplacePod]:
    in_rows = members_in_rows(state)
    for member in observation.members:
        if member.pod is not None and member.index not in in_rows and _is_unstarted(state, member):
            yield ReplacePod(member.index, member.pod.uid)


def _is_unstarted(state: State, member: MemberObject) -> bool:
    """Return whether nothing ever ran in the outdated pod, and the member was never one of the cluster.

    Each of these alone is enough to leave the pod as it is: the member list names it, its object shows that
    it has joined before, or it has answered this master.
    """
    pod, liveness = member.pod, state.membership.liveness[member.index]
    is_new = member.index not in state.table.members and not member.has_joined and liveness.report is None
    if pod is None or not is_new or not member.outdated or member.deleting:
        return False
    return not (pod.process or pod.ended or pod.terminating)


def _announce(state: State, replaced: tuple[ReplacePod, ...], names: dict[int, str]) -> None:
    """Say of each pod once that it is replaced."""
    before, state.stops.replaced_pods = (
        state.stops.replaced_pods,
        frozenset(each.pod_uid for each in replaced),
    )
    for each in replaced:
        if each.pod_uid not in before:
            text = f"the pod of {names[each.index]} never started and is outdated: it gets another one"
            state.emit("MemberPodReplaced", text, about=AboutMember(each.index))
