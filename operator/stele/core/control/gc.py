"""Cleans up at members: ended migrations, sessions, and tablets of rows that no longer name them.

Only a report made with the present table is acted on: an older one may be about what was just committed.
That a migration was rolled back is known without it, and told at once: its owner may be frozen.
"""

from stele.core.control.commands import Abort, CloseSession, Command, DeleteTablet
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.state import DesiredSpec, State
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.tablet.lifecycle import TabletState

HOLDS_DATA = frozenset({TabletState.READY, TabletState.COPYING})


TABLETS_SECONDS = 0.25
"""Seconds between two searches through all tablets of a member."""


def collect_garbage(
    state: State, desired: DesiredSpec, member: MemberIndex, liveness: MemberLiveness, now: float
) -> list[Command]:
    """Return commands for one member; while its report is older than the table, only aborts of migrations
    that were rolled back."""
    if liveness.report is None:
        return []
    aborts = _aborts(state, member, liveness)
    if not state.up_to_date(liveness):
        return [each for each in aborts if state.operations.is_rolled_back(each.id)]
    commands = [*aborts, *_sessions(state, liveness)]
    if liveness.begin_gc(now, TABLETS_SECONDS):
        commands += _tablets(state, desired, member, liveness)
    return commands


def _aborts(state: State, member: MemberIndex, liveness: MemberLiveness) -> list[Abort]:
    report = liveness.report
    assert report is not None
    if not report.learners and not report.copies:
        return []
    rows = state.table.partitions
    ended: dict[tuple[str, int], None] = {}
    for learner in report.learners:
        if learner.id not in state.operations:
            ended[learner.id, learner.partition] = None
    for copy in report.copies:
        committed = member in rows[copy.partition].members and rows[copy.partition].version > copy.base
        if copy.id not in state.operations and not committed:
            ended[copy.id, copy.partition] = None
    return [Abort(id, partition) for id, partition in ended]


def _sessions(state: State, liveness: MemberLiveness) -> list[Command]:
    report = liveness.report
    assert report is not None
    reported = {each.session for each in report.sessions or ()}
    reported.update(report.staged, (each.session for each in report.fetches))
    return [CloseSession(session) for session in sorted(reported - state.operations.sessions.keys())]


def _tablets(
    state: State, desired: DesiredSpec, member: MemberIndex, liveness: MemberLiveness
) -> list[Command]:
    """Delete stale copies, except while they may be needed.

    A stale copy stays while its row is under-replicated or planned for, since it may rejoin from the log. It
    also stays while its partition has no live copy, and until all members of its row have shown theirs: it
    may be the only one. A stale copy of a reset partition cannot rejoin: it is quarantined before the member
    gets a new copy.
    """
    assert liveness.report is not None
    mismatched = sorted(state.mismatched(liveness))
    if not mismatched:
        return []
    copied = {copy.partition for copy in liveness.report.copies}
    able = sum(1 for index in state.table.members if index not in state.membership.leaving)
    commands: list[Command] = []
    for number in mismatched:
        row = state.table.partitions[number]
        if liveness.tablet_state(number) not in HOLDS_DATA or member in row.members or not row.replicas:
            continue
        if number in copied or number in state.operations.migrations or number in state.failover.lost:
            continue
        full = state.table.full(number, desired.replicas, able)
        wanted = len(row.members) < full or number in state.rebalance.queues.waiting
        if number in state.failover.reset_partitions or (not wanted and _is_whole(state, number)):
            commands.append(DeleteTablet(number, row.version))
    return commands


def _is_whole(state: State, number: PartitionId) -> bool:
    """Return whether each member of the row has shown its copy since it knows the row.

    A member that accepted the row may have lost its volume before the row was stored.
    """
    members = state.table.partitions[number].members
    return all(
        state.membership.has_copy(member, number)
        and not (liveness := state.membership.liveness[member]).ended
        and not liveness.replaced_by_uuid
        and state.up_to_date(liveness)
        for member in members
    )
