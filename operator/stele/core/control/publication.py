"""The content of one exchange: the rows and members that a member lacks, and its commands."""

from dataclasses import dataclass

from stele.core.control.commands import (
    ClearKeyspaces,
    Command,
    ExchangeReply,
    ExchangeRequest,
    MemberInfo,
    Row,
)
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.member_settings import MemberSettings
from stele.core.control.state import State, TableCursor
from stele.core.formats import KEYSPACES
from stele.core.kv.keyspaces import NO_CATALOG, Catalog
from stele.core.table.digests import range_of
from stele.core.table.ids import MemberIndex, PartitionId

DIFFERING_RANGES_MAX = 8
"""Ranges of rows in which a member's table may differ for it to get these alone: with more it gets every row,
in its turn."""


@dataclass(frozen=True, slots=True)
class _Publication:
    """What a member is told of the table; `full`: these are all rows. No cursor: nothing is published, and
    nothing compared by `digests`."""

    rows: tuple[Row, ...] = ()
    full: bool = False
    members: tuple[MemberInfo, ...] = ()
    cursor: TableCursor | None = None
    digests: bytes | None = None


_NOTHING = _Publication()


def exchange_request(
    state: State,
    index: MemberIndex,
    commands: tuple[Command, ...],
    *,
    cluster: str,
    replicas: int,
    settings: MemberSettings | None = None,
    without_copy: frozenset[PartitionId] | None = None,
    catalog: Catalog = NO_CATALOG,
    clear: ClearKeyspaces | None = None,
    over_quota: tuple[str, ...] | None = None,
    may_send_table: bool = True,
) -> tuple[ExchangeRequest, TableCursor | None]:
    """Return the next request to a member and the resulting cursor; None when nothing is published.

    `catalog` is stored already; it is sent to a member that has reported an older one. A member that lacks
    the whole table is only asked for a report until `may_send_table`: it can run no commands before.

    Until the take-over is complete, and while rows are being stored, it only requests a report, first with
    the rows that differ from the stored ones; while the table is recovered from volumes, with all rows, and
    the member adopts nothing.
    """
    liveness = state.membership.liveness[index]
    member = None if state.failover.recovering else state.table.members.get(index)
    table = _NOTHING if member is None else _table_for(state, liveness)
    if table.full and not may_send_table:
        table, commands = _NOTHING, ()
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
        members=table.members,
        rows=table.rows,
        full=table.full,
        commands=commands,
        want_tablets=_wants_tablets(state, index),
        known=liveness.tablets_number,
        may_stop=index in state.stops.may_stop,
        settings=settings.at(state.tls.level) if settings is not None and state.recovered else settings,
        without_copy=_held(liveness, without_copy),
        catalog=catalog if member is not None and _lacks_catalog(state, liveness, catalog) else None,
        clear=None if member is None else clear,
        over_quota=over_quota,
        groups=state.table.groups if member is not None and _lacks_groups(state, liveness) else None,
        groups_version=state.table.groups.version,
        row_digests=table.digests,
    )
    return request, table.cursor


def _held(liveness: MemberLiveness, numbers: frozenset[PartitionId] | None) -> tuple[PartitionId, ...] | None:
    """Return those of the partitions that the member has a tablet of; the cost is that of its tablets."""
    return None if numbers is None else tuple(sorted(numbers.intersection(liveness.tablets)))


def _table_for(state: State, liveness: MemberLiveness) -> _Publication:
    """Return the rows that a member lacks, and the member list if it lacks that; in a take-over digests of
    all rows."""
    if not state.recovered:
        return _Publication(cursor=_cursor(state, compared=True), digests=state.table.digests)
    if state.table.staged:
        return _NOTHING
    base, rows = state.table.rows_since(liveness.published)
    if base and liveness.differing:
        known = (row for row in rows if range_of(row.partition) not in liveness.differing)
        rows = (*state.table.rows_in(liveness.differing), *known)
    lacks_list = not base or not _has_member_list(state, liveness)
    members = state.table.member_list if lacks_list else ()
    return _Publication(rows, not base, members, _cursor(state))


def _cursor(state: State, *, compared: bool = False) -> TableCursor:
    return TableCursor(state.table.changes, state.table.stamp.value, compared)


def _wants_tablets(state: State, index: MemberIndex) -> bool:
    """Return whether the member has to report what is on its volume."""
    listed = index in state.table.members and not state.recovered
    return _wants_volume(state, index) if state.failover.recovering else listed


def _wants_volume(state: State, index: MemberIndex) -> bool:
    return state.failover.recovering and index not in state.failover.volumes


def _has_member_list(state: State, liveness: MemberLiveness) -> bool:
    report = liveness.report
    return report is not None and report.member_list_version == state.membership.list_version


def _lacks_catalog(state: State, liveness: MemberLiveness, catalog: Catalog) -> bool:
    """Return whether the member has reported an older catalog, and may be sent one."""
    report, features = liveness.report, state.operations.change.features
    return features >= KEYSPACES and report is not None and report.catalog_version < catalog.version


def _lacks_groups(state: State, liveness: MemberLiveness) -> bool:
    """Return whether the member has not reported the groups of the table; before, no row of theirs fits."""
    known = 0 if liveness.report is None else liveness.report.groups_version
    return known < state.table.groups.version


def waited_for(state: State) -> frozenset[MemberIndex]:
    """Return the members whose next report something that is under way waits for.

    In a take-over those are the ones that have not reported; later those that take part in an operation, or
    have not reported yet what they have of a row that has changed, with the other members of such rows,
    those that do not answer, and those that leave: they end once they have heard of their last commits.
    A member that stops or is handed over is done when nobody in its rows is behind the table.
    """
    known = state.membership.liveness
    if not state.recovered:
        return frozenset(i for i, each in known.items() if each.report is None or _wants_volume(state, i))
    waited = set(state.membership.leaving)
    rows = set(state.failover.shrinking) | state.operations.by_row.keys()
    for operation in state.operations:
        waited |= operation.participants
    for index in {*state.stops.since, *(each.member for each in state.rebalance.demotions.values())}:
        waited.add(index)
        rows |= state.table.replica_index.of(index)
    for index, liveness in known.items():
        if liveness.report is None or liveness.lost_seconds is not None or liveness.recheck_all:
            waited.add(index)
        elif liveness.recheck:
            waited.add(index)
            rows |= liveness.recheck
    table = state.table.partitions
    return frozenset(waited.union(*(table[number].members for number in rows if number < len(table))))


def lacks_rows(state: State, liveness: MemberLiveness) -> bool:
    """Return whether rows are published that the member has not confirmed."""
    behind = liveness.published != state.table.changes or bool(liveness.differing)
    publishes = state.recovered and not state.table.staged and liveness.index in state.table.members
    return behind and publishes


def hands_over(state: State) -> bool:
    """Return whether clients may wait for another owner: it is frozen, or not all members that answer know
    the row that was stored."""
    if any(each.holds_clients for each in state.operations.migrations.values()):
        return True
    return any(not each.failed and lacks_rows(state, each) for each in state.membership.liveness.values())


def must_hear(state: State, liveness: MemberLiveness, catalog: Catalog) -> bool:
    """Return whether the member lacks something that does not wait for others: the whole table, the member
    list, or the catalog."""
    lacks = not liveness.published or not _has_member_list(state, liveness)
    return lacks or _lacks_catalog(state, liveness, catalog)


def note_published(liveness: MemberLiveness, cursor: TableCursor, report: ExchangeReply) -> None:
    """Note that the member has what was published, or the table that it compared with its own, but for some
    ranges; with a different stamp, or many such ranges, it missed something and next gets every row."""
    if not cursor.compared:
        had = report.stamp if report.published_stamp is None else report.published_stamp
        liveness.note_published(cursor.number if had == cursor.stamp else 0)
    elif report.differing is None or len(report.differing) > DIFFERING_RANGES_MAX:
        liveness.note_published(0)
    else:
        liveness.note_published(cursor.number, report.differing)
