"""TabletRebalance: one plan of migrations, its progress, and why something in it is refused."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import ConfigDict, Field

from stele.model.cluster import MEMBERS_LIMIT, PARTITIONS_LIMIT, REPLICAS_LIMIT, EngineChoice
from stele.model.common import CLUSTER_NAME_LENGTH, Model, Resource, cel, count, whole
from stele.model.conditions import Conditions, conditions_field

REFUSALS_LIMIT = 50
"""Refusals that a status lists; further ones are counted only."""

DESTINATIONS_LIMIT = 50
"""Destinations that a status lists; further ones are counted only."""

MOVES_LIMIT = 1_000
"""Moves of one TabletRebalance, and partitions that one leaves out."""

MEMBER_NAME_LENGTH = 63


class RebalanceMode(StrEnum):
    """Execute runs the plan; DryRun only says what it would be."""

    EXECUTE = "Execute"
    DRY_RUN = "DryRun"


class RebalancePhase(StrEnum):
    """Where the plan is in its life; Done, Failed, Superseded are final. Proposed: a DryRun that can be read,
    or a plan that waits for spec.approved."""

    PENDING = "Pending"
    PROPOSED = "Proposed"
    RUNNING = "Running"
    CANCELLING = "Cancelling"
    DONE = "Done"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"


class MoveSpec(Model):
    """One replica that should be on another member. Without `from` a missing replica is made, without `to`
    one that is too many is given up."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.from) || has(self.to)",
                "each of spec.moves needs from, to, or both: names of members",
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
    """Name of the TabletMember that gives its replica up."""
    destination: str | None = Field(default=None, alias="to", min_length=1, max_length=MEMBER_NAME_LENGTH)
    """Name of the TabletMember that gets the replica."""


PartitionNumber = Annotated[int, Field(ge=0, le=PARTITIONS_LIMIT - 1, json_schema_extra={"format": "int32"})]


class Changes(Model):
    """What a preview supposes of the TabletCluster instead of what is there."""

    members: int | None = whole("spec.changes.members", 1, MEMBERS_LIMIT, None)
    """Number of members."""
    replicas: int | None = whole("spec.changes.replicas", 1, REPLICAS_LIMIT, None)
    """Copies of each partition."""


class TabletRebalanceSpec(Model):
    """What is wanted."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.cluster == oldSelf.cluster",
                "spec.cluster cannot change: a plan is for one cluster; create another TabletRebalance",
            ),
            (
                "self.mode == oldSelf.mode",
                "spec.mode cannot change: a plan is run or shown; create another TabletRebalance",
            ),
            (
                "self.cancel || !oldSelf.cancel",
                "spec.cancel cannot be taken back: what was cancelled is gone; "
                "create another TabletRebalance",
            ),
            (
                "self.approved || !oldSelf.approved",
                "spec.approved cannot be taken back: the plan runs; set spec.cancel to stop it",
            ),
            (
                "self.cancel || !self.rollBack",
                "spec.rollBack needs spec.cancel: true; set both to stop the plan and undo what is under way",
            ),
            (
                "has(self.moves) == has(oldSelf.moves) && (!has(self.moves) || self.moves == oldSelf.moves)",
                "spec.moves cannot change: create another TabletRebalance",
            ),
            (
                "!has(self.changes) || self.mode == 'DryRun'",
                "spec.changes needs spec.mode DryRun: members and replicas are changed in the TabletCluster",
            ),
        )
    )

    cluster: str = Field(min_length=1, max_length=CLUSTER_NAME_LENGTH)
    """Name of the TabletCluster. Cannot change."""
    mode: RebalanceMode = RebalanceMode.EXECUTE
    moves: tuple[MoveSpec, ...] | None = Field(default=None, min_length=1, max_length=MOVES_LIMIT)
    """Replicas that should be on members that you name; for plans that you make. Cannot change."""
    changes: Changes | None = None
    """For a DryRun: shows what would be done after these changes of the cluster."""
    approved: bool = False
    """Lets a plan start that is Proposed."""
    cancel: bool = False
    """Starts no further migration of this plan; what is under way ends."""
    roll_back: bool = False
    """With cancel: what is under way is undone, unless its destination was asked to take it over."""
    cancel_migrations: tuple[PartitionNumber, ...] | None = Field(default=None, max_length=MOVES_LIMIT)
    """Partitions that this plan leaves as they are; what is under way for them is undone likewise."""


class CountsByType(Model):
    """Number of migrations of each type."""

    total: int = count()
    """All of them."""
    move: int = count()
    """A replica goes from one member to another."""
    copies: int = Field(default=0, alias="copy", json_schema_extra={"format": "int64"})
    """A missing replica is made."""
    shift_up: int = count()
    """A replica becomes hotter: no data moves."""
    shift_down: int = count()
    """A replica becomes colder while another takes its place."""
    clear: int = count()
    """A replica that is too many goes."""

    @classmethod
    def of(cls, move: int = 0, copy: int = 0, shift_up: int = 0, shift_down: int = 0, clear: int = 0) -> Self:
        """Counts whose total is their sum."""
        total = move + copy + shift_up + shift_down + clear
        return cls(total=total, move=move, copy=copy, shift_up=shift_up, shift_down=shift_down, clear=clear)


class Refusal(Model):
    """Why one migration waits or was refused."""

    reason: str = Field(max_length=128)
    """Reason code, such as STALE_VERSION."""
    partition: int | None = Field(default=None, json_schema_extra={"format": "int32"})
    """The partition; left out when the refusal is about the whole plan."""
    message: str = Field(default="", max_length=1024)
    """The reason for people, with what to do."""


class CopyDestination(Model):
    """What the plan copies to one member."""

    member: str = Field(max_length=MEMBER_NAME_LENGTH)
    """Name of the TabletMember."""
    engine: EngineChoice | None = None
    """Who copies to it: Spark or Direct, as chosen last."""
    engine_reason: str = Field(default="", max_length=1024)
    """Why that engine was chosen."""
    bytes_planned: int = count()
    """Bytes that the plan copies to it, as estimated when the first of them were."""
    bytes_copied: int = count()
    """Bytes that were copied to it so far."""
    megabytes_per_second: str = ""
    """1,000,000 bytes per second from its first copy until now, or until its last copy ended."""
    tasks: int = count()
    """Tasks that shared its tablets: those of Spark, or threads of its own."""
    retries: int = count()
    """What was begun again: tasks by Spark, and copies of a fragment within them."""
    failures: int = count()
    """Sessions that failed; their migrations were copied by the other engine, or rolled back."""


class TabletRebalanceStatus(Model):
    """What the operator observes; it alone writes it."""

    observed_generation: int = count()
    """The metadata.generation that this status is about."""
    phase: RebalancePhase | None = None
    reason: str = ""
    """Why the plan was made, such as a changed number of members."""
    situation: str = ""
    """Fingerprint of what the plan was made for: what was said about it holds while that stays the same."""
    copies_left: int | None = Field(default=None, json_schema_extra={"format": "int32"})
    """Copies of each partition that the plan leaves, when that is less than the cluster's spec.replicas."""
    engine: EngineChoice | None = None
    """Who copies: Spark or Direct."""
    engine_reason: str = ""
    """Why that engine was chosen."""
    planned: CountsByType = Field(default_factory=CountsByType)
    """Migrations of the plan by type."""
    done: CountsByType = Field(default_factory=CountsByType)
    """Migrations that are committed, by type."""
    failed: int = count()
    """Migrations that were rolled back."""
    bytes_planned: int = count()
    """Bytes that the plan copies, as estimated when it was made."""
    bytes_copied: int = count()
    """Bytes that were copied so far."""
    bytes_by_spark: int = count()
    """Bytes of bytesCopied that Spark copied."""
    destinations: tuple[CopyDestination, ...] = Field(default=(), max_length=DESTINATIONS_LIMIT)
    """Members that the plan copies to, those with the most bytes first."""
    destinations_total: int = count()
    """Number of all destinations, those that are not listed included."""
    throughput_bytes_per_second: int = count()
    """Bytes copied per second: now while it runs, on average when it is finished."""
    megabytes_per_second: str = ""
    """throughputBytesPerSecond in units of 1,000,000 bytes, for the column MB/S."""
    eta_seconds: int | None = Field(default=None, json_schema_extra={"format": "int64"})
    """Seconds until the plan is done, as estimated; left out while it is unknown."""
    refusals: tuple[Refusal, ...] = Field(default=(), max_length=REFUSALS_LIMIT)
    """Why migrations wait or were refused."""
    refusals_total: int = count()
    """Number of all refusals, those that are not listed included."""
    started_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the first migration started."""
    finished_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the plan ended, in whatever phase."""
    conditions: Conditions = conditions_field()


class TabletRebalance(Resource):
    """One plan of migrations and its progress. Made by the operator, or by users to see a plan."""

    KIND: ClassVar[str] = "TabletRebalance"
    PLURAL: ClassVar[str] = "tabletrebalances"

    kind: str = "TabletRebalance"
    spec: TabletRebalanceSpec
    status: TabletRebalanceStatus = Field(default_factory=TabletRebalanceStatus)
