"""Values of one leadership over one cluster: what is desired, what is observed, what is decided, what is
remembered.

Everything remembered is derived from the table and from reports: a new master starts with an empty `State`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stele.core.control.commands import Command, ExchangeReply
from stele.core.control.failure_detector import MemberLiveness, MemberObject, Timing
from stele.core.control.invariants import hold
from stele.core.control.migration_queue import Queues
from stele.core.control.operations.cluster_state import StateChange
from stele.core.control.operations.copy_session import Copied, CopySession, Engine, Job, SparkFailure
from stele.core.control.operations.move import MigrationOperation
from stele.core.control.operations.promotion import Promotion
from stele.core.control.operations.registry import Operations
from stele.core.control.requests import RebalanceRequest
from stele.core.control.retries import Retries
from stele.core.delta import DeltaLog
from stele.core.placement.migration import Type
from stele.core.placement.plan import Plan, Refusal
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.replica_index import ReplicaIndex
from stele.core.table.table import (
    Member,
    Partition,
    PartitionTable,
    Stamp,
    checked_version,
    version_for_epoch,
)
from stele.core.tablet.lifecycle import TabletState
from stele.core.transitions import check_step


@dataclass(frozen=True, slots=True)
class DesiredSpec:
    """What the TabletCluster asks for. `held` is the annotation that stops everything but reading and
    rescue.
    """

    members: int
    replicas: int
    timing: Timing
    state: str = "Active"
    held: bool = False
    migration_paused: bool = False
    parallel_per_member: int = 10
    approval: str = "Automatic"
    on_partition_loss: str = "Wait"
    engine: str = "Auto"
    spark_threshold_bytes: int = 64 << 20
    spark_idle_seconds: float = 300.0
    fragments: bool = True
    bandwidth_per_member: int = 0

    @property
    def join_allowed(self) -> bool:
        return self.state in ("Active", "NoMigration")

    @property
    def migration_allowed(self) -> bool:
        return self.state == "Active"

    @property
    def may_start(self) -> bool:
        """Whether a migration that is planned may begin; one that may not keeps nobody busy."""
        return self.migration_allowed and not self.held and not self.migration_paused


@dataclass(frozen=True, slots=True)
class TableCursor:
    """The table as a member has it once it took in what was published: its place in the news, its stamp."""

    number: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One exchange that ended: with a report, or with None when nobody answered in time."""

    member: MemberIndex
    sent_seconds: float
    orders: tuple[Command, ...]
    published: TableCursor | None
    report: ExchangeReply | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one decision sees. `requests` are TabletRebalances to carry out, oldest first."""

    now: float
    desired: DesiredSpec
    members: tuple[MemberObject, ...]
    answers: tuple[Answer, ...] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    copier_problem: str = ""
    requests: tuple[RebalanceRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsureMember:
    """Let the member with this index exist: its object, volume and pod."""

    index: MemberIndex


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """No row names it: its pod may go, and its volume as the spec says."""

    index: MemberIndex


Intent = EnsureMember | RemoveMember


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """What a person should know: becomes a Kubernetes Event and a line in the log."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Store `rows`, `dictionary` (None: unchanged) and `cluster_state` first; then carry out the rest."""

    rows: Mapping[PartitionId, Partition]
    dictionary: Mapping[MemberIndex, Member] | None
    next_index: MemberIndex
    orders: Mapping[MemberIndex, tuple[Command, ...]]
    intents: tuple[Intent, ...]
    jobs: tuple[CopySession, ...]
    events: tuple[ClusterEvent, ...]
    busy: bool
    cluster_state: str


class Phase(StrEnum):
    """Of a plan, as its TabletRebalance shows it."""

    PENDING = "Pending"
    PROPOSED = "Proposed"
    RUNNING = "Running"
    CANCELLING = "Cancelling"
    DONE = "Done"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"


FINAL = frozenset({Phase.DONE, Phase.FAILED, Phase.SUPERSEDED})

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.RUNNING, Phase.SUPERSEDED}),
    Phase.PROPOSED: FINAL | {Phase.RUNNING, Phase.CANCELLING},
    Phase.RUNNING: FINAL | {Phase.CANCELLING},
    Phase.CANCELLING: frozenset({Phase.SUPERSEDED}),
    **dict.fromkeys(FINAL, frozenset()),
}


@dataclass(slots=True)
class RebalanceProgress:
    """One plan and how far it is: what a TabletRebalance shows.

    A plan that a user made has the `name` of its object and the `partitions` that are not yet as it asks for.
    `refusals` are final, `failures` were rolled back and are tried again, `waiting` may not start yet.
    """

    number: int
    plan: Plan
    reason: str
    started_seconds: float
    bytes_planned: int
    planned: Counter[Type]
    done: Counter[Type] = field(default_factory=Counter)
    failed: int = 0
    bytes_copied: int = 0
    bytes_by_spark: int = 0
    engine: Engine | None = None
    engine_reason: str = ""
    refusals: dict[PartitionId, Refusal] = field(default_factory=dict)
    failures: dict[PartitionId, Refusal] = field(default_factory=dict)
    waiting: dict[PartitionId, Refusal] = field(default_factory=dict)
    destinations: dict[MemberIndex, Copied] = field(default_factory=dict)
    phase: Phase = Phase.RUNNING
    finished_seconds: float | None = None
    name: str = ""
    uid: str = ""
    partitions: frozenset[PartitionId] = frozenset()
    situation: str = ""
    copies_left: int | None = None

    @staticmethod
    def of_user(name: str, uid: str, now: float) -> "RebalanceProgress":
        """For a plan that a user made and that was not looked at yet."""
        text = "moves that a user asked for"
        return RebalanceProgress(0, Plan(), text, now, 0, Counter(), phase=Phase.PENDING, name=name, uid=uid)

    def go(self, to: Phase, now: float) -> None:
        """Take a step; raises Refused for one that is not in TRANSITIONS, and nothing changes then."""
        check_step(f"plan {self.name or self.number}", TRANSITIONS, self.phase, to)
        self.phase = to
        if to is Phase.RUNNING:
            self.started_seconds = now
        elif to in FINAL:
            self.finished_seconds = now


@dataclass(slots=True)
class State:
    """The memory of one leadership.

    Invariants: `claimed[p]` is the highest version
    that somebody was asked to accept for p and that is not stored, so whatever is stored next is above it;
    `replica_index` and `stored` follow every row that is stored. `records` names the plans that count a
    migration, `asked` has users' plans by name, `proposal` is what of the present plan waits for approval,
    `approved` the situation whose plans may start, `unlisted` the members that a take-over waits for;
    nothing is planned of the partitions in `stopped`.
    `shrinking` has rows that are to lose a dead member once somebody who stays was heard, and since when.
    `copied` counts what was copied in this leadership, `short` has members without space, and when that was.
    """

    epoch: int
    table: PartitionTable
    member_list_version: int
    next_index: MemberIndex
    started_seconds: float
    recovered: bool = False
    unlisted: frozenset[MemberIndex] = frozenset()
    decided_seconds: float = float("inf")
    stamp: Stamp = field(default_factory=lambda: Stamp(()))
    liveness: dict[MemberIndex, MemberLiveness] = field(default_factory=dict)
    operations: Operations = field(default_factory=lambda: Operations(StateChange()))
    counted_for: dict[str, tuple[RebalanceProgress, ...]] = field(default_factory=dict)
    shrinking: dict[PartitionId, float] = field(default_factory=dict)
    queues: Queues = field(default_factory=Queues)
    progress: RebalanceProgress | None = None
    finished: list[RebalanceProgress] = field(default_factory=list)
    user_plans: dict[str, RebalanceProgress] = field(default_factory=dict)
    proposal: Plan | None = None
    approved: str = ""
    claimed: dict[PartitionId, Version] = field(default_factory=dict)
    fenced: set[PartitionId] = field(default_factory=set)
    lost: set[PartitionId] = field(default_factory=set)
    lost_since: dict[PartitionId, float] = field(default_factory=dict)
    reset_partitions: set[PartitionId] = field(default_factory=set)
    leaving: frozenset[MemberIndex] = frozenset()
    plan_key: tuple[object, ...] = ()
    planned_table: PartitionTable | None = None
    plan_number: int = 0
    sequence: int = 0
    planned_seconds: float = float("-inf")
    retries: Retries = field(default_factory=Retries)
    spark_failures: dict[MemberIndex, SparkFailure] = field(default_factory=dict)
    spark_used_seconds: dict[MemberIndex, float] = field(default_factory=dict)
    copied: dict[tuple[MemberIndex, Engine], Copied] = field(default_factory=dict)
    short: dict[MemberIndex, float] = field(default_factory=dict)
    service_failures: dict[PartitionId, tuple[float, str]] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    cancelled: bool = False
    stopped: set[PartitionId] = field(default_factory=set)
    events: list[ClusterEvent] = field(default_factory=list)
    staged: dict[PartitionId, Partition] = field(default_factory=dict)
    replica_index: ReplicaIndex = field(default_factory=lambda: ReplicaIndex(()))
    stored_rows: DeltaLog[PartitionId, tuple[PartitionId, Partition]] = field(default_factory=DeltaLog)

    def __post_init__(self) -> None:
        self.replica_index = ReplicaIndex(self.table.partitions)
        self.stored_rows.update({number: (number, row) for number, row in enumerate(self.table.partitions)})
        self.stamp = Stamp(partition.version for partition in self.table.partitions)

    @property
    def change(self) -> StateChange:
        return self.operations.change

    @property
    def migrations(self) -> Mapping[PartitionId, MigrationOperation]:
        return self.operations.migrations

    @property
    def promotions(self) -> Mapping[PartitionId, Promotion]:
        return self.operations.promotions

    @property
    def copy_sessions(self) -> Mapping[str, CopySession]:
        return self.operations.sessions

    def check(self) -> None:
        """Raise BrokenInvariant for what contradicts itself.

        Costs a step for each operation under way, each row that is staged or claimed, and each plan.
        """
        rows = self.table.partitions
        self.operations.check(rows)
        for number, version in self.claimed.items():
            known = rows[number].version
            hold(version > known, "partition {}: {} is claimed, {} is stored", number, version, known)
        for number, row in self.staged.items():
            operation = self.operations.by_row.get(number)
            agreed = operation is None or (operation.done and row.version >= self.claimed.get(number, 0))
            hold(agreed, "partition {}: {} is staged, {} goes on", number, row, operation and operation.id)
        self._check_plans()

    def _check_plans(self) -> None:
        waits = self.queues.left > 0 if self.queues.waiting else self.queues.left == 0
        hold(waits, "{} migrations of {} partitions wait", self.queues.left, len(self.queues.waiting))
        over = [id for id in self.counted_for if id not in self.operations]
        hold(not over, "plans count what is over: {}", over)
        own = self.progress
        hold(own is None or own.phase not in FINAL, "the present plan is over: {}", own)
        proposed = own is not None and own.phase is Phase.PROPOSED
        hold(self.proposal is None or proposed, "what waits for approval is in no plan that does: {}", own)
        for progress in self.user_plans.values() if own is None else (own, *self.user_plans.values()):
            counts = (progress.failed, progress.bytes_by_spark, *progress.done.values())
            sound = min(counts) >= 0 and progress.bytes_by_spark <= progress.bytes_copied
            hold(sound, "counts of plan {}: {}, of {} bytes", progress.number, counts, progress.bytes_copied)

    @property
    def plan_id(self) -> str:
        """Of the present plan: unique, because the epoch is in it; empty when there is none."""
        return "" if self.progress is None else f"{self.epoch}-{self.progress.number}"

    def name_of(self, index: MemberIndex) -> str:
        """What people call a member."""
        member = self.table.members.get(index)
        return f"member {index}" if member is None else member.name

    def names_of(self, members: Iterable[MemberIndex | None]) -> str:
        return ", ".join(self.name_of(member) for member in sorted(m for m in members if m is not None))

    def has_approved(self, progress: RebalanceProgress) -> bool:
        """Whether people let plans start that are made for what this one was made for."""
        return bool(progress.situation) and progress.situation == self.approved

    def under_way(self, progress: RebalanceProgress) -> list[MigrationOperation]:
        """Migrations that count for a plan and have not ended."""
        found = self.migrations.values()
        return [each for each in found if any(progress is one for one in self.counted_for.get(each.id, ()))]

    def new_id(self, kind: str) -> str:
        """An id that no other leadership of this cluster gives: the epoch is in it."""
        self.sequence += 1
        return f"{kind}{self.epoch}-{self.sequence}"

    def next_version(self, number: PartitionId, least: Version = 0) -> Version:
        """For a change while somebody who cannot be asked may have accepted something; not below `least`."""
        free = max(self.table.partitions[number].version + 2, self.claimed.get(number, 0) + 1, least)
        return checked_version(number, version_for_epoch(self.epoch, free))

    def emit(self, reason: str, message: str, warning: bool = False) -> None:
        self.events.append(ClusterEvent(reason, message, warning))

    def showed(self, member: MemberIndex, number: PartitionId, since: float) -> bool:
        """Whether it showed its copy when asked after that moment: an older answer may be of a member that
        has lost its volume meanwhile, or its life, and of that nobody has heard.
        """
        liveness = self.liveness.get(member)
        return (
            liveness is not None
            and liveness.answered_seconds > since
            and liveness.tablet_state(number) == TabletState.READY
        )

    def up_to_date(self, liveness: MemberLiveness) -> bool:
        """Whether its last report was made with the table as it is stored now."""
        report = liveness.report
        if report is None or report.code != "OK" or liveness.tablets_number != report.number:
            return False
        return report.stamp == self.stamp.value

    def apply(self, rows: Mapping[PartitionId, Partition]) -> None:
        """Rows that were stored. What was under way for them is finished."""
        if not rows:
            # The same table stays the same value: plans are compared with it by identity.
            return
        partitions = list(self.table.partitions)
        for number, row in rows.items():
            self.replica_index.set(number, partitions[number], row)
            for member in partitions[number].members | row.members:
                if member in self.liveness:
                    self.liveness[member].recheck.add(number)
            partitions[number] = row
            self.stamp.set(number, row.version)
            if self.claimed.get(number, 0) <= row.version:
                self.claimed.pop(number, None)
            self.fenced.discard(number)
        self.table = PartitionTable(tuple(partitions), self.table.members)
        self.stored_rows.update({number: (number, row) for number, row in rows.items()})

    def mismatched(self, liveness: MemberLiveness) -> list[PartitionId]:
        """Partitions of which a member holds a tablet and is not named by the row, or the other way round.

        Only with an up-to-date report; what fits is not looked at again before its row or tablet changes.
        """
        index, rows = liveness.index, self.table.partitions
        if liveness.recheck_all:
            liveness.recheck = {*self.replica_index.of(index), *liveness.tablets}
            liveness.recheck_all = False
        found = [p for p in liveness.recheck if not _fits(rows, index, p, liveness.tablet_state(p))]
        liveness.recheck = set(found)
        return found


def _fits(
    rows: tuple[Partition, ...], member: MemberIndex, partition: PartitionId, state: TabletState | None
) -> bool:
    named = partition < len(rows) and member in rows[partition].replicas
    return state == TabletState.READY if named else state in (None, TabletState.DELETED)
