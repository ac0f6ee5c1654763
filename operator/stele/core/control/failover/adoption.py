"""Adoption: a new master continues the migrations and copies that both of their sides still report.

See docs/reference/protocol.md, "Take-over by a new master". All other migrations are aborted, and all other
sessions closed (`gc`).

Why no Accept of the previous master can come in between: a report with the present epoch was made in an
exchange that persisted this epoch before. A member handles one exchange at a time, and an Accept within its
exchange. So one that arrived earlier has ended, and the report shows what it accepted; one that arrives later
is refused as STALE_EPOCH. What members continue beside their exchanges (sessions and ingests, and steps that
wait for services) gives no member the right to a row.
"""

from collections.abc import Collection, Iterator, Mapping

from stele.core.control.commands import (
    ClusterState,
    CopyReport,
    ExchangeReply,
    LearnerReport,
    SessionReport,
)
from stele.core.control.operations import copy_session, move
from stele.core.control.operations.move import MigrationOperation
from stele.core.control.state import State
from stele.core.table.ids import MemberIndex, PartitionId

Reports = Mapping[MemberIndex, ExchangeReply]


def adopt(state: State, reports: Reports, undecided: Collection[PartitionId], now: float) -> int:
    """Continue what can be continued; returns the number of migrations.

    `reports` are the last ones of members that answer. `undecided` partitions get another row, or may have
    been promised to another member. Nothing continues in a cluster state that forbids migrations: its change
    has waited for them to end, so what members still report was aborted.
    """
    if state.operations.change.state != ClusterState.ACTIVE:
        return 0
    members = state.table.members
    current = {i: report for i, report in reports.items() if report.epoch == state.epoch and i in members}
    for owner, learner, copy in _both_sides(state, current):
        if copy.partition in undecided or state.table.partitions[copy.partition].owner != owner:
            continue
        operation = move.resume(learner, copy, state.table.partitions[copy.partition], now)
        if operation is not None:
            state.operations.begin(operation)
    for source, report in current.items():
        for session in report.sessions or ():
            _adopt_session(state, source, session, current, now)
    return len(state.operations.migrations)


def _both_sides(state: State, reports: Reports) -> Iterator[tuple[MemberIndex, LearnerReport, CopyReport]]:
    """Yield what owner and destination report of one migration, and the owner."""
    copies = {(index, copy.id): copy for index, report in reports.items() for copy in report.copies}
    for owner, report in reports.items():
        for learner in report.learners:
            copy = copies.get((learner.destination, learner.id))
            if copy is not None and copy.partition < len(state.table.partitions):
                yield owner, learner, copy


def _adopt_session(
    state: State, source: MemberIndex, report: SessionReport, reports: Reports, now: float
) -> None:
    """Continue a session for the adopted migrations whose tablets it copies."""
    tablets = () if report.info is None else report.info.tablets
    known = (state.operations.migrations.get(tablet.partition) for tablet in tablets)
    waiting = [each for each in known if each is not None and _copied_by(each, source, report.destination)]
    if not waiting or report.session in state.operations:
        return
    fetch = any(each.session == report.session for each in reports[report.destination].fetches)
    generations = {each.partition: each.generation for each in waiting}
    session = copy_session.resume(report, source, generations, fetch, now)
    if session is None:
        return
    state.operations.begin(session)
    for operation in waiting:
        session.partitions[operation.partition] = operation.id
        operation.resume_copy(session.id, source, now)


def _copied_by(operation: MigrationOperation, source: MemberIndex, destination: MemberIndex) -> bool:
    """Return whether a session between these members may copy its tablet, which is not ingested yet."""
    idle = not operation.session and not operation.taken_in
    return idle and operation.destination == destination and source in operation.base.members
