"""TabletMember: one member of a cluster, created by the operator, with its own pod and volume."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from pydantic import ConfigDict, Field

from stele.core.control.failure_detector import Replacement
from stele.model.common import CLUSTER_NAME_LENGTH, Model, Resource, cel, count, whole
from stele.model.conditions import Conditions, conditions_field

INDEX_LIMIT = 1_000_000
"""Greatest member index. Indexes are never reused, so they exceed the number of members."""


WEIGHT_LIMIT = 100


ACCEPTED_COPY = "accept.stele.dev/"
"""Prefix of annotations by which users accept a member's copy of a lost partition: the number follows, the
value is the version of the row that they saw."""


def accepted_copies(annotations: Mapping[str, str]) -> frozenset[tuple[int, int]]:
    """Return partitions and versions; what is not written as two numbers accepts nothing."""
    return frozenset(
        (int(number), int(version))
        for name, version in annotations.items()
        if name.startswith(ACCEPTED_COPY)
        and _is_number(number := name.removeprefix(ACCEPTED_COPY))
        and _is_number(version)
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


class MemberState(StrEnum):
    """Phase of a member's life."""

    JOINING = "Joining"
    ACTIVE = "Active"
    DRAINING = "Draining"
    UNREACHABLE = "Unreachable"
    LEFT = "Left"
    LOST = "Lost"


class TabletMemberSpec(Model):
    """Desired state of the member."""

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
    """Index of the member in the partition table; never reused within a cluster. Cannot change."""
    lite: bool = False
    """Whether this is a lite member, which serves clients and holds no partitions."""
    weight: int = whole(
        "spec.weight", 1, WEIGHT_LIMIT, 1, "a member with 2 gets twice the share of one with 1"
    )
    """Share of partitions relative to other members."""
    drain: bool = False
    """Whether to move all partitions off this member.

    A drained member is also the first to be removed on scale-down.
    """
    replacement: Replacement | None = None
    """What becomes of the member when it does not come back; decided by the operator when omitted."""


class VolumeStatus(Model):
    """A member's volume; each field is empty while it is not known."""

    requested: str = ""
    """Size that its claim requests."""
    capacity: str = ""
    """Size of the volume, which the storage driver may still be growing."""
    free: str = ""
    """Space that the member last reported as free."""


class TabletMemberStatus(Model):
    """Observed state of the member. Written by the operator only."""

    observed_generation: int = count()
    """metadata.generation that this status describes."""
    uuid: str = ""
    """Identity stored on the member's volume; a wiped volume gets a new one."""
    incarnation: int = count()
    """Number of starts of the member's process on this volume."""
    address: str = ""
    """Host and port at which other members reach it."""
    state: MemberState | None = None
    lite: bool = False
    """Whether it is a lite member now; a change of spec.lite takes effect later."""
    node: str = ""
    """Node that its pod was last scheduled on."""
    zone: tuple[str, ...] = ()
    """Location: its node's label for each of the cluster's topology keys."""
    owned: int = count()
    """Number of partitions that it owns."""
    backups: int = count()
    """Number of partitions that it has a backup of."""
    bytes: int = count()
    """Bytes of its tablets on the volume."""
    volume: VolumeStatus = Field(default_factory=VolumeStatus)
    stamp: str = ""
    """Stamp of the partition table that the member has; equals the cluster's when it is up to date."""
    safe_to_evict: bool = False
    """Whether the pod can be evicted without taking the last copy of any partition."""
    restarts: int = count()
    """Number of restarts of its container."""
    conditions: Conditions = conditions_field()


class TabletMember(Resource):
    """One member of a cluster: a pod, its volume and its identity. Created by the operator."""

    KIND: ClassVar[str] = "TabletMember"
    PLURAL: ClassVar[str] = "tabletmembers"

    kind: str = "TabletMember"
    spec: TabletMemberSpec
    status: TabletMemberStatus = Field(default_factory=TabletMemberStatus)
