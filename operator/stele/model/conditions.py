"""Conditions (metav1.Condition) of all resources, with their types and reasons, and how they are set."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from stele.model.common import Model

MESSAGE_LENGTH = 32_768
"""Longest message of a condition, as in metav1.Condition."""

LIST_MAP: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """The condition types that Stele sets; docs/reference/resources.md explains each."""

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    RECONCILING = "Reconciling"
    DEGRADED = "Degraded"
    REPLICATION_SATISFIED = "ReplicationSatisfied"
    BALANCED = "Balanced"
    SAFE_TO_EVICT = "SafeToEvict"
    PAUSED = "Paused"
    DATA_LOSS = "DataLoss"
    STALLED = "Stalled"
    TOPOLOGY_KNOWN = "TopologyKnown"
    SPARK_READY = "SparkReady"
    SECURED = "Secured"
    CERTIFICATES_HEALTHY = "CertificatesHealthy"
    QUOTA_REACHED = "QuotaReached"


class Reason(StrEnum):
    """Machine-readable reasons of conditions; docs/reference/resources.md explains each."""

    AS_DESIRED = "AsDesired"
    FORMING = "Forming"
    MEMBERS_STARTING = "MembersStarting"
    MEMBER_UNREACHABLE = "MemberUnreachable"
    MEMBERS_OUTDATED = "MembersOutdated"
    VOLUMES_RESIZING = "VolumesResizing"
    MEMBERS_INCOMPATIBLE = "MembersIncompatible"
    MIGRATING = "Migrating"
    DRAINING = "Draining"
    NO_OTHER_MEMBER = "NoOtherMember"
    UNDER_REPLICATED = "UnderReplicated"
    ALL_REPLICAS_LOST = "AllReplicasLost"
    PARTITIONS_RESET = "PartitionsReset"
    FEWER_MEMBERS_THAN_REPLICAS = "FewerMembersThanReplicas"
    FOREIGN_VOLUME = "ForeignVolume"
    RECOVERY_INCOMPLETE = "RecoveryIncomplete"
    TABLE_MISSING = "TableMissing"
    NAME_TAKEN = "NameTaken"
    WAITS_FOR_REMOVAL = "WaitsForRemoval"
    CREATION_REFUSED = "CreationRefused"
    MASTER_STOPPED = "MasterStopped"
    REQUESTS_EXCEED_LIMITS = "RequestsExceedLimits"
    INVALID_RESOURCE = "InvalidResource"
    CLUSTER_NOT_FOUND = "ClusterNotFound"
    PAUSED_BY_ANNOTATION = "PausedByAnnotation"
    PAUSED_BY_SPEC = "PausedBySpec"
    CLUSTER_STATE = "ClusterState"
    WAITING = "Waiting"
    WAITS_FOR_APPROVAL = "WaitsForApproval"
    NO_SECRET_RIGHTS = "NoSecretRights"
    CERTIFICATE_UNUSABLE = "CertificateUnusable"
    USERS_UNUSABLE = "UsersUnusable"
    PASSWORD_UNUSABLE = "PasswordUnusable"
    TOO_MANY_USERS = "TooManyUsers"
    CERTIFICATE_ENDS = "CertificateEnds"
    NOT_ASKED = "NotAsked"
    OPEN_LOAD_BALANCER = "OpenLoadBalancer"
    TOPOLOGY_UNKNOWN = "TopologyUnknown"
    UPDATE_FAILED = "UpdateFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    VOLUME_TOO_SMALL = "VolumeTooSmall"
    VOLUME_CANNOT_GROW = "VolumeCannotGrow"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    ROLLING_UPDATE = "RollingUpdate"
    NO_PROGRESS = "NoProgress"
    NO_SPACE = "NoSpace"
    COPY_CANNOT_END = "CopyCannotEnd"
    SERVICE_FAILED = "ServiceFailed"
    IN_DOUBT = "InDoubt"
    HOLDS_LAST_COPIES = "HoldsLastCopies"
    HOLDS_DATA = "HoldsData"
    HOLDS_NOTHING = "HoldsNothing"
    CANCELLED = "Cancelled"
    SUPERSEDED = "Superseded"
    MIGRATION_FAILED = "MigrationFailed"
    WAITS_FOR_MEMBERS = "WaitsForMembers"
    ALREADY_DECLARED = "AlreadyDeclared"
    TOO_MANY_KEYSPACES = "TooManyKeyspaces"
    DROPPING = "Dropping"
    NOT_EMPTY = "NotEmpty"
    TOO_MANY_PARTITIONS = "TooManyPartitions"
    OTHER_PLACEMENT = "OtherPlacement"
    AT_QUOTA = "AtQuota"
    BELOW_QUOTA = "BelowQuota"
    NO_QUOTA = "NoQuota"


class Condition(Model):
    """One observation of an object, as in metav1.Condition."""

    type: str = Field(max_length=316)
    """Type of the condition, such as Ready."""
    status: ConditionStatus
    """Whether the condition holds."""
    reason: str = Field(max_length=1024)
    """Reason of the last change, as one CamelCase word."""
    message: str = Field(default="", max_length=MESSAGE_LENGTH)
    """Explanation for people, with the remedy if one is needed."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """Time of the last change of status."""
    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """metadata.generation that the condition is based on."""


Conditions = tuple[Condition, ...]


def conditions_field() -> Any:
    """Return the field `conditions` of a status: a list with one entry per type."""
    return Field(default=(), json_schema_extra=dict(LIST_MAP))


def timestamp(now: datetime) -> str:
    """Format a time as Kubernetes does: UTC, whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def find_condition(conditions: Sequence[Condition], type_: str) -> Condition | None:
    """Return the condition of that type, None when it is not set."""
    return next((each for each in conditions if each.type == type_), None)


def set_condition(
    conditions: Sequence[Condition],
    type_: ConditionType,
    status: ConditionStatus | bool | None,
    reason: str,
    message: str,
    *,
    generation: int,
    now: datetime,
) -> Conditions:
    """Return the conditions with this one set, sorted by type.

    `lastTransitionTime` changes only with the status. A bool means True or False, None means Unknown. Longer
    messages are cut.
    """
    new_status = _status(status)
    before = find_condition(conditions, type_)
    since = before.last_transition_time if before and before.status == new_status else timestamp(now)
    changed = Condition(
        type=type_.value,
        status=new_status,
        reason=str(reason),
        message=message[:MESSAGE_LENGTH],
        last_transition_time=since,
        observed_generation=generation,
    )
    others = [each for each in conditions if each.type != type_]
    return tuple(sorted([*others, changed], key=lambda each: each.type))


def _status(status: ConditionStatus | bool | None) -> ConditionStatus:
    if isinstance(status, ConditionStatus):
        return status
    if status is None:
        return ConditionStatus.UNKNOWN
    return ConditionStatus.TRUE if status else ConditionStatus.FALSE
