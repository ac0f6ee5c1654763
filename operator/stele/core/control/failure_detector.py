"""Who is a member, who is alive, and for how long the place of a silent one is kept.

All times are seconds of the driver's monotonic clock and are passed in. Evidence of life counts from the
moment at which the request was *sent*: a reply proves nothing about the time after that. Kubernetes may tell
of the end of a process when its successor answers already; so an end counts only after a request that was
sent later than the news of it failed, or stayed without an answer for a moment.

A member that is gone is not therefore dead: a pod object goes with `kubectl delete --force` or with its node
while the process runs on, and a new pod says nothing of the old process. Dead is what the kubelet of the very
pod whose process answered last has shown to have ended. For all others leases are waited for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from stele.core.control.commands import ExchangeReply, TabletReport
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition
from stele.core.tablet.lifecycle import TabletState

NEVER = float("-inf")

CONFIRM_SECONDS = 0.5
"""How long a process that is said to have ended may take to prove the contrary."""


class Life(Enum):
    """States of a member (docs/internals/operator.md, "Members that come and go")."""

    JOINING = "Joining"
    ACTIVE = "Active"
    DRAINING = "Draining"
    UNREACHABLE = "Unreachable"
    LEFT = "Left"
    LOST = "Lost"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What Kubernetes says of a member's pod. `process` changes whenever its container starts again.

    `since_seconds` is when what the kubelet shows began, the start or the end of the container: Unix seconds
    of its node's clock, whole ones, and 0 when it shows neither.
    """

    uid: str
    address: str
    process: str
    ended: bool
    terminating: bool = False
    since_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberObject:
    """One TabletMember and its pod as they are now; `former_pod` is the last one that was removed.

    `zone` is its domain per topology key, widest first; None while its node was not looked at yet.
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


@dataclass(frozen=True, slots=True)
class Timing:
    """From `spec.failureDetection`, in seconds."""

    heartbeat: float
    lease: float
    grace: float

    @property
    def silence(self) -> float:
        """A member that answered nothing for so long is unreachable: its lease, and one heartbeat on the
        way.
        """
        return self.lease + self.heartbeat


@dataclass(slots=True)
class MemberLiveness:
    """What one leadership knows of one member. Lost with the master, and found again by asking.

    `shown` is by UID of its pod, and of its last one, the latest `since_seconds` that Kubernetes showed, and
    when that was seen first. What answers a request that was sent later did not end then.

    `doubted` are processes that another followed and of which nothing has shown yet that they ended, each
    with when it answered last; by boot id, for of one kernel the lock on the volume leaves one process.
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
    replaced_by_uuid: str = ""
    problem: str = ""
    refused_epoch: int = 0
    shown: dict[str, tuple[float, float]] = field(default_factory=dict)
    dead_incarnation: int = -1
    doubted: dict[str, tuple[ExchangeReply, float]] = field(default_factory=dict)
    tablets: dict[PartitionId, TabletReport] = field(default_factory=dict)
    tablets_number: int = 0
    recheck: set[PartitionId] = field(default_factory=set)
    recheck_all: bool = True

    def observe_pod(self, shown: MemberObject | None, now: float) -> None:
        """Take in what Kubernetes shows, and note when it first showed that the process ended."""
        self.member_object = shown
        pod = None if shown is None else shown.pod
        if shown is not None:
            self._note_shown([each for each in (shown.former_pod, pod) if each is not None], now)
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

    def _note_shown(self, pods: Sequence[PodFacts], now: float) -> None:
        before, self.shown = self.shown, {}
        for pod in pods:
            known = before.get(pod.uid, (NEVER, now))
            self.shown[pod.uid] = known if known[0] >= pod.since_seconds else (pod.since_seconds, now)

    def _note_proof(self) -> None:
        """Remember that the process that answered last has ended, and which of the doubted ones have."""
        if self.report is not None and self._shown_ended(self.report, self.answered_seconds):
            self.dead_incarnation = self.report.incarnation
        self.doubted = {boot: each for boot, each in self.doubted.items() if not self._shown_ended(*each)}

    def _shown_ended(self, report: ExchangeReply, answered_seconds: float) -> bool:
        """Whether its pod's kubelet showed the end of that process: what it shows of the container began
        after a moment at which that process ran, by the same clock.

        That clock may have stepped, and the start of a container is noted late; so it is no proof when the
        process has answered a request that was sent later than Kubernetes showed that.
        """
        if not report.pod_uid or report.pod_uid not in self.shown:
            return False
        since, shown_seconds = self.shown[report.pod_uid]
        return int(report.started_seconds) < since and answered_seconds <= shown_seconds

    def forgive_silence(self, now: float) -> None:
        """It was not asked until now."""
        self.since = now

    def on_failure(self, sent_seconds: float) -> None:
        """A request that was sent then failed."""
        self.failed_seconds = sent_seconds

    def on_starting(self, now: float) -> None:
        """It answers that it is starting."""
        self.starting_seconds = now

    def on_higher_epoch(self, epoch: int) -> None:
        """It refused, because it has seen this epoch."""
        self.refused_epoch = max(self.refused_epoch, epoch)

    def on_identity(self, uuid: str, known: str) -> bool:
        """Another UUID than the known one answers, or it again; whether that is new."""
        before, self.replaced_by_uuid = self.replaced_by_uuid, "" if uuid == known else uuid
        return bool(self.replaced_by_uuid) and not before

    def note_problem(self, text: str) -> bool:
        """Note what is wrong with it, empty for nothing; whether that is new."""
        before, self.problem = self.problem, text
        return text != before

    def note_published(self, number: int) -> None:
        """It has the table up to that change; 0: it may have nothing of it."""
        self.published = number

    def begin_gc(self, now: float, pause_seconds: float) -> bool:
        """Begin to look through its tablets; False when that was done a moment ago."""
        due = now - self.gc_seconds > pause_seconds
        self.gc_seconds = now if due else self.gc_seconds
        return due

    def mismatched(self, rows: Sequence[Partition], named: Iterable[PartitionId]) -> list[PartitionId]:
        """Partitions of which it holds a tablet and is not named by the row, or the other way round.

        What fits is not looked at again before its row or tablet changes.
        """
        if self.recheck_all:
            self.recheck, self.recheck_all = {*named, *self.tablets}, False
        found = [number for number in self.recheck if not self._fits(rows, number)]
        self.recheck = set(found)
        return found

    def _fits(self, rows: Sequence[Partition], number: PartitionId) -> bool:
        state = self.tablet_state(number)
        named = number < len(rows) and self.index in rows[number].replicas
        return state == TabletState.READY if named else state in (None, TabletState.DELETED)

    def evaluate(self, now: float) -> None:
        """Decide whether its process ended, or its pod is gone, and nothing answered since.

        Once ended it stays so until it answers, whatever Kubernetes tells of its successor.
        """
        told = self.ended_seconds > self.answered_seconds
        confirmed = self.failed_seconds >= self.ended_seconds or now - self.ended_seconds > CONFIRM_SECONDS
        self.ended = told and (self.ended or confirmed)

    @property
    def doubtful(self) -> bool:
        """It is said to have ended and that is not confirmed yet: ask it at once."""
        return not self.ended and self.ended_seconds > max(self.answered_seconds, self.failed_seconds)

    @property
    def may_run_twice(self) -> bool:
        """Whether a process of it that another followed may still run."""
        return bool(self.doubted)

    @property
    def known_dead(self) -> bool:
        """No process of it runs. A pod that is gone from the API may, and so may one that has a successor."""
        report = self.report
        dead = report is not None and self.dead_incarnation >= report.incarnation
        return self.ended and dead and not self.may_run_twice

    def on_report(self, report: ExchangeReply, sent_seconds: float) -> None:
        """Take in an answer that passed the checks of identity."""
        before = self.report
        if before is not None and before.incarnation != report.incarnation:
            self.published = 0
            # A pod runs on one node for all its life: another kernel there is that of a restarted node.
            same_pod = bool(report.pod_uid) and report.pod_uid == before.pod_uid
            if not same_pod and self.dead_incarnation < before.incarnation:
                self.doubted[before.boot_id or before.pod_uid] = before, self.answered_seconds
        if report.boot_id:
            # The lock on the volume keeps two processes apart on one node, and not on two.
            self.doubted.pop(report.boot_id, None)
        self.report, self.answered_seconds = report, sent_seconds
        if sent_seconds > self.shown.get(report.pod_uid, (0.0, NEVER))[1]:
            # It runs, whatever was taken for its end before.
            self.dead_incarnation = min(self.dead_incarnation, report.incarnation - 1)
        self._on_tablets(report)

    def _on_tablets(self, report: ExchangeReply) -> None:
        """Keep all tablets as they were told last; one whose state changed may not fit its row any more."""
        if not report.base:
            self.tablets, self.recheck_all = {tablet.partition: tablet for tablet in report.tablets}, True
        elif report.base != self.tablets_number:
            # It builds on a report that was lost: the next one tells everything.
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
        """As it reported last; None when it has nothing of that partition, not even a tombstone."""
        tablet = self.tablets.get(partition)
        return None if tablet is None else tablet.state

    def reachable(self, now: float, timing: Timing) -> bool:
        return not self.ended and now - self.answered_seconds <= timing.silence

    def gone(self, now: float, timing: Timing) -> bool:
        """Unreachable: ended, or silent for too long although it was asked for that long."""
        if self.reachable(now, timing):
            return False
        return self.ended or now - max(self.answered_seconds, self.since) > timing.silence

    def note_loss(self, now: float, timing: Timing) -> None:
        """Remember since when it is unreachable, and forget that when it is back."""
        if self.reachable(now, timing):
            self.lost_seconds = None
            if self.steady_since is None:
                self.steady_since = self.answered_seconds
            return
        self.steady_since = None
        if self.lost_seconds is None and self.gone(now, timing):
            self.lost_seconds = now

    def steady(self, now: float, seconds: float) -> bool:
        """Whether it was reachable all that time: one that was not may think that the others were not."""
        return self.steady_since is not None and now - self.steady_since > seconds

    def in_grace(self, now: float, timing: Timing) -> bool:
        """Whether its place is still kept for it (`rejoinGracePeriodSeconds`)."""
        return self.lost_seconds is not None and now - self.lost_seconds < timing.grace
