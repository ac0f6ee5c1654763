"""What people say about plans while they run: approve, cancel, roll back, leave single partitions out."""

from collections.abc import Iterable

from stele.core.control.rebalance.planner import approve, cancel
from stele.core.control.requests import Ask
from stele.core.control.state import Observation, Record, State
from stele.core.placement.plan import Plan
from stele.core.table.ids import PartitionId

CANCELLED = "CANCELLED: its user cancelled it"


def heed(state: State, seen: Observation) -> None:
    """Take in what TabletRebalances ask for; what is asked for again changes nothing."""
    names = {ask.name for ask in seen.asks if not ask.final}
    for name in state.asked.keys() - names:
        # Its end is stored, or its object is gone: nothing more of it starts.
        _drop(state, state.asked.pop(name).partitions)
    for ask in seen.asks:
        if ask.plan:
            _heed_own(state, ask, seen.now)
        elif not ask.final:
            _heed_user(state, ask, seen.now)


def _heed_own(state: State, ask: Ask, now: float) -> None:
    """About the present plan of the master."""
    record = state.record
    if record is None or ask.plan != state.plan_id:
        return
    stopped = ask.cancelled - state.stopped
    if stopped:
        state.stopped |= stopped
        _drop(state, stopped)
        _roll_back(state, record, stopped, now)
    if ask.cancel:
        cancel(state)
        if ask.roll_back:
            _roll_back(state, record, state.running, now)
    elif ask.approved:
        approve(state, now)


def _heed_user(state: State, ask: Ask, now: float) -> None:
    record = state.asked.get(ask.name)
    if record is None or record.uid != ask.uid:
        record = state.asked[ask.name] = Record.of_user(ask.name, ask.uid, now)
    if ask.cancel and record.phase == "Pending":
        record.finish("Superseded", now)
    if record.phase != "Running":
        return
    if ask.cancel:
        record.phase = "Cancelling"
        _drop(state, record.partitions)
        if ask.roll_back:
            _roll_back(state, record, record.partitions, now)
    elif stopped := ask.cancelled & record.partitions:
        _drop(state, stopped)
        _roll_back(state, record, stopped, now)


def _drop(state: State, partitions: Iterable[PartitionId]) -> None:
    """Nothing that waits for these partitions is started."""
    some = frozenset(partitions)
    for number in some:
        state.queues.drop(number)
    if state.proposal is not None and some:
        left = tuple(each for each in state.proposal.migrations if each.partition not in some)
        state.proposal = Plan(left, state.proposal.refusals) if left else None


def _roll_back(state: State, record: Record, partitions: Iterable[PartitionId], now: float) -> None:
    """Undo what is under way of the record and was not put to its destination to accept."""
    some = frozenset(partitions)
    for running in state.under_way(record):
        if running.partition in some:
            running.abort(CANCELLED, now)
