"""The situation of a cluster that runs, as the master would plan it."""

from typing import TYPE_CHECKING

from stele.cli.situation import Situation
from stele.core.plan import DataMember
from stele.core.scaling import Candidate, leaving
from stele.core.table import PartitionTable
from stele.model.cluster import ClusterState
from stele.model.member import MemberState

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console, Table
    from stele.model import TabletCluster, TabletMember

PAUSED_ANNOTATION = "stele.dev/paused"

_GONE = frozenset({MemberState.UNREACHABLE, MemberState.LOST, MemberState.LEFT})


async def look(console: "Console", cluster: str) -> tuple[Situation, list[str]]:
    """The situation, and why the master would not carry a plan out now (nothing, when it would)."""
    found = await console.cluster(cluster)
    members = await console.members(cluster)
    return situation(found, members, await console.table(cluster)), obstacles(found)


def situation(cluster: "TabletCluster", members: list["TabletMember"], table: "Table") -> Situation:
    """Members that joined and can be reached hold data; surplus and drained ones leave.

    Migrations under way are not taken into account: the rows are those that are stored.
    """
    objects = {each.spec.index: each for each in members}
    surplus = leaving([_candidate(each) for each in members], cluster.spec.members)
    joined = {each.index: each for each in table.head.members}
    data = tuple(
        DataMember(index, leaving=index in surplus or objects[index].spec.drain)
        for index, member in sorted(joined.items())
        if not member.lite and index in objects and objects[index].status.state not in _GONE
    )
    names = {index: member.name for index, member in joined.items()}
    for row in table.rows:
        for index in row.members - names.keys():
            names[index] = f"(member {index})"
    return Situation(
        names,
        PartitionTable(table.rows, joined),
        data,
        frozenset(index for index, member in joined.items() if member.lite),
        cluster.spec.replicas,
    )


def _candidate(member: "TabletMember") -> Candidate:
    state = member.status.state
    return Candidate(
        member.spec.index,
        member.spec.drain,
        reachable=state not in _GONE,
        lost=state is MemberState.LOST,
        deleting=member.metadata.deletion_timestamp is not None,
    )


def obstacles(cluster: "TabletCluster") -> list[str]:
    """What keeps the master from migrating."""
    found = []
    if cluster.metadata.annotations.get(PAUSED_ANNOTATION) == "true":
        found.append(f"annotation {PAUSED_ANNOTATION} is true")
    if cluster.spec.migration.paused:
        found.append("spec.migration.paused is true")
    if cluster.spec.state is not ClusterState.ACTIVE:
        found.append(f"spec.state is {cluster.spec.state.value}")
    return found
