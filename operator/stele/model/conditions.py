"""Conditions (metav1.Condition) of all resources, their types and reasons, and the one way to set them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from stele.model.common import Model

MESSAGE_LENGTH = 32_768
"""Letters of a condition's message; the limit of metav1.Condition."""

LIST_MAP: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """The conditions that Stele sets; docs/reference/resources.md explains each."""

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    REPLICATION_SATISFIED = "ReplicationSatisfied"
    BALANCED = "Balanced"
    SAFE_TO_EVICT = "SafeToEvict"
    PAUSED = "Paused"
    DATA_LOSS = "DataLoss"
    STALLED = "Stalled"
    TOPOLOGY_KNOWN = "TopologyKnown"


class Reason(StrEnum):
    """Why a condition has its status, in one word for programs; docs/reference/resources.md explains each."""

    AS_DESIRED = "AsDesired"
    FORMING = "Forming"
    MEMBERS_STARTING = "MembersStarting"
    MEMBER_UNREACHABLE = "MemberUnreachable"
    MEMBERS_OUTDATED = "MembersOutdated"
    MIGRATING = "Migrating"
    DRAINING = "Draining"
    UNDER_REPLICATED = "UnderReplicated"
    ALL_REPLICAS_LOST = "AllReplicasLost"
    PARTITIONS_RESET = "PartitionsReset"
    FEWER_MEMBERS_THAN_REPLICAS = "FewerMembersThanReplicas"
    FOREIGN_VOLUME = "ForeignVolume"
    NAME_TAKEN = "NameTaken"
    WAITS_FOR_REMOVAL = "WaitsForRemoval"
    REQUESTS_EXCEED_LIMITS = "RequestsExceedLimits"
    INVALID_RESOURCE = "InvalidResource"
    CLUSTER_NOT_FOUND = "ClusterNotFound"
    PAUSED_BY_ANNOTATION = "PausedByAnnotation"
    PAUSED_BY_SPEC = "PausedBySpec"
    CLUSTER_STATE = "ClusterState"
    WAITING = "Waiting"
    WAITS_FOR_APPROVAL = "WaitsForApproval"
    TOPOLOGY_UNKNOWN = "TopologyUnknown"
    NO_PROGRESS = "NoProgress"
    NO_SPACE = "NoSpace"
    SERVICE_FAILED = "ServiceFailed"
    HOLDS_LAST_COPIES = "HoldsLastCopies"
    HOLDS_DATA = "HoldsData"
    HOLDS_NOTHING = "HoldsNothing"
    CANCELLED = "Cancelled"
    SUPERSEDED = "Superseded"
    MIGRATION_FAILED = "MigrationFailed"


class Condition(Model):
    """One observation about an object, as metav1.Condition."""

    type: str = Field(max_length=316)
    """What is observed, such as Ready."""
    status: ConditionStatus
    """Whether it holds."""
    reason: str = Field(max_length=1024)
    """Why, in one CamelCase word."""
    message: str = Field(default="", max_length=MESSAGE_LENGTH)
    """Why, for people, with what to do when something is to be done."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When the status last changed."""
    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """The metadata.generation that was observed."""


Conditions = tuple[Condition, ...]


def conditions_field() -> Any:
    """The field `conditions` of a status: a list with one entry per type."""
    return Field(default=(), json_schema_extra=dict(LIST_MAP))


def timestamp(now: datetime) -> str:
    """A moment as Kubernetes writes it: UTC, whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def find_condition(conditions: Sequence[Condition], type_: str) -> Condition | None:
    """The condition of that type, if set."""
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
    """The conditions with this one set, sorted by type; `lastTransitionTime` moves with the status only.

    A bool stands for True or False, None for Unknown; a message that is too long is cut.
    """
    wanted = _status(status)
    before = find_condition(conditions, type_)
    since = before.last_transition_time if before and before.status == wanted else timestamp(now)
    changed = Condition(
        type=type_.value,
        status=wanted,
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
