"""Users' requests about running plans: approve, cancel, roll back, leave single partitions out."""

from collections.abc import Iterable

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.progress import RebalancePhase, RebalanceProgress
from stele.core.control.rebalance.planner import approve, cancel
from stele.core.control.requests import RebalanceRequest
from stele.core.control.state import Observation, State
from stele.core.placement.plan import Plan
from stele.core.table.ids import PartitionId

CANCELLED = Reason(ReasonCode.CANCELLED, "its user cancelled it")


def apply_requests(state: State, observation: Observation) -> None:
    """Apply the requests of TabletRebalances. Repeated requests have no effect."""
    names = {request.name for request in observation.requests if not request.final}
    for name in state.rebalance.user_plans.keys() - names:
        # Its end is stored, or its object is deleted: nothing more of it starts.
        _drop(state, state.rebalance.user_plans.pop(name).partitions)
    for request in observation.requests:
        if request.plan:
            _apply_to_own_plan(state, request, observation.now)
        elif not request.final:
            _apply_to_user_plan(state, request, observation.now)


def _apply_to_own_plan(state: State, request: RebalanceRequest, now: float) -> None:
    """Apply a request about the master's present plan."""
    plans = state.rebalance
    progress = plans.progress
    if progress is None or request.plan != state.plan_id:
        return
    stopped = request.cancelled - plans.stopped
    if stopped:
        plans.stopped |= stopped
        _drop(state, stopped)
        _roll_back(state, progress, stopped, now)
    if request.cancel:
        cancel(state, now)
        if request.roll_back:
            _roll_back(state, progress, state.operations.migrations, now)
    elif request.approved:
        approve(state, now)


def _apply_to_user_plan(state: State, request: RebalanceRequest, now: float) -> None:
    progress = state.rebalance.user_plans.get(request.name)
    if progress is None or progress.uid != request.uid:
        progress = state.rebalance.user_plans[request.name] = RebalanceProgress.of_user(
            request.name, request.uid, now
        )
    if request.cancel and progress.phase is RebalancePhase.PENDING:
        progress.enter(RebalancePhase.SUPERSEDED, now)
    if progress.phase is not RebalancePhase.RUNNING:
        return
    if request.cancel:
        progress.enter(RebalancePhase.CANCELLING, now)
        _drop(state, progress.partitions)
        if request.roll_back:
            _roll_back(state, progress, progress.partitions, now)
    elif stopped := request.cancelled & progress.partitions:
        _drop(state, stopped)
        _roll_back(state, progress, stopped, now)


def _drop(state: State, partitions: Iterable[PartitionId]) -> None:
    """Drop waiting migrations of these partitions."""
    plans = state.rebalance
    numbers = frozenset(partitions)
    for number in numbers:
        plans.queues.drop(number)
    if plans.proposal is not None and numbers:
        left = tuple(each for each in plans.proposal.migrations if each.partition not in numbers)
        plans.proposal = Plan(left, plans.proposal.refusals) if left else None


def _roll_back(
    state: State, progress: RebalanceProgress, partitions: Iterable[PartitionId], now: float
) -> None:
    """Roll back the plan's operations whose destination has not been asked to accept yet."""
    numbers = frozenset(partitions)
    for operation in state.under_way(progress):
        if operation.partition in numbers:
            operation.abort(CANCELLED, now)
