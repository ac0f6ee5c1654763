"""Status of a TabletCluster: what the operator observes."""

from enum import StrEnum

from pydantic import Field

from stele.core.control.commands import ClusterState
from stele.core.control.member_settings import ClientAuth, ClientCertificates, ClientTls
from stele.core.security.level import InternalTls
from stele.model.common import Model, count
from stele.model.conditions import Conditions, conditions_field


class ClusterPhase(StrEnum):
    """Summary of the cluster's state, for people; programs read the conditions."""

    PENDING = "Pending"
    FORMING = "Forming"
    RUNNING = "Running"
    REBALANCING = "Rebalancing"
    DEGRADED = "Degraded"
    LOST = "Lost"
    INVALID = "Invalid"


class MemberCounts(Model):
    """Number of members."""

    desired: int = count()
    """Members requested by the spec."""
    current: int = count()
    """Members that exist, in any state."""
    ready: int = count()
    """Members that are serving."""
    lite: int = count()
    """Lite members, which hold no partitions."""
    updated: int = count()
    """Members whose pod and volume match the spec."""


class PartitionCounts(Model):
    """Number of partitions, by replication."""

    total: int = count()
    """All partitions."""
    safe: int = count()
    """Partitions with spec.replicas copies."""
    under_replicated: int = count()
    """Partitions with an owner but fewer than spec.replicas copies."""
    lost: int = count()
    """Partitions without a live copy."""


class MigrationCounts(Model):
    """Number of migrations of the current plan."""

    active: int = count()
    """Migrations in progress."""
    waiting: int = count()
    """Migrations that have not started."""
    done: int = count()
    """Committed migrations of the current plan."""
    failed: int = count()
    """Migrations of the current plan that were rolled back."""


class CopySpace(Model):
    """Space for what copies need, in bytes."""

    log_space_per_member: int = count()
    """Log that a member keeps for copies alone."""
    snapshot_space_per_member: int = count()
    """Files that the snapshot of one copy session may hold beyond the database."""
    log_used: int = count()
    """Log that copies need now, at the member where that is most."""


class SecurityDefaults(StrEnum):
    """What counts where spec.security says nothing.

    Closed: TLS and passwords for clients, TLS among members, NetworkPolicies. Open: none of them, as in
    clusters that were made before there was a choice.
    """

    CLOSED = "Closed"
    OPEN = "Open"


class SecurityStatus(Model):
    """What is in force towards clients, and among members."""

    defaults: SecurityDefaults | None = None
    """What counts where spec.security says nothing: Closed in a cluster that this operator began, Open in
    one that is older."""
    tls: ClientTls | None = None
    """TLS on the ports of clients."""
    client_certificates: ClientCertificates | None = None
    """Certificates of clients."""
    auth: ClientAuth | None = None
    """Whether clients must authenticate."""
    members: InternalTls | None = None
    """TLS among members. Accept and Dial are on the way: both take plain connections, Dial makes none."""
    days_left: int | None = Field(default=None, json_schema_extra={"format": "int64"})
    """Whole days until the first certificate of members or CA ends; below zero once it has."""
    network_policies: bool | None = None
    """True while the operator's NetworkPolicies may exist: from before they are made until they are gone."""


class TabletClusterStatus(Model):
    """Observed state of the cluster. Written by the operator only."""

    observed_generation: int = count()
    """metadata.generation that this status describes."""
    phase: ClusterPhase | None = None
    message: str = ""
    """One sentence that explains the phase."""
    epoch: int = count()
    """Leadership epoch of the current master."""
    features: int = count()
    """Format in force among operator and members, which never falls; a build that lacks it is refused."""
    selector: str = ""
    """Label selector of the members' pods, for kubectl scale and autoscalers."""
    state: ClusterState | None = None
    """Cluster state that is in force on all members."""
    members: MemberCounts = Field(default_factory=MemberCounts)
    member_image: str = ""
    """Image that the members are to run; `members.updated` counts those that do."""
    restarted_at: str = ""
    """Annotation stele.dev/restartedAt for which `members.updated` counts."""
    partitions: PartitionCounts = Field(default_factory=PartitionCounts)
    stamp: str = ""
    """Stamp of the partition table, a 64-bit number as text; tables with equal stamps are equal."""
    version_sum: int = count()
    """Sum of the versions of all partitions; never decreases."""
    migrations: MigrationCounts = Field(default_factory=MigrationCounts)
    copy_space: CopySpace = Field(default_factory=CopySpace)
    rebalance: str = ""
    """Name of the TabletRebalance of the current plan."""
    security: SecurityStatus = Field(default_factory=SecurityStatus)
    conditions: Conditions = conditions_field()
