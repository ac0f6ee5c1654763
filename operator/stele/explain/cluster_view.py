"""A running cluster, and its situation as the master would plan it."""

from collections.abc import Iterable
from dataclasses import dataclass

from stele.core.control.commands import ClusterState
from stele.core.control.failure_detector import Replacement
from stele.core.control.scaling import Candidate, leaving
from stele.core.placement.plan import DataMember
from stele.core.table.ids import MemberIndex
from stele.core.table.table import PartitionTable
from stele.explain.situation import Situation
from stele.model import TabletCluster, TabletMember, TabletRebalance
from stele.model.cluster import Approval
from stele.model.conditions import ConditionType, find_condition
from stele.model.member import MemberState
from stele.model.rebalance import HandoverSpec

PAUSED = "spec.migration.paused is true"
"""One of what keeps the master from migrating: `kubectl stele resume` ends it."""
PAUSED_ANNOTATION = "stele.dev/paused"

_OVER = frozenset({"Failed", "Superseded"})
_GONE = frozenset({MemberState.UNREACHABLE, MemberState.LOST, MemberState.LEFT})


@dataclass(frozen=True)
class ClusterView:
    """The objects of one cluster; `members` is by member index, `demoted` are names."""

    cluster: TabletCluster
    members: dict[MemberIndex, TabletMember]
    table: PartitionTable
    demoted: frozenset[str] = frozenset()

    @property
    def leaving(self) -> frozenset[MemberIndex]:
        """The surplus, drained and deleted members, and those that are to be lite and are not yet."""
        surplus = leaving([_candidate(each) for each in self.members.values()], self.cluster.spec.members)
        lite = {each.index for each in self.table.members.values() if each.lite}
        return surplus | {
            index
            for index, each in self.members.items()
            if each.spec.drain or (each.spec.lite and index not in lite)
        }

    @property
    def situation(self) -> Situation:
        """The situation for the planner: joined members that can be reached hold data.

        Running migrations are not considered: the rows are the stored ones.
        """
        joined = self.table.members
        leaving = self.leaving
        data = tuple(
            DataMember(
                index,
                *_placed(self.members.get(index)),
                leaving=index in leaving,
                demoted=member.name in self.demoted,
            )
            for index, member in sorted(joined.items())
            if index in self.members
            and not (member.lite and self.members[index].spec.lite)
            and not is_gone(self.members[index])
        )
        names = {index: member.name for index, member in joined.items()}
        for row in self.table.partitions:
            for index in row.members - names.keys():
                names[index] = f"(member {index})"
        promoted = {each.index for each in data}
        lite = frozenset(i for i, member in joined.items() if member.lite and i not in promoted)
        return Situation(names, self.table, data, lite, self.cluster.spec.replicas)

    @property
    def obstacles(self) -> list[str]:
        """The settings that keep the master from migrating."""
        return obstacles_of(self.cluster)


def obstacles_of(cluster: TabletCluster) -> list[str]:
    """Return the settings that keep the master from migrating."""
    spec, obstacles = cluster.spec, []
    if cluster.metadata.annotations.get(PAUSED_ANNOTATION) == "true":
        obstacles.append(f"annotation {PAUSED_ANNOTATION} is true")
    if spec.migration.paused:
        obstacles.append(PAUSED)
    if spec.migration.approval is Approval.MANUAL:
        obstacles.append(
            "spec.migration.approval is Manual: plans that only balance wait for kubectl stele approve"
        )
    in_force = cluster.status.state or spec.state
    if in_force is not spec.state:
        obstacles.append(_pending(cluster, in_force))
    elif spec.state is not ClusterState.ACTIVE:
        obstacles.append(f"spec.state is {spec.state.value}")
    return obstacles


def _pending(cluster: TabletCluster, in_force: ClusterState) -> str:
    """Describe a desired state that is not in force yet, and what it waits for."""
    text = f"spec.state is {cluster.spec.state.value} and {in_force.value} is still in force"
    paused = find_condition(cluster.status.conditions, ConditionType.PAUSED)
    is_paused = paused is not None and paused.status.value == "True"
    return f"{text} ({paused.message})" if is_paused and paused is not None else text


def handovers(rebalances: Iterable[TabletRebalance]) -> dict[str, HandoverSpec]:
    """Return the hand-overs that are in force, by the names of their objects."""
    return {
        each.metadata.name: each.spec.handover
        for each in rebalances
        if each.spec.handover is not None and not each.spec.cancel and each.status.phase not in _OVER
    }


def _placed(member: TabletMember | None) -> tuple[int, tuple[str, ...] | None]:
    """Return the member's weight and zone path."""
    return (1, None) if member is None else (member.spec.weight, member.status.zone or None)


def is_gone(member: TabletMember) -> bool:
    return member.status.state in _GONE


def _candidate(member: TabletMember) -> Candidate:
    is_replaced = member.spec.replacement is Replacement.NEW_VOLUME
    return Candidate(
        member.spec.index,
        member.spec.drain,
        reachable=not is_gone(member),
        lost=member.status.state is MemberState.LOST or is_replaced,
        deleting=member.metadata.deletion_timestamp is not None,
    )
