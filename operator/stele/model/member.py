"""TabletMember: one member of a cluster, made by the operator, one per pod and volume."""

from enum import StrEnum
from typing import ClassVar

from pydantic import ConfigDict, Field

from stele.model.common import CLUSTER_NAME_LENGTH, Model, Resource, cel, count, whole
from stele.model.conditions import Conditions, conditions_field

INDEX_LIMIT = 1_000_000
"""Member indexes are handed out once and never reused, so they outgrow the number of members."""


WEIGHT_LIMIT = 100


class MemberState(StrEnum):
    """Where a member is in its life."""

    JOINING = "Joining"
    ACTIVE = "Active"
    DRAINING = "Draining"
    UNREACHABLE = "Unreachable"
    LEFT = "Left"
    LOST = "Lost"


class TabletMemberSpec(Model):
    """What is wanted of the member."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.cluster == oldSelf.cluster",
                "spec.cluster cannot change: a member belongs to one cluster for life",
            ),
            (
                "self.index == oldSelf.index",
                "spec.index cannot change: the partition table names members by it",
            ),
        )
    )

    cluster: str = Field(min_length=1, max_length=CLUSTER_NAME_LENGTH)
    """Name of the TabletCluster. Cannot change."""
    index: int = whole("spec.index", 0, INDEX_LIMIT)
    """Number of the member in the partition table; never used twice in a cluster. Cannot change."""
    lite: bool = False
    """A lite member serves clients and holds no partitions."""
    weight: int = whole(
        "spec.weight", 1, WEIGHT_LIMIT, 1, "a member with 2 gets twice the share of one with 1"
    )
    """Share of partitions that it gets, compared with other members."""
    drain: bool = False
    """Moves everything off this member while true, and makes it the first to go when members are too many."""


class TabletMemberStatus(Model):
    """What the operator observes; it alone writes it."""

    observed_generation: int = count()
    """The metadata.generation that this status is about."""
    uuid: str = ""
    """Identity that the member's volume holds; a wiped volume gets a new one."""
    incarnation: int = count()
    """How often the member's process has started on this volume."""
    address: str = ""
    """Host and port under which other members reach it."""
    state: MemberState | None = None
    zone: tuple[str, ...] = ()
    """Its place: the label of its node for each of the cluster's topology keys."""
    owned: int = count()
    """Partitions that it owns."""
    backups: int = count()
    """Partitions that it holds a backup of."""
    bytes: int = count()
    """Bytes of its tablets on the volume."""
    stamp: str = ""
    """Stamp of the partition table that it has; equals the cluster's when it is up to date."""
    safe_to_evict: bool = False
    """Whether its pod may go without leaving a partition with no other copy."""
    restarts: int = count()
    """How often its container was restarted."""
    conditions: Conditions = conditions_field()


class TabletMember(Resource):
    """One member of a cluster: a pod, its volume and its identity. Made by the operator."""

    KIND: ClassVar[str] = "TabletMember"
    PLURAL: ClassVar[str] = "tabletmembers"

    kind: str = "TabletMember"
    spec: TabletMemberSpec
    status: TabletMemberStatus = Field(default_factory=TabletMemberStatus)
