"""Creates a new, empty owner for a partition without any copy, if spec.onPartitionLoss is ResetToEmpty.

See docs/internals/operator.md, "Members that come and go". A partition that stayed lost for the grace period
gets an empty tablet on a member without data of it, and then, with version + 2, a row that names only that
member. Further copies follow as usual. A member that returns later finds a row that does not name it, and
quarantines its data.
"""

from collections import Counter

from stele.core.control.operations.partition_reset import PartitionReset
from stele.core.control.state import DesiredSpec, State
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition


def reset_lost_partitions(state: State, desired: DesiredSpec, now: float) -> None:
    """Reset partitions that have been lost for too long, if the spec says so."""
    state.failover.lost_since = {
        number: state.failover.lost_since.get(number, now) for number in state.failover.lost
    }
    allowed = desired.on_partition_loss == "ResetToEmpty" and desired.join_allowed and not desired.paused
    if not allowed or not state.failover.lost:
        _end(state, lost=set())
        return
    _end(state, state.failover.lost)
    able, resets = _able(state, desired, now), state.operations.resets
    taken = Counter(reset.member for reset in resets.values())
    for number in sorted(state.failover.lost):
        if now - state.failover.lost_since[number] >= desired.timing.grace:
            _go_on(state, number, able, taken)
    ready = [reset for reset in resets.values() if reset.done]
    if ready:
        text = f"{len(ready)} partitions were reset to empty, because spec.onPartitionLoss is ResetToEmpty"
        state.emit("PartitionsReset", text, warning=True)
    for reset in ready:
        assert reset.member is not None
        members = state.membership.liveness
        promised = max((state.membership.promised(each, reset.partition) for each in members), default=0)
        version = state.table.next_version(reset.partition, promised)
        state.table.stage(reset.partition, Partition(version, (reset.member,)))
        state.failover.reset_partitions.add(reset.partition)
        state.rebalance.drop(reset.partition)


def _end(state: State, lost: set[PartitionId]) -> None:
    """End resets of partitions that are no longer lost, or no longer to be reset."""
    for reset in [each for each in state.operations.resets.values() if each.partition not in lost]:
        state.operations.end(reset)


def _able(state: State, desired: DesiredSpec, now: float) -> list[MemberIndex]:
    """Return members that can take data and whose last report is about the present table."""
    able = []
    for index, member in state.table.members.items():
        liveness = state.membership.liveness.get(index)
        if member.lite or index in state.membership.leaving or liveness is None or liveness.replaced_by_uuid:
            continue
        if liveness.reachable(now, desired.timing) and state.up_to_date(liveness):
            able.append(index)
    return able


def _go_on(
    state: State, number: PartitionId, able: list[MemberIndex], taken: Counter[MemberIndex | None]
) -> None:
    """Choose a member: one without a tablet of the partition first, then the least loaded."""
    reset = state.operations.resets.get(number)
    if reset is None:
        reset = PartitionReset(state.new_id("r"), number, state.table.partitions[number])
        state.operations.begin(reset)
    if reset.done or reset.member in able:
        return
    free = [index for index in able if index not in reset.refused]
    reset.choose(
        min(
            free,
            key=lambda index: (
                state.membership.has_copy(index, number),
                state.table.replica_index.number(index) + taken[index],
                index,
            ),
            default=None,
        )
    )
    taken[reset.member] += 1
