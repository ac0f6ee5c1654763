"""What is known of one cluster at one moment, and who knows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stele.core.control.state import State
from stele.explain.cluster_view import ClusterView, handovers
from stele.model import TabletCluster, TabletMember, TabletRebalance

Key = tuple[str, str]
"""Namespace and name of a cluster."""


@dataclass(frozen=True)
class Facts:
    """One cluster: the master's memory, and its objects. `now` is of the master's monotonic clock."""

    state: State
    cluster: TabletCluster
    members: Sequence[TabletMember]
    rebalances: Sequence[TabletRebalance]
    now: float

    @property
    def cluster_view(self) -> ClusterView:
        """The same, as `explain` takes it; it changes no more, so that a thread may read it."""
        return ClusterView(
            self.cluster,
            {each.spec.index: each for each in self.members},
            self.state.table.stored,
            frozenset(each.member for each in handovers(self.rebalances).values()),
        )


class Source(Protocol):
    """Who knows clusters."""

    def refusal(self) -> str:
        """Return why nothing is known here, such as that another process leads; empty otherwise."""
        ...

    def clusters(self) -> Sequence[Key]:
        """Return the clusters that there are."""
        ...

    def facts(self, key: Key) -> Facts | None:
        """Return what is known of a cluster; None while its master does not run."""
        ...
