"""Values of one leadership over one cluster: desired, observed, decided, and remembered.

Everything remembered is derived from the table and from reports: a new master starts with an empty `State`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stele.core.control.commands import OK, ClusterState, Command, ExchangeReply
from stele.core.control.failure_detector import MemberLiveness, MemberObject, Timing
from stele.core.control.member_settings import (
    ClientAuth,
    ClientCertificates,
    ClientTls,
    LogLevel,
    MemberSettings,
)
from stele.core.control.member_tls import NO_TLS, MemberTls, WantedTls
from stele.core.control.membership import Membership
from stele.core.control.operations.cluster_state import StateChange
from stele.core.control.operations.copy_session import CopySession, Job
from stele.core.control.operations.move import MigrationOperation
from stele.core.control.operations.registry import Operations
from stele.core.control.parts import Copies, Failover, PlannedStops, Rebalance
from stele.core.control.progress import RebalanceProgress
from stele.core.control.requests import RebalanceRequest
from stele.core.control.table_view import TableView
from stele.core.control.volumes import Recovery
from stele.core.formats import SPOKEN, FormatRange
from stele.core.kv.announce import POD_ADDRESSES, Announce
from stele.core.security.level import InternalTls
from stele.core.table.groups import DesiredGroup, PartitionGroups
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Member, Partition, PartitionTable


class UpdateType(StrEnum):
    """How members become as the spec says.

    RollingUpdate restarts outdated members one after the other. OnDelete leaves it to users, who delete pods.
    """

    ROLLING_UPDATE = "RollingUpdate"
    ON_DELETE = "OnDelete"


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """`spec.updateStrategy`: members with an index below `partition` are not restarted."""

    type: UpdateType
    paused: bool
    partition: MemberIndex


@dataclass(frozen=True, slots=True)
class DesiredSpec:
    """The desired spec of a TabletCluster.

    `paused` is the annotation stele.dev/paused, which stops everything but reads and repairs. `log_space` and
    `snapshot_space` are bytes, see `MemberSettings`. A member that stays away is replaced after
    `replace_after_seconds`; 0: never. A change of state waits for copies that are under way, or with
    `rollback_copies` rolls them back. `groups` are those of keyspaces; one that the table has stays, also
    when it is not desired any more. What clients must bring is None while it is not ready: members keep what
    they have.
    """

    members: int
    replicas: int
    timing: Timing
    state: str
    paused: bool
    migration_paused: bool
    parallel_per_member: int
    approval: str
    on_partition_loss: str
    engine: str
    spark_threshold_bytes: int
    spark_idle_seconds: float
    fragments: bool
    bandwidth_per_member: int
    log_space: int
    snapshot_space: int
    quarantine_retention_seconds: int
    log_level: LogLevel
    update: UpdatePolicy
    replace_after_seconds: float
    rollback_copies: bool = False
    recovery: Recovery | None = None
    announce: Announce = POD_ADDRESSES
    groups: tuple[DesiredGroup, ...] = ()
    client_tls: ClientTls | None = ClientTls.OFF
    client_certificates: ClientCertificates | None = ClientCertificates.IGNORE
    auth: ClientAuth | None = ClientAuth.OFF
    member_tls: WantedTls = NO_TLS
    grace_expired: bool = True

    @property
    def member_settings(self) -> MemberSettings:
        """Settings of each member; the level of TLS among them is not desired but reached step by step."""
        return MemberSettings(
            log_space_bytes=self.log_space,
            snapshot_space_bytes=self.snapshot_space,
            quarantine_retention_seconds=self.quarantine_retention_seconds,
            heartbeat_ms=round(self.timing.heartbeat * 1000),
            lease_ms=round(self.timing.lease * 1000),
            log_level=self.log_level,
            announce=self.announce,
            client_tls=self.client_tls,
            client_certificates=self.client_certificates,
            auth=self.auth,
            grace_expired=self.grace_expired,
        )

    @property
    def join_allowed(self) -> bool:
        return self.state in (ClusterState.ACTIVE, ClusterState.NO_MIGRATION)

    @property
    def migration_allowed(self) -> bool:
        return self.state == ClusterState.ACTIVE

    @property
    def may_start(self) -> bool:
        """Whether a planned migration may start."""
        return self.migration_allowed and not self.paused and not self.migration_paused


@dataclass(frozen=True, slots=True)
class TableCursor:
    """The table of a member that has what was published: its position in the changes, and its stamp.

    `compared`: nothing was published, the member compares its table with that one.
    """

    number: int
    stamp: int
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished exchange, with a report, or None when the member did not answer in time."""

    member: MemberIndex
    sent_seconds: float
    commands: tuple[Command, ...]
    published: TableCursor | None
    report: ExchangeReply | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """Input of one decision.

    `requests` are TabletRebalances to carry out, oldest first; `claims` the names of the volume claims of
    the cluster, by the index of their member. `ending`: the master stops once no clients wait for another
    owner, so that until then none may begin to.
    """

    now: float
    desired: DesiredSpec
    members: tuple[MemberObject, ...]
    answers: tuple[Answer, ...] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    copier_problem: str = ""
    requests: tuple[RebalanceRequest, ...] = ()
    claims: Mapping[MemberIndex, str] = field(default_factory=dict)
    ending: bool = False


@dataclass(frozen=True, slots=True)
class EnsureMember:
    """Ensure that the member with this index exists: its object, volume and pod."""

    index: MemberIndex


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Remove a member that no row names: its pod, and its volume if the spec says so.

    The volume of a member that did not answer is kept: nothing was moved off it.
    """

    index: MemberIndex
    keep_volume: bool = False


@dataclass(frozen=True, slots=True)
class ForceDeletePod:
    """Delete the pod with this UID without waiting for its node, which cannot confirm its end."""

    index: MemberIndex
    pod_uid: str


@dataclass(frozen=True, slots=True)
class ReplacePod:
    """Delete the pod with this UID, in which nothing ever ran; the next one is as the spec says."""

    index: MemberIndex
    pod_uid: str


@dataclass(frozen=True, slots=True)
class RestartMember:
    """Note that this member restarts, then delete its pod with this UID; the next pod is as the spec says.

    Its place is kept for so many seconds more.
    """

    index: MemberIndex
    pod_uid: str
    keep_seconds: float


@dataclass(frozen=True, slots=True)
class FinishRestart:
    """Remove the note that this member restarts."""

    index: MemberIndex


Intent = EnsureMember | RemoveMember | ForceDeletePod | ReplacePod | RestartMember | FinishRestart


@dataclass(frozen=True, slots=True)
class AboutMember:
    """The member with this index, as what an Event is about."""

    index: MemberIndex


@dataclass(frozen=True, slots=True)
class AboutPlan:
    """A plan of this master, by its id: its object may be made after the Event."""

    id: str


@dataclass(frozen=True, slots=True)
class AboutRequest:
    """A TabletRebalance that a user made."""

    name: str
    uid: str


Subject = AboutMember | AboutPlan | AboutRequest


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A message for users: Kubernetes Events of the cluster and of its subject, and a line in the log."""

    reason: str
    message: str
    warning: bool = False
    about: Subject | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Store `groups` and `dictionary` (None: unchanged), `rows`, `cluster_state`, `features` and `member_tls`
    first; then carry out the rest."""

    rows: Mapping[PartitionId, Partition]
    dictionary: Mapping[MemberIndex, Member] | None
    next_index: MemberIndex
    commands: Mapping[MemberIndex, tuple[Command, ...]]
    intents: tuple[Intent, ...]
    jobs: tuple[CopySession, ...]
    events: tuple[ClusterEvent, ...]
    busy: bool
    cluster_state: str
    features: int
    member_tls: InternalTls
    groups: PartitionGroups | None = None


class State:
    """The memory of one leadership, in parts.

    `operations` has everything that takes several decisions, such as the `change` of the cluster state.
    `spoken` are the formats that this build speaks.
    """

    __slots__ = (
        "_sequence",
        "copies",
        "decided_seconds",
        "epoch",
        "events",
        "failover",
        "membership",
        "operations",
        "rebalance",
        "recovered",
        "spoken",
        "started_seconds",
        "stops",
        "table",
        "tls",
    )

    def __init__(
        self,
        epoch: int,
        table: PartitionTable,
        member_list_version: int,
        next_index: MemberIndex,
        started_seconds: float,
        *,
        recovered: bool = False,
        cluster_state: str = ClusterState.ACTIVE,
        features: int = SPOKEN.most,
        spoken: FormatRange = SPOKEN,
        member_tls: InternalTls = InternalTls.OFF,
    ) -> None:
        self.epoch, self.started_seconds = epoch, started_seconds
        self.recovered, self.spoken = recovered, spoken
        self.decided_seconds = float("inf")
        self.events: list[ClusterEvent] = []
        self._sequence = 0
        self.membership = Membership(member_list_version, next_index)
        self.table = TableView(epoch, table)
        self.operations = Operations(StateChange(cluster_state, features=features))
        self.failover, self.rebalance, self.copies = Failover(), Rebalance(), Copies()
        self.stops, self.tls = PlannedStops(), MemberTls(member_tls, member_tls)

    def check(self) -> None:
        """Raise BrokenInvariant for contradictions.

        Costs a step for each running operation, each staged or claimed row, and each plan.
        """
        self.operations.check(self.table.partitions)
        self.table.check(self.operations)
        self.rebalance.check(self.operations)

    @property
    def plan_id(self) -> str:
        """Id of the present plan, unique because it includes the epoch; empty when there is none."""
        return "" if self.rebalance.progress is None else f"{self.epoch}-{self.rebalance.progress.number}"

    @property
    def failing_over(self) -> bool:
        """Whether rows change their owner, or wait to lose a failed member."""
        return bool(self.operations.promotions or self.failover.shrinking)

    def name_of(self, index: MemberIndex) -> str:
        """Return a member's name."""
        member = self.table.members.get(index)
        return f"member {index}" if member is None else member.name

    def names_of(self, members: Iterable[MemberIndex | None]) -> str:
        return ", ".join(self.name_of(member) for member in sorted(m for m in members if m is not None))

    def has_approved(self, progress: RebalanceProgress) -> bool:
        """Return whether users approved plans for the situation of this one."""
        return bool(progress.situation) and progress.situation == self.rebalance.approved

    def under_way(self, progress: RebalanceProgress) -> list[MigrationOperation]:
        """Return the running migrations of a plan."""
        ids = self.rebalance.operations_of(progress)
        return [each for each in self.operations.migrations.values() if each.id in ids]

    def new_id(self, kind: str) -> str:
        """Return an id that is unique among all leaderships of this cluster: it includes the epoch."""
        self._sequence += 1
        return f"{kind}{self.epoch}-{self._sequence}"

    def emit(self, reason: str, message: str, warning: bool = False, about: Subject | None = None) -> None:
        self.events.append(ClusterEvent(reason, message, warning, about))

    def up_to_date(self, liveness: MemberLiveness) -> bool:
        """Return whether its last report was made with the table as it is stored now."""
        report = liveness.report
        if report is None or report.code != OK or liveness.tablets_number != report.number:
            return False
        return report.stamp == self.table.stamp.value

    def apply(self, rows: Mapping[PartitionId, Partition]) -> None:
        """Apply rows that were stored."""
        before = self.table.partitions
        self.table.store(rows)
        self.membership.note_rows(before, rows, self.table.changes)

    def mismatched(self, liveness: MemberLiveness) -> list[PartitionId]:
        """Return partitions with a tablet at the member but not in the row, or the reverse, by an
        up-to-date report."""
        named = self.table.replica_index.rows_of.get(liveness.index, ())
        return liveness.mismatched(self.table.partitions, named)

    def warn_about(self, liveness: MemberLiveness, reason: str, message: str, problem: str = "") -> None:
        """Emit a warning about a member, unless its problem is already known."""
        if liveness.note_problem(problem or message):
            self.emit(reason, message, warning=True, about=AboutMember(liveness.index))
