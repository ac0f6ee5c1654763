"""TabletCluster: what a user wants of one cluster, and what the operator observes of it."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from stele.core.copy.pacing import CORES_MAX, EXECUTORS_MAX, IDLE_SECONDS_MAX
from stele.model.common import (
    CLUSTER_NAME_LENGTH,
    Amount,
    Model,
    Quantity,
    Resource,
    cel,
    count,
    quantity,
    seconds,
    whole,
)
from stele.model.conditions import Conditions, conditions_field

MEMBERS_LIMIT = 1_000
PARTITIONS_LIMIT = 16_384
PARTITIONS_DEFAULT = 271
REPLICAS_LIMIT = 7
MAX_PARALLEL_LIMIT = 1_000
IMAGE_LENGTH = 512
TOPOLOGY_KEYS_LIMIT = 5
RESOURCE_NAMES_LIMIT = 16
"""Entries of one map of resource requests or limits."""


class ClusterState(StrEnum):
    """What the cluster allows: Active joining and migration; NoMigration joining only; Frozen neither;
    Passive neither, and clients may only read."""

    ACTIVE = "Active"
    NO_MIGRATION = "NoMigration"
    FROZEN = "Frozen"
    PASSIVE = "Passive"


class JoinAs(StrEnum):
    """What a member that is made from now on is: Data holds its share; Lite serves clients, holds no
    partitions, and becomes a data member when spec.lite of its TabletMember is set to false."""

    DATA = "Data"
    LITE = "Lite"


class KeepVolumes(StrEnum):
    """What happens to the volume of a member that was drained and removed: Retain keeps the claim, Delete
    deletes it once no partition names the member any more. Volumes are never deleted for another reason."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Fsync(StrEnum):
    """When a write is forced to disk: Always before it is acknowledged, Interval every 100 ms, Never leaves
    it to the system. A write that is acknowledged is on every in-sync replica whatever is chosen here."""

    ALWAYS = "Always"
    INTERVAL = "Interval"
    NEVER = "Never"


class EngineChoice(StrEnum):
    """Who copies tablets: Spark jobs, the member itself (Direct), or whichever fits the plan (Auto)."""

    AUTO = "Auto"
    SPARK = "Spark"
    DIRECT = "Direct"


class OnPartitionLoss(StrEnum):
    """What happens to a partition of which no copy is alive: Wait keeps it until a member with a copy is
    back; ResetToEmpty gives it a new, empty owner after the grace period: its data is gone."""

    WAIT = "Wait"
    RESET_TO_EMPTY = "ResetToEmpty"


class Approval(StrEnum):
    """Whether a plan starts by itself or waits for a person. What makes a missing copy, and the promotion of
    a backup, never waits; neither do moves that a user asked for."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class ServiceType(StrEnum):
    """The type of the Service that clients connect to."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ClusterPhase(StrEnum):
    """The cluster in one word, for people; programs read the conditions."""

    PENDING = "Pending"
    FORMING = "Forming"
    RUNNING = "Running"
    REBALANCING = "Rebalancing"
    DEGRADED = "Degraded"
    LOST = "Lost"
    INVALID = "Invalid"


class Storage(Model):
    """The volume of each member."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.storageClassName) == has(oldSelf.storageClassName) && "
                "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
                "spec.storage.storageClassName cannot change: volumes keep their class; "
                "create a new cluster with it",
            )
        )
    )

    size: Quantity = quantity(
        "spec.storage.size",
        ...,
        (
            "!isQuantity(self) || !isQuantity(oldSelf) || quantity(self).compareTo(quantity(oldSelf)) >= 0",
            "spec.storage.size cannot shrink: volumes only grow; keep the size or raise it",
        ),
    )
    """Size of the volume of each member that is created from now on, such as 2Gi. May grow, not shrink."""
    storage_class_name: str | None = Field(default=None, min_length=1, max_length=253)
    """StorageClass of the volumes; the cluster's default class when left out. Cannot change."""
    keep_volumes: KeepVolumes = KeepVolumes.RETAIN
    fsync: Fsync = Fsync.ALWAYS


class MigrationSpec(Model):
    """How data moves."""

    max_parallel_per_member: int = whole("spec.migration.maxParallelPerMember", 1, MAX_PARALLEL_LIMIT, 40)
    """How many migrations a member takes part in at once, as source or as destination."""
    bandwidth_per_member: Quantity | None = quantity(
        "spec.migration.bandwidthPerMember",
        None,
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Mi')) >= 0",
            "spec.migration.bandwidthPerMember must be at least 1Mi: with less a copy is taken for dead",
        ),
    )
    """Bytes a second that copies read from and write to one member, both together; no limit when left out."""
    engine: EngineChoice = EngineChoice.AUTO
    fragments: bool = True
    """Copies a tablet keyspace by keyspace, in turn with others; false copies each tablet as one piece."""
    approval: Approval = Approval.AUTOMATIC
    paused: bool = False
    """Starts no further migration while true; what is under way ends."""


class SparkSpec(Model):
    """The Spark application that copies tablets."""

    executors: int = whole("spec.spark.executors", 1, EXECUTORS_MAX, 1)
    """Executors on each destination node."""
    cores: int = whole("spec.spark.cores", 1, CORES_MAX, 2)
    """Copies that run at once in an executor."""
    memory: Quantity = quantity(
        "spec.spark.memory",
        "896Mi",
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('512Mi')) >= 0",
            "spec.spark.memory must be at least 512Mi: Spark does not start with less",
        ),
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Ti')) <= 0",
            "spec.spark.memory must be at most 1Ti: it is what each executor's pod asks a node for",
        ),
    )
    """Memory limit of an executor's pod; of less than 768Mi it is 768Mi."""
    threshold_bytes: Quantity = quantity("spec.spark.thresholdBytes", "64Mi")
    """Copies of at least this much that a member needs at once are made by Spark when the engine is Auto."""
    idle_seconds: int = whole("spec.spark.idleSeconds", 1, IDLE_SECONDS_MAX, 300)
    """How long an idle Spark application waits for the next copy before it ends."""


class FailureDetection(Model):
    """How fast a silent member is noticed."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.leaseSeconds >= self.heartbeatSeconds * 2.0",
                "spec.failureDetection.leaseSeconds must be at least twice heartbeatSeconds: "
                "one lost heartbeat must not stop a member; raise leaseSeconds or lower heartbeatSeconds",
            )
        )
    )

    heartbeat_seconds: float = seconds("spec.failureDetection.heartbeatSeconds", 0.1, 60, 1.0)
    """Seconds between two heartbeats."""
    lease_seconds: float = seconds("spec.failureDetection.leaseSeconds", 0.5, 300, 3.0)
    """Seconds without a heartbeat after which a member is unreachable and stops answering as an owner."""
    rejoin_grace_period_seconds: int = whole("spec.failureDetection.rejoinGracePeriodSeconds", 0, 86_400, 30)
    """Seconds for which the place of an unreachable member is kept, so that it can catch up from the log."""


class Resp(Model):
    """The Service for Redis clients, port 6379."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.nodePort) || self.serviceType != 'ClusterIP'",
                "spec.resp.nodePort needs spec.resp.serviceType NodePort or LoadBalancer; "
                "set the type or leave nodePort out",
            )
        )
    )

    service_type: ServiceType = ServiceType.CLUSTER_IP
    node_port: int | None = whole(
        "spec.resp.nodePort", 1, 65_535, None, "most clusters allow 30000 to 32767 only"
    )
    """Port of the nodes; chosen by Kubernetes when left out."""


class Resources(Model):
    """Requests and limits of the member's container."""

    requests: dict[str, Amount] = Field(default_factory=dict, max_length=RESOURCE_NAMES_LIMIT)
    """Amount of each resource that is reserved, such as cpu: 500m."""
    limits: dict[str, Amount] = Field(default_factory=dict, max_length=RESOURCE_NAMES_LIMIT)
    """Amount of each resource that is never exceeded, such as memory: 2Gi."""


TopologyKey = Annotated[str, Field(min_length=1, max_length=317, pattern=r"^\S+$")]


class Placement(Model):
    """Where the copies of one partition are, seen from one another."""

    topology_keys: tuple[TopologyKey, ...] = Field(default=(), max_length=TOPOLOGY_KEYS_LIMIT)
    """Labels of nodes, widest first: copies are kept apart by them as far as members are there."""


class Images(Model):
    """Images that replace those of the operator's installation."""

    member: str | None = Field(default=None, pattern=r"^\S+$", max_length=IMAGE_LENGTH)
    """Image of the members."""
    spark: str | None = Field(default=None, pattern=r"^\S+$", max_length=IMAGE_LENGTH)
    """Image of the Spark drivers and executors."""


class TabletClusterSpec(Model):
    """What the user wants."""

    members: int = whole(
        "spec.members",
        1,
        MEMBERS_LIMIT,
        ...,
        "to stop all members delete the cluster instead (kubectl delete tabletcluster NAME)",
    )
    """Number of members; what kubectl scale changes. Members that are too many are drained before they go."""
    partitions: int = whole(
        "spec.partitions",
        1,
        PARTITIONS_LIMIT,
        PARTITIONS_DEFAULT,
        "",
        (
            "self == oldSelf",
            "spec.partitions cannot change: keys would belong elsewhere; "
            "create a new cluster and copy the data",
        ),
    )
    """Number of partitions. Cannot change."""
    replicas: int = whole(
        "spec.replicas", 1, REPLICAS_LIMIT, 2, "it counts the owner too, so 2 is an owner and one backup"
    )
    """Copies of each partition, the owner included. More than there are members is reported, not refused."""
    state: ClusterState = ClusterState.ACTIVE
    join_as: JoinAs = JoinAs.DATA
    storage: Storage
    migration: MigrationSpec = Field(default_factory=MigrationSpec)
    spark: SparkSpec = Field(default_factory=SparkSpec)
    failure_detection: FailureDetection = Field(default_factory=FailureDetection)
    on_partition_loss: OnPartitionLoss = OnPartitionLoss.WAIT
    resp: Resp = Field(default_factory=Resp)
    resources: Resources = Field(default_factory=Resources)
    placement: Placement = Field(default_factory=Placement)
    images: Images = Field(default_factory=Images)


class MemberCounts(Model):
    """How many members there are."""

    desired: int = count()
    """Members that spec asks for."""
    current: int = count()
    """Members that exist, in whatever state."""
    ready: int = count()
    """Members that serve."""
    lite: int = count()
    """Members that are there and hold no partitions by intent."""
    updated: int = count()
    """Members whose pod and volume are as the spec says."""


class PartitionCounts(Model):
    """How the partitions are."""

    total: int = count()
    """All partitions."""
    safe: int = count()
    """Partitions with as many copies as spec.replicas asks for."""
    under_replicated: int = count()
    """Partitions with an owner and too few copies."""
    lost: int = count()
    """Partitions without any copy that is alive."""


class MigrationCounts(Model):
    """How the migrations of the present plan are."""

    active: int = count()
    """Migrations under way."""
    waiting: int = count()
    """Migrations that wait for their turn."""
    done: int = count()
    """Migrations of the present plan that are committed."""
    failed: int = count()
    """Migrations of the present plan that were rolled back."""


class TabletClusterStatus(Model):
    """What the operator observes; it alone writes it."""

    observed_generation: int = count()
    """The metadata.generation that this status is about."""
    phase: ClusterPhase | None = None
    message: str = ""
    """The phase in a sentence."""
    epoch: int = count()
    """The leadership epoch of the present master."""
    selector: str = ""
    """Label selector of the members' pods, for kubectl scale and autoscalers."""
    state: ClusterState | None = None
    """The cluster state that is in force on all members."""
    members: MemberCounts = Field(default_factory=MemberCounts)
    partitions: PartitionCounts = Field(default_factory=PartitionCounts)
    stamp: str = ""
    """Stamp of the partition table, a 64-bit number as text: equal stamps, equal tables."""
    version_sum: int = count()
    """Sum of the versions of all partitions; only grows."""
    migrations: MigrationCounts = Field(default_factory=MigrationCounts)
    rebalance: str = ""
    """Name of the TabletRebalance of the present plan."""
    conditions: Conditions = conditions_field()


class TabletCluster(Resource):
    """A partitioned, replicated key-value store: its members, copies and volumes."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"self.metadata.name.size() <= {CLUSTER_NAME_LENGTH}",
                f"metadata.name must have at most {CLUSTER_NAME_LENGTH} letters: "
                "pods and hosts are named after it; choose a shorter name",
            ),
            (
                "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                "metadata.name must be a DNS label that begins with a letter (a-z, 0-9 and - only, no dots): "
                "Services are named after it; choose another name",
            ),
        )
    )
    KIND: ClassVar[str] = "TabletCluster"
    PLURAL: ClassVar[str] = "tabletclusters"

    kind: str = "TabletCluster"
    spec: TabletClusterSpec
    status: TabletClusterStatus = Field(default_factory=TabletClusterStatus)
