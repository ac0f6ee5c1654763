"""TabletRebalance: one plan of migrations, its progress, and the reasons of refusals."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import ConfigDict, Field

from stele.core.control.progress import RebalancePhase
from stele.model.cluster import MEMBERS_LIMIT, PARTITIONS_LIMIT, REPLICAS_LIMIT, EngineChoice
from stele.model.common import CLUSTER_NAME_LENGTH, Model, Resource, cel, count, whole
from stele.model.conditions import Conditions, conditions_field

REFUSALS_LIMIT = 50
"""Refusals that a status lists; further ones are only counted."""

DESTINATIONS_LIMIT = 50
"""Destinations that a status lists; further ones are only counted."""

MOVES_LIMIT = 1_000
"""Most moves, and most cancelled partitions, of one TabletRebalance."""

MEMBER_NAME_LENGTH = 63


class RebalanceMode(StrEnum):
    """Execute runs the plan; DryRun only computes and shows it."""

    EXECUTE = "Execute"
    DRY_RUN = "DryRun"


class MoveSpec(Model):
    """Move of one replica to another member.

    Without `from`, a missing replica is created; without `to`, a surplus replica is dropped.
    """

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.from) || has(self.to)",
                "each of spec.moves needs from, to or both, as names of members",
            ),
            (
                "!has(self.from) || !has(self.to) || self.from != self.to",
                "spec.moves: from and to must be different members",
            ),
        )
    )

    partition: int = whole("spec.moves.partition", 0, PARTITIONS_LIMIT - 1)
    """Number of the partition."""
    source: str | None = Field(default=None, alias="from", min_length=1, max_length=MEMBER_NAME_LENGTH)
    """Name of the TabletMember that gives up its replica."""
    destination: str | None = Field(default=None, alias="to", min_length=1, max_length=MEMBER_NAME_LENGTH)
    """Name of the TabletMember that receives the replica."""


PartitionNumber = Annotated[int, Field(ge=0, le=PARTITIONS_LIMIT - 1, json_schema_extra={"format": "int32"})]


class HandoverSpec(Model):
    """Member that is to own nothing, and who takes over."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.to) || self.member != self.to",
                "spec.handover: member and to must be different members",
            ),
        )
    )

    member: str = Field(min_length=1, max_length=MEMBER_NAME_LENGTH)
    """Name of the TabletMember that is to own nothing while this object exists."""
    destination: str | None = Field(default=None, alias="to", min_length=1, max_length=MEMBER_NAME_LENGTH)
    """Name of the only TabletMember that takes over; without it, all backups do, evenly."""


class Changes(Model):
    """Hypothetical changes of the TabletCluster for a preview."""

    members: int | None = whole("spec.changes.members", 1, MEMBERS_LIMIT, None)
    """Number of members."""
    replicas: int | None = whole("spec.changes.replicas", 1, REPLICAS_LIMIT, None)
    """Copies of each partition."""


class TabletRebalanceSpec(Model):
    """Desired plan."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.cluster == oldSelf.cluster",
                "spec.cluster cannot change: a plan is for one cluster; create another TabletRebalance",
            ),
            (
                "self.mode == oldSelf.mode",
                "spec.mode cannot change: a plan is either run or shown; create another TabletRebalance",
            ),
            (
                "self.cancel || !oldSelf.cancel",
                "spec.cancel cannot be reset: the plan is cancelled; create another TabletRebalance",
            ),
            (
                "self.approved || !oldSelf.approved",
                "spec.approved cannot be reset: the plan is running; set spec.cancel to stop it",
            ),
            (
                "self.cancel || !self.rollBack",
                "spec.rollBack needs spec.cancel: set both to stop the plan and undo running migrations",
            ),
            (
                "has(self.moves) == has(oldSelf.moves) && (!has(self.moves) || self.moves == oldSelf.moves)",
                "spec.moves cannot change: create another TabletRebalance",
            ),
            (
                "has(self.handover) == has(oldSelf.handover) "
                "&& (!has(self.handover) || self.handover == oldSelf.handover)",
                "spec.handover cannot change: create another TabletRebalance",
            ),
            (
                "!has(self.handover) || (!has(self.moves) && !has(self.changes) && self.mode == 'Execute')",
                "spec.handover stands alone: without spec.moves and spec.changes, with spec.mode Execute",
            ),
            (
                "!has(self.changes) || self.mode == 'DryRun'",
                "spec.changes needs spec.mode DryRun: edit the TabletCluster to apply such changes",
            ),
        )
    )

    cluster: str = Field(min_length=1, max_length=CLUSTER_NAME_LENGTH)
    """Name of the TabletCluster. Cannot change."""
    mode: RebalanceMode = RebalanceMode.EXECUTE
    moves: tuple[MoveSpec, ...] | None = Field(default=None, min_length=1, max_length=MOVES_LIMIT)
    """Replicas to move to the named members; for plans created by users. Cannot change."""
    handover: HandoverSpec | None = None
    """Member whose partitions are handed over to backups, without a copy; for plans created by users. It owns
    nothing while this object exists and is not cancelled. Cannot change."""
    changes: Changes | None = None
    """For a DryRun: plan for these changes of the cluster."""
    approved: bool = False
    """Whether a plan in phase Proposed may start."""
    cancel: bool = False
    """Whether to start no further migrations of this plan; running ones are completed."""
    roll_back: bool = False
    """With cancel: undo running migrations, except those whose destination was asked to take over."""
    cancel_migrations: tuple[PartitionNumber, ...] | None = Field(default=None, max_length=MOVES_LIMIT)
    """Partitions that this plan leaves unchanged; their running migrations are undone in the same way."""


class CountsByType(Model):
    """Number of migrations of each type."""

    total: int = count()
    """All migrations."""
    move: int = count()
    """Migrations of a replica from one member to another."""
    copies: int = Field(default=0, alias="copy", json_schema_extra={"format": "int64"})
    """Creations of a missing replica."""
    shift_up: int = count()
    """Moves of a replica to a lower index, without data."""
    shift_down: int = count()
    """Moves of a replica to a higher index while a new member takes its place."""
    clear: int = count()
    """Removals of a surplus replica."""

    swap: int = count()
    """Exchanges of the owner and a backup, without data."""

    @classmethod
    def of(cls, **counts: int) -> Self:
        """Return the counts by type, with their sum as total."""
        return cls(total=sum(counts.values()), **counts)


class Refusal(Model):
    """Why a migration waits or was refused."""

    reason: str = Field(max_length=128)
    """Reason code, such as STALE_VERSION."""
    partition: int | None = Field(default=None, json_schema_extra={"format": "int32"})
    """Number of the partition; omitted when the refusal concerns the whole plan."""
    message: str = Field(default="", max_length=1024)
    """Explanation for people, with the remedy."""


class CopyDestination(Model):
    """Copies of the plan to one member."""

    member: str = Field(max_length=MEMBER_NAME_LENGTH)
    """Name of the TabletMember."""
    engine: EngineChoice | None = None
    """Engine that copies to it, Spark or Direct, as last chosen."""
    engine_reason: str = Field(default="", max_length=1024)
    """Why the engine was chosen."""
    bytes_planned: int = count()
    """Bytes that the plan copies to it, as estimated when its first copy was."""
    bytes_copied: int = count()
    """Bytes copied to it so far."""
    megabytes_per_second: str = ""
    """Throughput in units of 1,000,000 bytes per second, from its first copy until now or until its last
    copy ended."""
    tasks: int = count()
    """Tasks that shared its tablets: of Spark, or threads of the member."""
    retries: int = count()
    """Retries: of tasks by Spark, and of fragments within them."""
    failures: int = count()
    """Failed copy sessions; their migrations were copied by the other engine or rolled back."""


class TabletRebalanceStatus(Model):
    """Observed state of the plan. Written by the operator only."""

    observed_generation: int = count()
    """metadata.generation that this status describes."""
    phase: RebalancePhase | None = None
    reason: str = ""
    """Why the plan was made, such as a changed number of members."""
    situation: str = ""
    """Fingerprint of the situation that the plan was made for; decisions about it hold as long as it is
    unchanged."""
    copies_left: int | None = Field(default=None, json_schema_extra={"format": "int32"})
    """Copies of each partition that the plan leaves, when fewer than the cluster's spec.replicas."""
    engine: EngineChoice | None = None
    """Engine that copies: Spark or Direct."""
    engine_reason: str = ""
    """Why the engine was chosen."""
    planned: CountsByType = Field(default_factory=CountsByType)
    """Planned migrations, by type."""
    done: CountsByType = Field(default_factory=CountsByType)
    """Committed migrations, by type."""
    failed: int = count()
    """Migrations that were rolled back."""
    bytes_planned: int = count()
    """Bytes that the plan copies, as estimated when it was made."""
    bytes_copied: int = count()
    """Bytes copied so far."""
    bytes_by_spark: int = count()
    """Bytes of bytesCopied that Spark copied."""
    destinations: tuple[CopyDestination, ...] = Field(default=(), max_length=DESTINATIONS_LIMIT)
    """Members that the plan copies to, those with the most bytes first."""
    destinations_total: int = count()
    """Number of all destinations, including unlisted ones."""
    throughput_bytes_per_second: int = count()
    """Bytes copied per second: current while the plan runs, average when it is finished."""
    megabytes_per_second: str = ""
    """throughputBytesPerSecond in units of 1,000,000 bytes, for the column MB/s."""
    eta_seconds: int | None = Field(default=None, json_schema_extra={"format": "int64"})
    """Estimated seconds until the plan is done; omitted while unknown."""
    refusals: tuple[Refusal, ...] = Field(default=(), max_length=REFUSALS_LIMIT)
    """Why migrations wait or were refused."""
    refusals_total: int = count()
    """Number of all refusals, including unlisted ones."""
    started_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Start of the first migration."""
    finished_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """End of the plan, in any final phase."""
    conditions: Conditions = conditions_field()


class TabletRebalance(Resource):
    """One plan of migrations and its progress.

    Created by the operator, or by users to preview or request moves.
    """

    KIND: ClassVar[str] = "TabletRebalance"
    PLURAL: ClassVar[str] = "tabletrebalances"

    kind: str = "TabletRebalance"
    spec: TabletRebalanceSpec
    status: TabletRebalanceStatus = Field(default_factory=TabletRebalanceStatus)
