"""Which members exist and are alive, and how long the place of a silent one is kept.

All times are seconds of the driver's monotonic clock and are passed in. Evidence of life counts from when the
request was *sent*: a reply proves nothing about later times. Kubernetes may report the end of a process after
its successor has started to answer; so an end counts only after a request that was sent later has failed or
remained unanswered for a moment.

A failed member is not known to be dead: `kubectl delete --force`, or the removal of its node, deletes a pod
object while the process still runs, and a new pod is no evidence about the old process. It is dead once the
kubelet of the pod whose process answered last has shown its end. For all others the master waits for leases
to expire.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from stele.core.control.commands import ExchangeReply, KeyspaceSize, TabletReport
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition
from stele.core.tablet.lifecycle import TabletState

NEVER = float("-inf")

CONFIRM_SECONDS = 0.5
"""Seconds in which a process that reportedly ended may prove the contrary."""


class Life(Enum):
    """State of a member (docs/internals/operator.md, "Members that come and go")."""

    JOINING = "Joining"
    ACTIVE = "Active"
    DRAINING = "Draining"
    UNREACHABLE = "Unreachable"
    LEFT = "Left"
    LOST = "Lost"


class NodeState(Enum):
    """What Kubernetes says of a node. GONE: there is no such node, which does not prove that it is off.

    OUT_OF_SERVICE: a user declared it to be off, with the taint node.kubernetes.io/out-of-service.
    """

    UNKNOWN = "Unknown"
    READY = "Ready"
    NOT_READY = "NotReady"
    OUT_OF_SERVICE = "OutOfService"
    GONE = "Gone"


class Replacement(StrEnum):
    """What a user wants for a member that does not come back.

    NewVolume: another member, with an empty volume, takes its place. KeepVolume: it gets another pod with its
    volume, and no other member takes its place.
    """

    NEW_VOLUME = "NewVolume"
    KEEP_VOLUME = "KeepVolume"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What Kubernetes reports about a member's pod. `process` changes whenever its container restarts.

    `since_seconds` is when the container's shown state began, its start or end: whole Unix seconds of its
    node's clock, 0 when the kubelet shows neither. `problem` is what Kubernetes says about why it cannot
    start. It is `scheduled` when a node was chosen for it.
    """

    uid: str
    address: str
    process: str
    ended: bool
    terminating: bool = False
    since_seconds: float = 0.0
    problem: str = ""
    scheduled: bool = True


@dataclass(frozen=True, slots=True)
class MemberObject:
    """One TabletMember and its pod at present; `former_pod` is the last deleted one.

    `zone` is its domain per topology key, widest first; None while its node has not been read yet. Its pod is
    not as the spec says when it is `outdated`. Its place is kept until `kept_until_seconds`; while the
    operator restarts it, `restart_until_seconds` is when it should be back. `accepted` are copies that it may
    own if they are lost, each with the version of the row that a user saw. `node` is the node of its pod; of
    the pod before while no node was chosen. It `has_joined` when its status has the UUID of its volume.
    """

    index: MemberIndex
    name: str
    drain: bool = False
    lite: bool = False
    deleting: bool = False
    pod: PodFacts | None = None
    weight: int = 1
    zone: tuple[str, ...] | None = ()
    former_pod: PodFacts | None = None
    outdated: bool = False
    kept_until_seconds: float = NEVER
    restart_until_seconds: float | None = None
    accepted: frozenset[tuple[PartitionId, int]] = frozenset()
    replacement: Replacement | None = None
    node: str = ""
    node_state: NodeState = NodeState.UNKNOWN
    has_joined: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """From `spec.failureDetection`, in seconds."""

    heartbeat: float
    lease: float
    grace: float

    @property
    def silence(self) -> float:
        """Silence after which a member is unreachable: its lease, and one heartbeat on the way."""
        return self.lease + self.heartbeat


@dataclass(slots=True)
class MemberLiveness:
    """What one leadership knows of one member. It is lost with the master and learned again from replies.

    `pod_states` has, by UID of its pod and of its last one, the latest `since_seconds` that Kubernetes
    showed, and when that was first seen; a process that answers a request sent later did not end then.
    `replaced` are its earlier processes whose end has not been shown yet, each with the time of its last
    reply; they are kept by boot id, because under one kernel the volume's lock admits one process.
    `left_change` is the last change of the table that took it out of a row.
    """

    index: MemberIndex
    since: float
    member_object: MemberObject | None = None
    process: str = ""
    ended_seconds: float = NEVER
    ended: bool = False
    answered_seconds: float = NEVER
    failed_seconds: float = NEVER
    starting_seconds: float = NEVER
    gc_seconds: float = NEVER
    lost_seconds: float | None = None
    steady_since: float | None = None
    report: ExchangeReply | None = None
    published: int = 0
    differing: frozenset[int] = frozenset()
    left_change: int = 0
    replaced_by_uuid: str = ""
    problem: str = ""
    incompatible: str = ""
    refused_epoch: int = 0
    pod_states: dict[str, tuple[float, float]] = field(default_factory=dict)
    dead_incarnation: int = -1
    replaced: dict[str, tuple[ExchangeReply, float]] = field(default_factory=dict)
    tablets: dict[PartitionId, TabletReport] = field(default_factory=dict)
    tablets_number: int = 0
    keyspaces: tuple[KeyspaceSize, ...] = ()
    recheck: set[PartitionId] = field(default_factory=set)
    recheck_all: bool = True

    def observe_pod(self, shown: MemberObject | None, now: float) -> None:
        """Apply what Kubernetes shows, and note when it first showed the end of the process."""
        self.member_object = shown
        pod = None if shown is None else shown.pod
        if shown is not None:
            self._note_pod_states([each for each in (shown.former_pod, pod) if each is not None], now)
            self._note_proof()
        if pod is None:
            self._note_end("", now)
        elif pod.ended or (self.process and pod.process != self.process):
            self._note_end(f"{pod.process}{'-ended' if pod.ended else ''}", now)
        else:
            self.process = pod.process

    def _note_end(self, process: str, now: float) -> None:
        if process != self.process:
            self.process, self.ended_seconds = process, now

    def _note_pod_states(self, pods: Sequence[PodFacts], now: float) -> None:
        before, self.pod_states = self.pod_states, {}
        for pod in pods:
            known = before.get(pod.uid, (NEVER, now))
            self.pod_states[pod.uid] = known if known[0] >= pod.since_seconds else (pod.since_seconds, now)

    def _note_proof(self) -> None:
        """Note that the process that answered last has ended, and which of the replaced ones have."""
        if self.report is not None and self._shown_ended(self.report, self.answered_seconds):
            self.dead_incarnation = self.report.incarnation
        self.replaced = {boot: each for boot, each in self.replaced.items() if not self._shown_ended(*each)}

    def _shown_ended(self, report: ExchangeReply, answered_seconds: float) -> bool:
        """Return whether its pod's kubelet has shown the end of that process.

        That is when the shown state of the container began after a moment at which the process ran, by the
        same clock. The clock may have stepped, and a start is recorded late; so it is no proof when the
        process has answered a request that was sent after Kubernetes showed it.
        """
        if not report.pod_uid or report.pod_uid not in self.pod_states:
            return False
        since, shown_seconds = self.pod_states[report.pod_uid]
        return int(report.started_seconds) < since and answered_seconds <= shown_seconds

    def forgive_silence(self, now: float) -> None:
        """Ignore its silence until now, because it was not asked."""
        self.since = now

    def on_failure(self, sent_seconds: float) -> None:
        """Note the failure of a request sent at that time."""
        self.failed_seconds = sent_seconds

    def on_starting(self, now: float) -> None:
        """Note its reply that it is starting."""
        self.starting_seconds = now

    def on_higher_epoch(self, epoch: int) -> None:
        """Note its refusal because it has seen this epoch."""
        self.refused_epoch = max(self.refused_epoch, epoch)

    def on_identity(self, uuid: str, known: str) -> bool:
        """Note whether another UUID than the known one answers. Returns whether that is new."""
        before, self.replaced_by_uuid = self.replaced_by_uuid, "" if uuid == known else uuid
        return bool(self.replaced_by_uuid) and not before

    def note_problem(self, text: str) -> bool:
        """Note its problem, empty for none. Returns whether that is new."""
        before, self.problem = self.problem, text
        return text != before

    def note_incompatible(self, text: str) -> None:
        """Note why its build cannot take part in the cluster; empty when it can."""
        self.incompatible = text

    def note_published(self, number: int, differing: Iterable[int] = ()) -> None:
        """Note that it has the table up to that change, but for these ranges of rows; 0: it may have none of
        it."""
        self.published, self.differing = number, frozenset(differing)

    def note_row(self, number: PartitionId, change: int, *, named: bool) -> None:
        """Compare its tablet with that row again, which this change has stored; `named`: it is in it."""
        self.recheck.add(number)
        if not named:
            self.left_change = change

    @property
    def has_heard(self) -> bool:
        """Whether it has confirmed each row that names it no more; a new master knows once it has compared
        its table."""
        return bool(self.published) and self.published >= self.left_change and not self.differing

    def begin_gc(self, now: float, pause_seconds: float) -> bool:
        """Start a search through its tablets. Returns False when the last one was a moment ago."""
        due = now - self.gc_seconds > pause_seconds
        self.gc_seconds = now if due else self.gc_seconds
        return due

    def mismatched(self, rows: Sequence[Partition], named: Iterable[PartitionId]) -> list[PartitionId]:
        """Return partitions with a tablet here but not in the row, or the reverse.

        Matching partitions are checked again only once their row or tablet changes.
        """
        if self.recheck_all:
            self.recheck, self.recheck_all = {*named, *self.tablets}, False
        mismatched = [number for number in self.recheck if not self._fits(rows, number)]
        self.recheck = set(mismatched)
        return mismatched

    def _fits(self, rows: Sequence[Partition], number: PartitionId) -> bool:
        state = self.tablet_state(number)
        named = number < len(rows) and self.index in rows[number].replicas
        return state == TabletState.READY if named else state in (None, TabletState.DELETED)

    def evaluate(self, now: float) -> None:
        """Decide whether its process has ended, or its pod is deleted, with no reply since.

        An ended process stays ended until it answers, whatever Kubernetes reports about its successor.
        """
        reported = self.ended_seconds > self.answered_seconds
        confirmed = self.failed_seconds >= self.ended_seconds or now - self.ended_seconds > CONFIRM_SECONDS
        self.ended = reported and (self.ended or confirmed)

    @property
    def end_unconfirmed(self) -> bool:
        """Whether an end was reported and is not confirmed yet: it must be asked at once."""
        return not self.ended and self.ended_seconds > max(self.answered_seconds, self.failed_seconds)

    @property
    def failed(self) -> bool:
        """Whether the last exchange that has ended failed."""
        return self.failed_seconds > self.answered_seconds

    @property
    def may_run_twice(self) -> bool:
        """Whether one of its replaced processes may still run."""
        return bool(self.replaced)

    @property
    def known_dead(self) -> bool:
        """Whether none of its processes runs.

        The process of a pod that was deleted or replaced may still run.
        """
        report = self.report
        dead = report is not None and self.dead_incarnation >= report.incarnation
        return self.ended and dead and not self.may_run_twice

    def on_report(self, report: ExchangeReply, sent_seconds: float) -> None:
        """Handle a reply that passed the identity checks."""
        before = self.report
        if before is not None and before.incarnation != report.incarnation:
            self.note_published(0)
            # A pod never changes its node: another kernel there is that of a restarted node.
            same_pod = bool(report.pod_uid) and report.pod_uid == before.pod_uid
            if not same_pod and self.dead_incarnation < before.incarnation:
                self.replaced[before.boot_id or before.pod_uid] = before, self.answered_seconds
        if report.boot_id:
            # The lock on the volume keeps processes apart on one node, but not across nodes.
            self.replaced.pop(report.boot_id, None)
        self.report, self.answered_seconds = report, sent_seconds
        if sent_seconds > self.pod_states.get(report.pod_uid, (0.0, NEVER))[1]:
            # It runs, even if it was considered ended before.
            self.dead_incarnation = min(self.dead_incarnation, report.incarnation - 1)
        if report.keyspaces is not None:
            self.keyspaces = report.keyspaces
        self._on_tablets(report)

    def _on_tablets(self, report: ExchangeReply) -> None:
        """Keep the last report of all tablets; one whose state changed may no longer match its row."""
        if not report.base:
            self.tablets, self.recheck_all = {tablet.partition: tablet for tablet in report.tablets}, True
        elif report.base != self.tablets_number:
            # It builds on a report that was lost: the next one is complete.
            self.tablets_number = 0
            return
        else:
            self._merge(report)
        self.tablets_number = report.number

    def _merge(self, report: ExchangeReply) -> None:
        for tablet in report.tablets:
            before = self.tablets.get(tablet.partition)
            if before is None or before.state != tablet.state:
                self.recheck.add(tablet.partition)
            self.tablets[tablet.partition] = tablet
        for partition in report.dropped:
            self.tablets.pop(partition, None)
            self.recheck.add(partition)

    def tablet_state(self, partition: PartitionId) -> TabletState | None:
        """Return the last reported state; None without any tablet of the partition, even a tombstone."""
        tablet = self.tablets.get(partition)
        return None if tablet is None else tablet.state

    def reachable(self, now: float, timing: Timing) -> bool:
        return not self.ended and now - self.answered_seconds <= timing.silence

    def gone(self, now: float, timing: Timing) -> bool:
        """Return whether it is unreachable: ended, or silent for too long although it was asked."""
        if self.reachable(now, timing):
            return False
        return self.ended or now - max(self.answered_seconds, self.since) > timing.silence

    def note_loss(self, now: float, timing: Timing) -> None:
        """Record since when it is unreachable; cleared when it is back."""
        if self.reachable(now, timing):
            self.lost_seconds = None
            if self.steady_since is None:
                self.steady_since = self.answered_seconds
            return
        self.steady_since = None
        if self.lost_seconds is None and self.gone(now, timing):
            self.lost_seconds = now

    def steady(self, now: float, seconds: float) -> bool:
        """Return whether it was reachable all that time; one that was not may wrongly report others as
        silent."""
        return self.steady_since is not None and now - self.steady_since > seconds

    def in_grace(self, now: float, timing: Timing) -> bool:
        """Return whether its place is kept: for `rejoinGracePeriodSeconds`, or longer in a planned stop."""
        shown = self.member_object
        kept_until = (
            NEVER if shown is None else max(shown.kept_until_seconds, shown.restart_until_seconds or NEVER)
        )
        return self.lost_seconds is not None and (now - self.lost_seconds < timing.grace or now < kept_until)
