"""Groups of partitions: when they are added to the table, and their first rows.

A group is stored with the head of the table before any of its rows is, and no row of it is published before
the groups are. A member uses the group of a keyspace once it has it on its volume.
"""

from collections.abc import Iterable

from stele.core.control.rebalance.data_members import data_members, places_known
from stele.core.control.state import Observation, State
from stele.core.formats import GROUPS
from stele.core.placement.assignment import assign
from stele.core.table.ids import PartitionId
from stele.core.table.table import Partition
from stele.errors import Refused


def add_groups(state: State, observation: Observation) -> None:
    """Have this decision store the groups that are desired and that the table lacks, as far as they fit.

    The partitions outside of groups are assigned first: that is done only while nothing else is.
    """
    desired, table = observation.desired, state.table
    if desired.paused or not desired.join_allowed or state.operations.change.features < GROUPS:
        return
    known = {group.keyspace for group in table.groups.groups}
    if known.issuperset(each.keyspace for each in desired.groups):
        return
    if not all(table.partitions[number].version for number in table.stored.main):
        return
    groups, main = table.groups, len(table.stored.main)
    for each in desired.groups:
        if each.keyspace not in known:
            try:
                groups = groups.with_group(groups.end(main), *each)
            except Refused:
                continue
    if groups is not table.groups:
        table.stage_groups(groups)


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
