"""A running cluster, read as a user."""

from typing import TYPE_CHECKING

from stele.core.table.table import PartitionTable
from stele.errors import BadInput
from stele.explain.cluster_view import ClusterView, handovers

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console


async def read_cluster(console: "Console", cluster: str) -> ClusterView:
    """Read all objects of a cluster. Raises NotFound."""
    cluster_object = await console.cluster(cluster)
    members = await console.members(cluster)
    stored = await console.table(cluster)
    known = {each.index: each for each in stored.head.members}
    wanted = handovers(await console.rebalances(cluster))
    return ClusterView(
        cluster_object,
        {each.spec.index: each for each in members},
        PartitionTable(stored.rows, known, stored.head.groups),
        frozenset(each.member for each in wanted.values()),
    )


async def cluster_of(console: "Console", member: str) -> str:
    """Return the cluster of a member. Raises BadInput with the existing names."""
    members = await console.members()
    for each in members:
        if each.metadata.name == member:
            return each.spec.cluster
    names = ", ".join(each.metadata.name for each in members) or "none"
    raise BadInput(f"there is no TabletMember {member}; there are: {names}")
