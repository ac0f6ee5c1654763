"""Makes a copy that no row names the owner of a lost partition, because a user accepts what is lost by that.

The user names the row's version, so it is accepted once: after any change of the row they have to ask again.
Members of the old row that come back find a row that does not name them, and quarantine their data.
"""

from collections.abc import Iterator

from stele.core.control.state import DesiredSpec, State
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition


def accept_copies(state: State, desired: DesiredSpec, now: float) -> None:
    """Stage a row for each lost partition whose copy a user accepts; of several, for the newest."""
    if desired.paused:
        return
    for number in sorted(state.failover.lost):
        candidates = list(_accepted(state, desired, number, now))
        if candidates and number not in state.table.staged:
            _stage(state, number, max(candidates, key=lambda index: _last(state, index, number)))


def _accepted(state: State, desired: DesiredSpec, number: PartitionId, now: float) -> Iterator[MemberIndex]:
    """Iterate members whose copy is accepted, and that have shown it since the partition was lost."""
    row = state.table.partitions[number]
    since = state.failover.lost_since.get(number, now)
    for index, liveness in state.membership.liveness.items():
        shown = liveness.member_object
        if shown is None or (number, row.version) not in shown.accepted or index not in state.table.members:
            continue
        if state.table.members[index].lite or liveness.replaced_by_uuid or not state.up_to_date(liveness):
            continue
        alive = liveness.reachable(now, desired.timing)
        if alive and state.membership.has_shown_copy(index, number, since):
            yield index


def _last(state: State, index: MemberIndex, number: PartitionId) -> tuple[int, int]:
    tablet = state.membership.tablet(index, number)
    return (0, 0) if tablet is None else (tablet.last.term, tablet.last.index)


def _stage(state: State, number: PartitionId, index: MemberIndex) -> None:
    if (reset := state.operations.resets.get(number)) is not None:
        state.operations.end(reset)
    promised = max(state.membership.promised(each, number) for each in state.membership.liveness)
    version = state.table.next_version(number, promised)
    state.table.stage(number, Partition(version, (index,)))
    state.failover.reset_partitions.add(number)
    state.rebalance.drop(number)
    term, last = _last(state, index, number)
    text = f"{state.name_of(index)} owns partition {number} with its copy up to operation {term}.{last}"
    state.emit("CopyAccepted", f"{text}, as a user asked; what was written later is lost", warning=True)
