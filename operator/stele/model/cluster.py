"""TabletCluster: the desired state of one cluster."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from stele.core.control.commands import ClusterState
from stele.core.control.member_settings import ClientTls, LogLevel
from stele.core.control.state import UpdateType
from stele.core.control.volumes import RecoveryPolicy
from stele.core.copy.pacing import CORES_MAX, EXECUTORS_MAX, IDLE_SECONDS_MAX
from stele.core.kv.keyspaces import Undeclared
from stele.model.cluster_status import SecurityDefaults, TabletClusterStatus
from stele.model.common import (
    CLUSTER_NAME_LENGTH,
    Amount,
    Model,
    Quantity,
    Resource,
    cel,
    quantity,
    seconds,
    whole,
)
from stele.model.pod_template import PodTemplate
from stele.model.resp import Resp
from stele.model.security import ClientSecurity, Security, clients_of

ROLLBACK_COPIES = "stele.dev/rollback-copies"
"""Annotation of a TabletCluster: the state whose change rolls copies back instead of waiting for them."""

MEMBERS_LIMIT = 1_000
PARTITIONS_LIMIT = 16_384
PARTITIONS_DEFAULT = 271
REPLICAS_LIMIT = 7
MAX_PARALLEL_LIMIT = 1_000
HISTORY_MAX = 100
IMAGE_LENGTH = 512
TOPOLOGY_KEYS_LIMIT = 5
REPLACE_SECONDS_MAX = 604_800
RESOURCE_NAMES_LIMIT = 16
"""Most entries in one map of resource requests or limits."""


class JoinAs(StrEnum):
    """Role of new members.

    Data: holds its share of partitions. Lite: serves clients and holds no partitions; it becomes a data
    member when spec.lite of its TabletMember is set to false.
    """

    DATA = "Data"
    LITE = "Lite"


class KeepVolumes(StrEnum):
    """What happens to the volume of a member that was drained and removed.

    Retain keeps the claim; Delete deletes it once no partition names the member. Volumes are never deleted
    for any other reason.
    """

    RETAIN = "Retain"
    DELETE = "Delete"


class Fsync(StrEnum):
    """When a write is forced to disk.

    Always: before it is acknowledged. Interval: every 100 ms. Never: left to the operating system. An
    acknowledged write is on every in-sync replica with each of them.
    """

    ALWAYS = "Always"
    INTERVAL = "Interval"
    NEVER = "Never"


class EngineChoice(StrEnum):
    """Engine that copies tablets.

    Spark: Spark jobs. Direct: the members themselves. Auto: chosen for each plan.
    """

    AUTO = "Auto"
    SPARK = "Spark"
    DIRECT = "Direct"


class OnPartitionLoss(StrEnum):
    """What happens to a partition without a live copy.

    Wait keeps it until a member with a copy returns. ResetToEmpty gives it a new, empty owner after the grace
    period: its data is lost.
    """

    WAIT = "Wait"
    RESET_TO_EMPTY = "ResetToEmpty"


class Approval(StrEnum):
    """Whether a plan starts by itself (Automatic) or waits for approval (Manual).

    Repairs of missing copies, promotions of backups and moves that a user requested never wait.
    """

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class Storage(Model):
    """Volume of each member."""

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
    """Size of the volume of each member, such as 2Gi. Can grow but not shrink."""
    storage_class_name: str | None = Field(default=None, min_length=1, max_length=253)
    """StorageClass of the volumes; the default class of the Kubernetes cluster when omitted.

    Cannot change.
    """
    keep_volumes: KeepVolumes = KeepVolumes.RETAIN
    fsync: Fsync = Fsync.ALWAYS
    quarantine_retention_seconds: int = whole("spec.storage.quarantineRetentionSeconds", 0, 31_536_000, 3600)
    """Seconds for which a member keeps the data of a tablet that was deleted or replaced.

    Longer while no member of the partition's row can be reached with a copy.
    """


class MigrationSpec(Model):
    """Limits and policies of data movement."""

    max_parallel_per_member: int = whole("spec.migration.maxParallelPerMember", 1, MAX_PARALLEL_LIMIT, 40)
    """Most migrations in which a member takes part at a time, as source or destination."""
    bandwidth_per_member: Quantity | None = quantity(
        "spec.migration.bandwidthPerMember",
        None,
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Mi')) >= 0",
            "spec.migration.bandwidthPerMember must be at least 1Mi: slower copies are considered stalled",
        ),
    )
    """Bytes per second that copies read from and write to one member, combined; unlimited when omitted."""
    log_space_per_member: Quantity | None = quantity(
        "spec.migration.logSpacePerMember",
        None,
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Mi')) >= 0",
            "spec.migration.logSpacePerMember must be at least 1Mi: what is written during a copy has to fit",
        ),
    )
    """Bytes of its logs that a member keeps for copies alone; a fifth of spec.storage.size when omitted.

    As many tablets are copied at once as what is written meanwhile fits into half of it.
    """
    snapshot_space_per_member: Quantity | None = quantity(
        "spec.migration.snapshotSpacePerMember",
        None,
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Mi')) >= 0",
            "spec.migration.snapshotSpacePerMember must be at least 1Mi: a copy needs its snapshot",
        ),
    )
    """Bytes that the snapshot of one copy session may hold of files that the database no longer needs.

    Half of spec.storage.size when omitted.
    """
    engine: EngineChoice = EngineChoice.AUTO
    fragments: bool = True
    """Whether a tablet is copied keyspace by keyspace, in rotation with others.

    When false, each tablet is copied as a whole.
    """
    approval: Approval = Approval.AUTOMATIC
    paused: bool = False
    """Whether to start no further migrations; running ones are completed."""
    history_limit: int = whole("spec.migration.historyLimit", 0, HISTORY_MAX, 10)
    """Finished plans of the operator that are kept as TabletRebalances; the oldest are deleted."""


class SparkSpec(Model):
    """Spark application that copies tablets."""

    executors: int = whole("spec.spark.executors", 1, EXECUTORS_MAX, 1)
    """Executors per destination node."""
    cores: int = whole("spec.spark.cores", 1, CORES_MAX, 2)
    """Copies that one executor runs at a time."""
    memory: Quantity = quantity(
        "spec.spark.memory",
        "896Mi",
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('512Mi')) >= 0",
            "spec.spark.memory must be at least 512Mi: Spark does not start with less",
        ),
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Ti')) <= 0",
            "spec.spark.memory must be at most 1Ti: each executor's pod requests it from a node",
        ),
    )
    """Memory limit of an executor's pod; values below 768Mi count as 768Mi."""
    threshold_bytes: Quantity = quantity("spec.spark.thresholdBytes", "64Mi")
    """With engine Auto, a member that needs at least this many bytes copied at once gets them from Spark."""
    idle_seconds: int = whole("spec.spark.idleSeconds", 1, IDLE_SECONDS_MAX, 300)
    """Seconds after which an idle Spark application ends."""


class FailureDetection(Model):
    """How fast an unresponsive member is detected."""

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
    """Seconds without a heartbeat after which a member is unreachable and stops serving as an owner."""
    rejoin_grace_period_seconds: int = whole("spec.failureDetection.rejoinGracePeriodSeconds", 0, 86_400, 30)
    """Seconds for which an unreachable member keeps its replicas, so that it can catch up from the log."""
    replace_after_seconds: int = whole("spec.failureDetection.replaceAfterSeconds", 0, REPLACE_SECONDS_MAX, 0)
    """Seconds after which a new member with an empty volume replaces an unreachable one; 0: never."""


class UpdateStrategy(Model):
    """How members become as the spec says after their image, resources or settings were changed."""

    type: UpdateType = UpdateType.ROLLING_UPDATE
    paused: bool = False
    """Whether to restart no further member; a restart that has begun is completed."""
    partition: int = whole("spec.updateStrategy.partition", 0, MEMBERS_LIMIT, 0)
    """Members with an index below this one are not restarted."""


class Keyspaces(Model):
    """Rules for the keyspaces of clients."""

    undeclared: Undeclared = Undeclared.ALLOW
    """Whether clients may use keyspaces that no Keyspace declares."""


class Resources(Model):
    """Resource requests and limits of the member's container."""

    requests: dict[str, Amount] = Field(default_factory=dict, max_length=RESOURCE_NAMES_LIMIT)
    """Reserved amount of each resource, such as cpu: 500m."""
    limits: dict[str, Amount] = Field(default_factory=dict, max_length=RESOURCE_NAMES_LIMIT)
    """Maximum amount of each resource, such as memory: 2Gi."""


MemberName = Annotated[str, Field(min_length=1, max_length=63)]
TopologyKey = Annotated[str, Field(min_length=1, max_length=317, pattern=r"^\S+$")]


class Placement(Model):
    """Where the copies of a partition are placed relative to each other."""

    topology_keys: tuple[TopologyKey, ...] = Field(default=(), max_length=TOPOLOGY_KEYS_LIMIT)
    """Node labels, widest first, by which the copies of a partition are kept apart where possible."""


class PodDisruptionBudget(Model):
    """How drains of nodes treat the members."""

    enabled: bool = True
    """Whether the operator keeps a PodDisruptionBudget.

    It lets one member go at a time, and none while a partition lacks a copy.
    """


class Images(Model):
    """Images that override those of the operator's installation."""

    member: str | None = Field(default=None, pattern=r"^\S+$", max_length=IMAGE_LENGTH)
    """Image of the members."""
    spark: str | None = Field(default=None, pattern=r"^\S+$", max_length=IMAGE_LENGTH)
    """Image of the Spark drivers and executors."""
    bulk: str | None = Field(default=None, pattern=r"^\S+$", max_length=IMAGE_LENGTH)
    """Image of the Jobs of kubectl stele load and dump."""


class Volumes(Model):
    """Volumes of a TabletCluster of the same name that was deleted, which this one takes with their data."""

    cluster_uid: str = Field(
        alias="clusterUID",
        max_length=36,
        json_schema_extra=cel(
            (
                "self.matches('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')",
                "spec.bootstrap.volumes.clusterUID must be a UID, the label stele.dev/cluster-uid of the "
                "claims: kubectl get pvc -L stele.dev/cluster-uid",
            ),
            (
                "self == oldSelf",
                "spec.bootstrap.volumes.clusterUID cannot change: members have this cluster's UID; "
                "delete the TabletCluster, whose volumes stay, and recover with the other UID",
            ),
        ),
    )
    """The label stele.dev/cluster-uid of their claims. Cannot change."""
    policy: RecoveryPolicy = RecoveryPolicy.MERGE
    accept_loss: tuple[MemberName, ...] = Field(default=(), max_length=MEMBERS_LIMIT)
    """Members without a claim that the recovery continues without; what only they hold is lost.

    Counts until the table is recovered, as does the policy.
    """


class Bootstrap(Model):
    """What a new cluster begins with. Only counts until its table is recovered."""

    volumes: Volumes


class TabletClusterSpec(Model):
    """Desired state of the cluster."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.bootstrap) == has(oldSelf.bootstrap)",
                "spec.bootstrap cannot be added or removed: a cluster begins once; "
                "delete the TabletCluster, whose volumes stay, and create it again",
            )
        )
    )

    members: int = whole(
        "spec.members",
        1,
        MEMBERS_LIMIT,
        ...,
        "to stop all members delete the cluster instead (kubectl delete tabletcluster NAME)",
    )
    """Number of members; set by kubectl scale. Surplus members are drained before they are removed."""
    partitions: int = whole(
        "spec.partitions",
        1,
        PARTITIONS_LIMIT,
        PARTITIONS_DEFAULT,
        "",
        (
            "self == oldSelf",
            "spec.partitions cannot change: keys would belong to other partitions; "
            "create a new cluster and copy the data",
        ),
    )
    """Number of partitions. Cannot change."""
    replicas: int = whole(
        "spec.replicas", 1, REPLICAS_LIMIT, 2, "it counts the owner too, so 2 is an owner and one backup"
    )
    """Copies of each partition, including the owner.

    A number above that of members is reported, not rejected.
    """
    state: ClusterState = ClusterState.ACTIVE
    join_as: JoinAs = JoinAs.DATA
    storage: Storage
    migration: MigrationSpec = Field(default_factory=MigrationSpec)
    spark: SparkSpec = Field(default_factory=SparkSpec)
    failure_detection: FailureDetection = Field(default_factory=FailureDetection)
    on_partition_loss: OnPartitionLoss = OnPartitionLoss.WAIT
    update_strategy: UpdateStrategy = Field(default_factory=UpdateStrategy)
    resp: Resp = Field(default_factory=Resp)
    keyspaces: Keyspaces = Field(default_factory=Keyspaces)
    resources: Resources = Field(default_factory=Resources)
    placement: Placement = Field(default_factory=Placement)
    pod_disruption_budget: PodDisruptionBudget = Field(default_factory=PodDisruptionBudget)
    images: Images = Field(default_factory=Images)
    pod_template: PodTemplate = Field(default_factory=PodTemplate)
    log_level: LogLevel = LogLevel.INFO
    """Least severity of what is logged: by members, by what copies, and by the operator about this cluster.

    INFO leaves the operator at its own level.
    """
    security: Security = Field(default_factory=Security)
    bootstrap: Bootstrap | None = None


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
                "metadata.name must be a DNS label that begins with a letter (a-z, 0-9 and -, no dots): "
                "Services are named after it; choose another name",
            ),
        )
    )
    KIND: ClassVar[str] = "TabletCluster"
    PLURAL: ClassVar[str] = "tabletclusters"

    kind: str = "TabletCluster"
    spec: TabletClusterSpec
    status: TabletClusterStatus = Field(default_factory=TabletClusterStatus)

    @property
    def is_new(self) -> bool:
        """Return whether nobody can have used it: nothing is stored, and members have been told nothing."""
        before = self.status.security
        return self.status.version_sum == 0 and before.tls is None and before.auth is None

    @property
    def security_defaults(self) -> SecurityDefaults:
        """Return what counts where the spec says nothing: closed, unless the cluster is in use already."""
        begun = SecurityDefaults.CLOSED if self.is_new else SecurityDefaults.OPEN
        return self.status.security.defaults or begun

    @property
    def security(self) -> Security:
        """Return spec.security with what it omits."""
        return self.spec.security.filled(self.security_defaults)

    @property
    def clients(self) -> ClientSecurity:
        """Return what clients must bring: the spec, but for what does not fall without an annotation."""
        return clients_of(self.security.clients, self.status.security, self.metadata.annotations)[0]

    @property
    def is_open_to_everyone(self) -> bool:
        """Whether a load balancer lets in everyone, without TLS or without asking who it is."""
        clients = self.clients
        guarded = clients.asked_tls is not ClientTls.OFF and clients.proves_who_asks
        return self.spec.resp.lets_everyone_in and not guarded

    @property
    def volumes_uid(self) -> str:
        """Return the UID that its volumes and members have: that of the cluster they were made for."""
        bootstrap = self.spec.bootstrap
        return self.metadata.uid if bootstrap is None else bootstrap.volumes.cluster_uid
