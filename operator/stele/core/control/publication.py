"""The content of one exchange: the rows and members that a member lacks, and its commands."""

from stele.core.control.commands import (
    Command,
    ExchangeReply,
    ExchangeRequest,
    MemberInfo,
    MemberSettings,
    Row,
)
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.state import State, TableCursor
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition


def row_of(number: int, partition: Partition) -> Row:
    return Row(number, partition.version, partition.replicas)


def exchange_request(
    state: State,
    index: MemberIndex,
    commands: tuple[Command, ...],
    *,
    cluster: str,
    replicas: int,
    settings: MemberSettings | None = None,
    without_copy: frozenset[PartitionId] | None = None,
) -> tuple[ExchangeRequest, TableCursor | None]:
    """Return the next request to a member and the resulting cursor; None when nothing is published.

    Until the take-over is complete, and while rows are being stored, it only requests a report; while the
    table is recovered from volumes, one that lets the member adopt nothing.
    """
    liveness = state.membership.liveness[index]
    member = None if state.failover.recovering else state.table.members.get(index)
    rows: tuple[Row, ...] = ()
    members: tuple[MemberInfo, ...] = ()
    full, cursor = False, None
    if member is not None and state.recovered and not state.table.staged:
        base, changed, _ = state.table.stored_rows.since(liveness.published)
        rows, full = tuple(row_of(number, row) for number, row in changed), not base
        cursor = TableCursor(state.table.stored_rows.number, state.table.stamp.value)
        if not base or not _has_member_list(state, liveness):
            members = tuple(
                MemberInfo(each.index, each.name, each.uuid, each.address, each.lite)
                for each in state.table.members.values()
            )
    request = ExchangeRequest(
        format=state.operations.change.features,
        cluster=cluster,
        epoch=state.epoch,
        recipient="" if member is None else member.uuid,
        self_index=index,
        partitions=len(state.table.partitions),
        replicas=replicas,
        state=state.operations.change.state,
        member_list_version=state.membership.list_version,
        members=members,
        rows=rows,
        full=full,
        commands=commands,
        want_tablets=index not in state.failover.volumes
        if state.failover.recovering
        else member is not None and not state.recovered,
        known=liveness.tablets_number,
        may_stop=index in state.stops.may_stop,
        settings=settings,
        without_copy=None if without_copy is None else tuple(sorted(without_copy & liveness.tablets.keys())),
    )
    return request, cursor


def _has_member_list(state: State, liveness: MemberLiveness) -> bool:
    report = liveness.report
    return report is not None and report.member_list_version == state.membership.list_version


def note_published(liveness: MemberLiveness, cursor: TableCursor, report: ExchangeReply) -> None:
    """Note that the member has what was published; with a different stamp it missed something and next
    gets every row."""
    liveness.note_published(cursor.number if report.stamp == cursor.stamp else 0)
