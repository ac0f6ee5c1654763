"""Hand-overs that users ask for in a TabletRebalance (docs/operating/day-2.md, "Hand over").

The member is demoted while the object exists and was not cancelled, also after it is Done: a member whose
node is about to be drained must not get anything back meanwhile. It is Done when only that is left which no
other member can own; its refusals name these partitions.
"""

from collections import Counter

from stele.core.control.progress import RebalancePhase, RebalanceProgress
from stele.core.control.rebalance.handover import (
    OF_USER,
    HandoverProgress,
    demote,
    handover_progress,
    release,
)
from stele.core.control.requests import NamedHandover, RebalanceRequest
from stele.core.control.state import AboutRequest, Observation, State
from stele.core.placement.migration import Type
from stele.core.placement.plan import WHOLE_CLUSTER, Code, Refusal
from stele.core.table.ids import MemberIndex

NAMES_SHOWN = 20
"""Members that a refusal lists."""


def drive_user_handovers(state: State, observation: Observation) -> None:
    """Begin and end users' hand-overs, and demote their members."""
    requests = [request for request in observation.requests if request.handover is not None]
    reasons = {OF_USER + request.name for request in requests}
    for reason in state.rebalance.demotions.keys() - reasons:
        if reason.startswith(OF_USER):
            release(state, reason)
    for request in requests:
        progress = state.rebalance.user_plans.get(request.name)
        if progress is not None and progress.phase is RebalancePhase.PENDING:
            _begin(state, request, progress, observation.now)
        _demote(state, request, progress)
        if progress is not None and progress.phase is RebalancePhase.RUNNING:
            _follow(state, observation, request, progress)


def checked(state: State, request: NamedHandover) -> Refusal | None:
    """Return why there can be no such hand-over."""
    known = {member.name: member for member in state.table.members.values()}
    for name in filter(None, (request.member, request.destination)):
        if name not in known:
            text = f"there is no member {name}; there are: {', '.join(sorted(known)[:NAMES_SHOWN])}"
            return Refusal(WHOLE_CLUSTER, Code.UNKNOWN_MEMBER, text)
    if request.destination and known[request.destination].lite:
        text = f"{request.destination} is a lite member and owns nothing"
        return Refusal(WHOLE_CLUSTER, Code.MEMBER_LITE, text)
    return None


def _begin(state: State, request: RebalanceRequest, progress: RebalanceProgress, now: float) -> None:
    assert request.handover is not None
    refusal = checked(state, request.handover)
    progress.enter(RebalancePhase.RUNNING, now)
    progress.reason = f"{request.handover.member} is to own nothing"
    if refusal is not None:
        progress.refusals = {WHOLE_CLUSTER: refusal}
        progress.enter(RebalancePhase.FAILED, now)
        about = AboutRequest(request.name, request.uid)
        state.emit("MovesRefused", f"{request.name}: {refusal.detail}", warning=True, about=about)


def _demote(state: State, request: RebalanceRequest, progress: RebalanceProgress | None) -> None:
    phase = request.phase if progress is None else progress.phase
    assert request.handover is not None
    member = _index(state, request.handover.member)
    if request.holds and member is not None and phase in (RebalancePhase.RUNNING, RebalancePhase.DONE):
        demote(state, OF_USER + request.name, member, _index(state, request.handover.destination))
    else:
        release(state, OF_USER + request.name)


def _index(state: State, name: str) -> MemberIndex | None:
    return next((index for index, member in state.table.members.items() if member.name == name), None)


def _follow(
    state: State, observation: Observation, request: RebalanceRequest, progress: RebalanceProgress
) -> None:
    assert request.handover is not None
    member = _index(state, request.handover.member)
    left = HandoverProgress(0, ()) if member is None else handover_progress(state, observation, member)
    progress.refusals = {refusal.partition: refusal for refusal in left.refusals}
    remaining = left.left - len(left.refusals)
    progress.planned = progress.done + Counter({Type.SWAP: remaining})
    if remaining or state.under_way(progress):
        return
    progress.enter(RebalancePhase.DONE, observation.now)
    text = f"{request.name}: {progress.done[Type.SWAP]} partitions are handed over"
    if left.refusals:
        first = left.refusals[0]
        text += f", {len(left.refusals)} stay, such as partition {first.partition}: {first.detail}"
    about = AboutRequest(request.name, request.uid)
    state.emit("HandedOver", text, warning=bool(left.refusals), about=about)
