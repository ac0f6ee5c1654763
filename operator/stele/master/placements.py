"""Keyspaces with partitions of their own: when they may get them, and what their statuses say of them.

Entries in the partitions that a keyspace shares with others cannot be seen once it has its own. So it gets
these while it has none: first the catalog says that it has its own, by which owners refuse it everywhere
else, and when all owners have reported that they have nothing of it, the table gets them (`add_groups`). One
that turns out to have entries is as it was before.
"""

from dataclasses import replace
from typing import NamedTuple

from stele.core.control.commands import ClusterState
from stele.core.control.rebalance.groups import holders
from stele.core.control.state import DesiredSpec, State
from stele.core.formats import GROUPS
from stele.core.table.groups import PartitionGroup
from stele.errors import Refused
from stele.master.kstatus import Progress, Verdict
from stele.model import Keyspace
from stele.model.conditions import Reason
from stele.model.keyspace import KeyspacePlacement, WantedGroup


class Wait(NamedTuple):
    """Until when a keyspace cannot get its own partitions, empty when it can, and whether its clients are
    refused meanwhile."""

    until: str
    held: bool


def waits_until(state: State, desired: DesiredSpec) -> str:
    """Return until when no keyspace can get its own partitions (`add_groups`), empty when it can."""
    if desired.paused:
        return "the annotation stele.dev/paused is removed"
    for each in (desired.state, state.operations.change.state):
        if not replace(desired, state=each).join_allowed:
            return f"spec.state of the TabletCluster is {ClusterState.ACTIVE}, which it is not: it is {each}"
    if state.operations.change.features < GROUPS:
        return "all members run a version that knows partitions of keyspaces"
    return ""


def misfit(state: State, keyspace: str, wanted: WantedGroup) -> str:
    """Return why the table has no room for the partitions of a keyspace; empty when it has."""
    groups, main = state.table.groups, len(state.table.stored.main)
    try:
        groups.with_group(groups.end(main), keyspace, wanted.partitions, 1)
    except Refused as error:
        return error.text
    return ""


def shown_placement(state: State, keyspace: str) -> KeyspacePlacement:
    """Return the partitions that a keyspace has for itself."""
    group = state.table.groups.of(keyspace)
    if group is None:
        return KeyspacePlacement()
    return KeyspacePlacement(partitions=group.count, replicas=group.replicas)


def placement_verdict(model: Keyspace, state: State, entries: int, wait: Wait) -> Verdict | None:
    """Return what keeps a keyspace from being in its own partitions with all copies, None for nothing.

    `entries` are those that it has.
    """
    wanted, group = model.wanted_group, state.table.groups.of(model.keyspace)
    if wanted is None:
        return None
    if group is None:
        return _not_yet(model.keyspace, wanted, state, entries, wait)
    if group.count != wanted.partitions:
        text = (
            f"it has {group.count} partitions from an earlier Keyspace, and keeps them: create it again with "
            f"spec.placement.partitions {group.count}, or use another spec.name"
        )
        return Progress.STALLED, Reason.OTHER_PLACEMENT, text
    return _copies_verdict(group, wanted, state)


def _not_yet(keyspace: str, wanted: WantedGroup, state: State, entries: int, wait: Wait) -> Verdict:
    if text := misfit(state, keyspace, wanted):
        return Progress.STALLED, Reason.TOO_MANY_PARTITIONS, text
    if entries:
        text = (
            f"{entries} entries are in the partitions that it shares with others, and stay in use there: "
            "delete them to give it its own partitions, or use another spec.name"
        )
        return Progress.STALLED, Reason.NOT_EMPTY, text
    until = wait.until or "every partition has an owner that has nothing of it"
    meanwhile = "clients are answered TRYAGAIN" if wait.held else "it is in those that it shares with others"
    text = f"it gets its own partitions once {until}; until then {meanwhile}"
    return Progress.UNDER_WAY, Reason.WAITS_FOR_MEMBERS, text


def _copies_verdict(group: PartitionGroup, wanted: WantedGroup, state: State) -> Verdict | None:
    most = holders(state)
    if wanted.replicas > most:
        text = (
            f"spec.placement.replicas is {wanted.replicas}, but {most} members hold data: a member holds at "
            f"most one copy, so each partition has {most} of {wanted.replicas} copies; raise spec.members of "
            f"the TabletCluster to {wanted.replicas}"
        )
        return Progress.STALLED, Reason.FEWER_MEMBERS_THAN_REPLICAS, text
    rows = state.table.partitions[group.first : group.end]
    lacking = sum(len(row.members) < min(group.replicas, most) for row in rows)
    if not lacking:
        return None
    return Progress.UNDER_WAY, Reason.UNDER_REPLICATED, f"{lacking} of {group.count} partitions lack a copy"
