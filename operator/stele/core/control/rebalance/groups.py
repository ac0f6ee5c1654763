"""Groups of partitions: when they are added to the table, their first rows, and how many replicas they have.

A group is stored with the head of the table before any of its rows is, and no row of it is published before
the groups are. A member uses the group of a keyspace once it has it on its volume.

Entries of its keyspace that lie elsewhere would be lost to clients. So a group is added only once all owners
by the stored table have a catalog by which they take none there, and have reported that they have none:
neither can change any more.
"""

from collections.abc import Iterable
from dataclasses import replace

from stele.core.control.commands import OK
from stele.core.control.rebalance.data_members import data_members, places_known
from stele.core.control.state import Observation, State
from stele.core.formats import GROUPS
from stele.core.placement.assignment import assign
from stele.core.table.groups import DesiredGroup
from stele.core.table.ids import MAX_REPLICAS, MemberIndex, PartitionId
from stele.core.table.table import Partition
from stele.errors import Refused


def add_groups(state: State, observation: Observation) -> None:
    """Have this decision store the groups that are desired and that the table lacks, as far as they fit, and
    the numbers of replicas of those that it has.

    The partitions outside of groups are assigned first: that is done only while nothing else is.
    """
    desired, table = observation.desired, state.table
    if desired.paused or not desired.join_allowed or state.operations.change.features < GROUPS:
        return
    if not desired.groups:
        return
    vacated = not _owner_changes(state)
    most = holders(state)
    replicas = {each.keyspace: each.replicas or most for each in desired.groups}
    groups, main = table.groups.with_replicas(replicas), len(table.stored.main)
    known = {group.keyspace for group in groups.groups}
    for each in desired.groups:
        if each.keyspace not in known and vacated and _is_vacant(state, each):
            try:
                count = each.partitions
                groups = groups.with_group(groups.end(main), each.keyspace, count, replicas[each.keyspace])
            except Refused:
                continue
    if groups is not table.groups:
        table.stage_groups(replace(groups, version=table.groups.version + 1))


def holders(state: State) -> int:
    """Return how many members hold data and stay, as far as a row has places."""
    members, leaving = state.table.members.values(), state.membership.leaving
    stay = [each.index for each in members if not each.lite and each.index not in leaving]
    return max(1, min(MAX_REPLICAS, sum(not _goes(state, index) for index in stay)))


def _goes(state: State, index: MemberIndex) -> bool:
    """Return whether users want a member to hold nothing."""
    liveness = state.membership.liveness.get(index)
    shown = None if liveness is None else liveness.member_object
    return shown is not None and (shown.drain or shown.lite or shown.deleting)


def _owner_changes(state: State) -> bool:
    """Return whether a row outside of groups is decided on and not stored: its owner may learn that it is one
    from another member, and then take entries before it is told of new groups."""
    claimed = state.table.claimed.keys() & state.operations.by_row.keys()
    return any(number < len(state.table.stored.main) for number in state.table.staged.keys() | claimed)


def _is_vacant(state: State, wanted: DesiredGroup) -> bool:
    """Return whether nothing of a keyspace is in the partitions that it had until now.

    All reports are of the stored table, so no partition changed its owner between two of them. Who becomes an
    owner later gets the groups before.
    """
    stored = state.table.stored
    owners = {stored.partitions[number].owner for number in stored.main}
    return all(index is not None and _took_leave(state, index, wanted) for index in owners)


def _took_leave(state: State, index: MemberIndex, wanted: DesiredGroup) -> bool:
    """Return whether an owner takes nothing of a keyspace in its partitions any more, and has nothing."""
    liveness = state.membership.liveness.get(index)
    report = None if liveness is None else liveness.report
    if report is None or report.code != OK or report.stamp != state.table.stamp.value:
        return False
    return report.catalog_version >= wanted.since and wanted.keyspace in report.vacant


def assign_groups(state: State, observation: Observation) -> None:
    """Stage the first rows of groups: no member has data of them, so none is asked.

    Rows that are staged already are those that members know and the ConfigMaps lack.
    """
    desired, table = observation.desired, state.table
    new = table.unassigned - table.staged.keys()
    if not new or desired.paused or not desired.join_allowed or not places_known(state):
        return
    members = [each for each in data_members(state, desired, observation.now) if not each.leaving]
    if not members:
        return
    rows = assign(table.stored, members, desired.replicas)
    for number in new:
        table.stage(number, Partition(table.next_version(number), rows[number]))
    state.emit(
        "GroupAssigned", f"{len(new)} partitions of {_keyspaces(state, new)} on {len(members)} members"
    )


def _keyspaces(state: State, numbers: Iterable[PartitionId]) -> str:
    groups = {state.table.groups.group_of(number) for number in numbers}
    return ", ".join(sorted(group.keyspace for group in groups if group is not None))
