"""Moves everything off members that are about to stop, so that nobody waits for them.

See docs/internals/operator.md, "Planned stops". A member that stops soon hands its partitions over to
backups, then leaves the rows in which it is a backup. Nothing is copied: its place is kept, and when it is
back it catches up from the log.
"""

from collections.abc import Iterable

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.failover.repair import unusable
from stele.core.control.rebalance.handover import demote, handover_progress, release
from stele.core.control.state import AboutMember, Observation, State
from stele.core.placement.migration import Type
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition, trimmed

STOPS = Reason(ReasonCode.MEMBER_STOPPING, "a member of the migration stops soon")


def empty_stopping(state: State, observation: Observation) -> None:
    """Start what empties the members that stop soon, and note which of them may stop.

    What no other member of its row could serve stays with a member. While no migration may start at all, by
    the cluster state or a pause, everything stays where it is.
    """
    stops, stopping = state.stops, _stopping(state, observation)
    _announce(state, stopping - stops.since.keys())
    for index in stops.since.keys() - stopping:
        release(state, _reason(index))
    gone = unusable(state, observation.desired, observation.now)
    stops.left = {index: rows for index, rows in stops.left.items() if index in stopping | gone}
    stops.since = {index: stops.since.get(index, observation.now) for index in sorted(stopping)}
    if not observation.desired.may_start:
        stops.emptied, stops.may_stop = frozenset(), stopping
        return
    for index in stopping:
        demote(state, _reason(index), index)
    stops.emptied = frozenset(
        index for index in stopping if handover_progress(state, observation, index).ended
    )
    _roll_back(state, stops.emptied, observation.now)
    stops.may_stop = frozenset(index for index in stops.emptied if not _leave_rows(state, index))


def _reason(index: MemberIndex) -> str:
    """Return the reason of the demotion."""
    return f"stop/{index}"


def _announce(state: State, members: Iterable[MemberIndex]) -> None:
    for index in sorted(members):
        table = state.table.replica_index
        owned, held, alone = table.owned[index], table.number(index), table.sole[index]
        text = f"it hands over {owned - alone} partitions and leaves {held - owned} other rows"
        cost = f"; {alone} partitions have no other copy and do not answer until it is back" if alone else ""
        text = f"{state.name_of(index)} stops soon: {text}{cost}"
        state.emit("MemberStopping", text, warning=bool(alone), about=AboutMember(index))


def _stopping(state: State, observation: Observation) -> frozenset[MemberIndex]:
    """Return the reachable members that asked for it, whose pod is being deleted, or that are restarted."""
    gone = unusable(state, observation.desired, observation.now)
    return frozenset(
        index
        for index in state.table.members
        if index not in gone and (index == state.stops.updating or _stops_soon(state, index))
    )


def _stops_soon(state: State, index: MemberIndex) -> bool:
    liveness = state.membership.liveness[index]
    shown, report = liveness.member_object, liveness.report
    if shown is None or report is None:
        return False
    terminating = shown.pod is not None and shown.pod.terminating
    if report.stopping or terminating or shown.restart_until_seconds is None:
        return report.stopping or terminating
    # The process that answered last may be one that ended a moment ago.
    return report.pod_uid not in ("", "" if shown.pod is None else shown.pod.uid)


def _roll_back(state: State, members: frozenset[MemberIndex], now: float) -> None:
    """Roll back migrations of these members, which could take long; one that was decided ends by itself."""
    for operation in state.operations.migrations.values():
        if operation.participants & members and operation.migration.type is not Type.SWAP:
            operation.abort(STOPS, now)


def _leave_rows(state: State, index: MemberIndex) -> bool:
    """Stage the rows without this backup. Returns whether it is still in rows that it can leave.

    One of the remaining members must have shown its copy since the stop was known.
    """
    rows = state.table.partitions
    backups = [n for n in state.table.replica_index.of(index) if rows[n].owner != index]
    left = {number: heirs for number in sorted(backups) if (heirs := _heirs(state, number))}
    for number, heirs in left.items():
        if not _is_busy(state, number) and _have_shown(state, number, heirs, state.stops.since[index]):
            state.rebalance.drop(number)
            slots = trimmed(None if member == index else member for member in rows[number].replicas)
            state.table.stage(number, Partition(state.table.next_version(number), slots))
            state.stops.left.setdefault(index, set()).add(number)
    return bool(left)


def _heirs(state: State, number: PartitionId) -> list[MemberIndex]:
    """Return the members of the row that do not stop."""
    return [member for member in state.table.partitions[number].members if member not in state.stops.since]


def _is_busy(state: State, number: PartitionId) -> bool:
    """Return whether something else is about to change the row."""
    table, failover = state.table, state.failover
    busy = number in state.operations.by_row or number in failover.fenced or number in failover.shrinking
    return busy or number in table.staged or number in table.claimed


def _have_shown(state: State, number: PartitionId, heirs: list[MemberIndex], since: float) -> bool:
    return any(state.membership.has_shown_copy(member, number, since) for member in heirs)
