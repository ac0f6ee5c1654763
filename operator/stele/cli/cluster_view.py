"""A cluster that runs, and the situation as the master would plan it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stele.cli.situation import Situation
from stele.core.control.scaling import Candidate, leaving
from stele.core.placement.plan import DataMember
from stele.core.table.table import PartitionTable
from stele.model.cluster import Approval, ClusterState
from stele.model.conditions import ConditionType, find_condition
from stele.model.member import MemberState

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console, Table
    from stele.core.table.ids import MemberIndex
    from stele.model import TabletCluster, TabletMember

PAUSED_ANNOTATION = "stele.dev/paused"

_GONE = frozenset({MemberState.UNREACHABLE, MemberState.LOST, MemberState.LEFT})


@dataclass(frozen=True)
class ClusterView:
    """The objects of one cluster; `members` by member index."""

    cluster: "TabletCluster"
    members: "dict[MemberIndex, TabletMember]"
    table: "Table"

    @property
    def leaving(self) -> "frozenset[MemberIndex]":
        """Members that are one too many, drained or deleted."""
        surplus = leaving([_candidate(each) for each in self.members.values()], self.cluster.spec.members)
        return surplus | {index for index, each in self.members.items() if each.spec.drain}

    @property
    def situation(self) -> Situation:
        """Members that joined and can be reached hold data.

        Migrations under way are not taken into account: the rows are those that are stored.
        """
        joined = {each.index: each for each in self.table.head.members}
        going = self.leaving
        data = tuple(
            DataMember(index, *_placed(self.members.get(index)), leaving=index in going)
            for index, member in sorted(joined.items())
            if not member.lite and index in self.members and not is_gone(self.members[index])
        )
        names = {index: member.name for index, member in joined.items()}
        for row in self.table.rows:
            for index in row.members - names.keys():
                names[index] = f"(member {index})"
        lite = frozenset(index for index, member in joined.items() if member.lite)
        table = PartitionTable(self.table.rows, joined)
        return Situation(names, table, data, lite, self.cluster.spec.replicas)

    @property
    def obstacles(self) -> list[str]:
        """What keeps the master from migrating."""
        spec, found = self.cluster.spec, []
        if self.cluster.metadata.annotations.get(PAUSED_ANNOTATION) == "true":
            found.append(f"annotation {PAUSED_ANNOTATION} is true")
        if spec.migration.paused:
            found.append("spec.migration.paused is true")
        if spec.migration.approval is Approval.MANUAL:
            found.append(
                "spec.migration.approval is Manual, so what only balances waits: kubectl stele approve"
            )
        in_force = self.cluster.status.state or spec.state
        if in_force is not spec.state:
            found.append(self._pending(in_force))
        elif spec.state is not ClusterState.ACTIVE:
            found.append(f"spec.state is {spec.state.value}")
        return found

    def _pending(self, in_force: ClusterState) -> str:
        """A state that is desired and not in force, and what it waits for."""
        text = f"spec.state is {self.cluster.spec.state.value} and {in_force.value} is still in force"
        paused = find_condition(self.cluster.status.conditions, ConditionType.PAUSED)
        told = paused is not None and paused.status.value == "True"
        return f"{text} ({paused.message})" if told and paused is not None else text


async def read_cluster(console: "Console", cluster: str) -> ClusterView:
    """Read all objects of a cluster; raises NotFound."""
    found = await console.cluster(cluster)
    members = await console.members(cluster)
    return ClusterView(found, {each.spec.index: each for each in members}, await console.table(cluster))


def _placed(member: "TabletMember | None") -> tuple[int, tuple[str, ...] | None]:
    """Weight and place."""
    return (1, None) if member is None else (member.spec.weight, member.status.zone or None)


def is_gone(member: "TabletMember") -> bool:
    return member.status.state in _GONE


def _candidate(member: "TabletMember") -> Candidate:
    return Candidate(
        member.spec.index,
        member.spec.drain,
        reachable=not is_gone(member),
        lost=member.status.state is MemberState.LOST,
        deleting=member.metadata.deletion_timestamp is not None,
    )
