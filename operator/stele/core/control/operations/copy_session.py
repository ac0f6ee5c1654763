"""Copy sessions: tablets that share a snapshot and the engine that copies it (docs/internals/copy.md).

A session copies from one source to one destination. It is opened for all migrations of that pair that need a
copy, copied by Spark or by the destination itself, ingested, and closed at both ends. Meanwhile the source's
lease on its snapshot is renewed: when the master or the copier fails, it expires and ends the session.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from stele.core.control.commands import (
    OK,
    WAIT,
    CloseSession,
    Command,
    CopyItem,
    ExchangeReply,
    FetchDirect,
    FetchReport,
    Ingest,
    OpenSession,
    Reason,
    ReasonCode,
    Result,
    ResultCode,
    SessionReport,
)
from stele.core.copy.states import JobState
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.transitions import check_step

SESSION_LEASE_SECONDS = 60.0
"""Seconds that a source keeps a snapshot without a renewal."""

RENEW_SECONDS = 20.0
"""Seconds between two renewals of a lease, and the maximum delay of a rate change at the source."""

NOT_SPARKS_FAULT = frozenset(
    {ReasonCode.MEMBER_GONE, ReasonCode.SESSION_LOST, ReasonCode.NO_SPACE, ReasonCode.DISK_ERROR}
)
"""Failures that any engine would have: the migrations are rolled back and planned again."""

SPARK_PATIENCE_SECONDS = 60.0
SPARK_PATIENCE_SECONDS_MAX = 900.0
"""Seconds of direct copies to a destination after Spark failed for it, doubled with each failure.

The cause, such as executors that cannot be scheduled, may be permanent.
"""

WARM_THRESHOLD_BYTES = 1 << 20
"""Bytes from which a running driver is worth using (Auto)."""


@dataclass(frozen=True, slots=True)
class SparkFailure:
    """Spark failed for a destination and is not used for it before `until_seconds`."""

    text: str
    until_seconds: float
    patience_seconds: float

    @staticmethod
    def after(before: "SparkFailure | None", text: str, now: float) -> "SparkFailure":
        """Create one for a failure now; several sessions that fail for one reason count once."""
        if before is not None and now < before.until_seconds:
            return SparkFailure(text, before.until_seconds, before.patience_seconds)
        last = 0.0 if before is None else before.patience_seconds
        patience = min(max(SPARK_PATIENCE_SECONDS, 2 * last), SPARK_PATIENCE_SECONDS_MAX)
        return SparkFailure(text, now + patience, patience)


class Stage(Enum):
    OPEN = "OPEN"
    COPY = "COPY"
    INGEST = "INGEST"
    CLOSE = "CLOSE"
    CLOSED = "CLOSED"


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.OPEN: frozenset({Stage.COPY, Stage.CLOSE}),
    Stage.COPY: frozenset({Stage.INGEST, Stage.CLOSE}),
    Stage.INGEST: frozenset({Stage.CLOSE}),
    Stage.CLOSE: frozenset({Stage.CLOSED}),
    Stage.CLOSED: frozenset(),
}


class Engine(Enum):
    SPARK = "Spark"
    DIRECT = "Direct"


@dataclass(frozen=True, slots=True)
class Job:
    """The copier's report of one Spark job."""

    state: JobState
    copied_bytes: int = 0
    failure: Reason | None = None
    tasks: int = 0
    retries: int = 0


@dataclass(slots=True)
class CopySession:
    """`partitions` maps each partition to the id of its migration; an aborted one is removed.

    The engine is chosen once the source has reported the size. With `fragments` False the source sends each
    tablet as a whole. `bytes_per_second` limits the source's rate; 0: no limit. `spoiled`: all was copied,
    but the destination found damage in the files, which is not the engine's fault.
    """

    id: str
    source: MemberIndex
    destination: MemberIndex
    partitions: dict[PartitionId, str]
    generations: Mapping[PartitionId, int]
    started_seconds: float
    fragments: bool = True
    engine: Engine | None = None
    engine_reason: str = ""
    engine_noted: bool = False
    stage: Stage = Stage.OPEN
    token: str = ""
    items: tuple[CopyItem, ...] = ()
    copied_bytes: int = 0
    tasks: int = 0
    retries: int = 0
    fetch_sent: bool = False
    failure: Reason | None = None
    spoiled: bool = False
    bytes_per_second: int = 0
    renewed: "OpenSession | None" = None
    renewed_seconds: float = float("-inf")
    counted: bool = False
    closing: set[MemberIndex] = field(default_factory=set)
    progressed_seconds: float = float("-inf")
    _reported: tuple[object, ...] = ()
    _progress_key: object = None

    @property
    def participants(self) -> frozenset[MemberIndex]:
        return frozenset((self.source, self.destination))

    @property
    def done(self) -> bool:
        return self.stage is Stage.CLOSED

    def commands(self, now: float) -> list[tuple[MemberIndex, Command]]:
        """Return the commands to send now, with their recipients."""
        if self.stage is Stage.OPEN:
            return [(self.source, self._opening(renew=False))]
        if self.stage is Stage.CLOSE:
            return [(member, CloseSession(self.id)) for member in sorted(self.closing)]
        if self.stage is Stage.CLOSED:
            return []
        commands: list[tuple[MemberIndex, Command]] = []
        renewal = self._opening(renew=True)
        if renewal != self.renewed or now - self.renewed_seconds > RENEW_SECONDS:
            commands.append((self.source, renewal))
        if self.stage is Stage.INGEST:
            commands.append((self.destination, Ingest(self.id, tuple(sorted(self.partitions)))))
        elif self.engine is Engine.DIRECT and not self.fetch_sent:
            fetch = FetchDirect(self.id, self.source, self.token, self.items)
            commands.append((self.destination, fetch))
        return commands

    def _opening(self, *, renew: bool) -> OpenSession:
        return OpenSession(
            self.id,
            () if renew else tuple(sorted(self.partitions)),
            SESSION_LEASE_SECONDS,
            fragments=self.fragments,
            renew=renew,
            destination=self.destination,
            engine="" if self.engine is None else self.engine.value,
            bytes_per_second=self.bytes_per_second,
        )

    def enter(self, to: Stage) -> None:
        """Change the stage. Raises Refused, without a change, unless TRANSITIONS allows it."""
        check_step(f"copy session {self.id}", TRANSITIONS, self.stage, to)
        self.stage = to

    @property
    def wants_job(self) -> bool:
        """Whether the copier should work on it: the source knows the engine first, and with it the next
        master."""
        noted = self.renewed is not None and self.renewed.engine == Engine.SPARK.value
        return noted and self.copied_by_spark

    @property
    def copied_by_spark(self) -> bool:
        """Whether Spark copies it now, or is about to."""
        return self.stage is Stage.COPY and self.engine is Engine.SPARK

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    def part_of(self, ids: Collection[str]) -> int:
        """Return the bytes copied so far for the migrations with these ids, by their share in the session."""
        sizes = {item.partition: item.bytes for item in self.items}
        mine = sum(sizes.get(partition, 0) for partition, id in self.partitions.items() if id in ids)
        return self.copied_bytes * mine // max(1, self.bytes)

    def on_result(self, member: MemberIndex, command: Command, result: Result, now: float) -> None:
        """Handle the result of one of its commands."""
        if result.code == WAIT:
            return
        match command:
            case OpenSession(renew=True):
                self._renewed(command, result, now)
            case OpenSession() if self.stage is Stage.OPEN and result.code != ResultCode.BUSY:
                # BUSY: it has its maximum number of sessions, and is asked again.
                self._opened(result)
            case FetchDirect() if self.stage is Stage.COPY:
                self.fetch_sent = result.code == OK
                if result.code != OK:
                    self.fail(result.reason)
            case Ingest() if self.stage is Stage.INGEST:
                if result.code == OK:
                    self.close()
                else:
                    self.spoiled = result.code == ResultCode.CORRUPT
                    self.fail(result.reason)
            case CloseSession():
                self._closed(member)
            case _:
                return

    def _opened(self, result: Result) -> None:
        session = result.session
        if result.code != OK or session is None:
            self.fail(result.reason)
            return
        self.token = session.token
        self.items = tuple(
            CopyItem(each.partition, each.generation, self.generations[each.partition], each.bytes)
            for each in session.tablets
            if each.partition in self.partitions
        )
        missing = self.partitions.keys() - {item.partition for item in self.items}
        if missing:
            self.fail(Reason(ReasonCode.NOT_IN_SESSION, f"the source did not snapshot {sorted(missing)}"))
        else:
            self.enter(Stage.COPY)

    def _renewed(self, command: OpenSession, result: Result, now: float) -> None:
        self.renewed, self.renewed_seconds = command, now
        if result.code != OK and self.stage is Stage.COPY:
            self.fail(Reason(ReasonCode.SESSION_LOST, result.detail))

    def on_report(self, member: MemberIndex, name: str, report: ExchangeReply, now: float) -> None:
        """Handle the destination's report of its copy, and the source's of its sessions."""
        if member == self.destination:
            self.on_fetch_report(next((each for each in report.fetches if each.session == self.id), None))
        if member == self.source:
            self.on_session_report(report.sessions)

    def on_session_report(self, reports: Sequence[SessionReport] | None) -> None:
        """Handle the source's report of its sessions: no copy is possible from an ended one."""
        if reports is None or self.stage is not Stage.COPY:
            return
        mine = next((each for each in reports if each.session == self.id), None)
        if mine is None or mine.ended:
            text = "the source no longer knows it" if mine is None else mine.ended
            self.fail(Reason(ReasonCode.SESSION_LOST, text))

    def on_fetch_report(self, report: FetchReport | None) -> None:
        """Handle the destination's report of its own copy."""
        if self.stage is not Stage.COPY or self.engine is not Engine.DIRECT or not self.fetch_sent:
            return
        if report is None:
            self.fetch_sent = False
            return
        self._progress(report)

    def on_job(self, job: Job | None) -> None:
        """Handle the copier's report of the Spark job."""
        if job is not None and self.copied_by_spark:
            self._progress(job)

    @property
    def queued(self) -> bool:
        """Whether the copier has other jobs to do first."""
        return self._reported[:1] == (JobState.QUEUED,)

    def note_progress(self, now: float) -> None:
        """Note the time of progress; fewer bytes than before also count, since the copy has restarted."""
        key = (self.stage, self._reported)
        if key != self._progress_key:
            self._progress_key, self.progressed_seconds = key, now

    def _progress(self, report: FetchReport | Job) -> None:
        self._reported = (report.state, report.copied_bytes, report.tasks, report.retries)
        self.copied_bytes = max(self.copied_bytes, report.copied_bytes)
        self.tasks, self.retries = max(self.tasks, report.tasks), max(self.retries, report.retries)
        if report.state == JobState.DONE:
            self.enter(Stage.INGEST)
        elif report.state == JobState.FAILED:
            self.fail(report.failure or Reason(ReasonCode.FAILED))

    def fail(self, reason: Reason) -> None:
        """Fail the session; the scheduler passes `failure` on to its migrations."""
        self.failure = reason
        self.close()

    def close(self) -> None:
        if self.stage in (Stage.CLOSE, Stage.CLOSED):
            return
        self.enter(Stage.CLOSE)
        self.closing = set(self.participants)

    def _closed(self, member: MemberIndex) -> None:
        self.closing.discard(member)
        if not self.closing and self.stage is Stage.CLOSE:
            self.enter(Stage.CLOSED)

    def forget_gone(self, gone: Mapping[MemberIndex, str]) -> None:
        """Forget failed members (by name), which need no CloseSession; while copying, a failure ends the
        session."""
        lost = self.participants.intersection(gone)
        if lost and self.stage in (Stage.OPEN, Stage.COPY, Stage.INGEST):
            self.fail(Reason(ReasonCode.MEMBER_GONE, gone[min(lost)]))
        for member in lost:
            self._closed(member)

    @property
    def copying(self) -> bool:
        """Whether bytes are, or are about to be, sent from its source to its destination."""
        return self.stage in (Stage.OPEN, Stage.COPY)

    @property
    def blames_spark(self) -> bool:
        """Whether it failed in a way that another engine may not."""
        if self.failure is None or self.engine is not Engine.SPARK or self.spoiled:
            return False
        return self.failure.code not in NOT_SPARKS_FAULT

    def drop(self, partition: PartitionId) -> None:
        """Remove an aborted migration; a session without any ends."""
        self.partitions.pop(partition, None)
        if not self.partitions:
            self.close()


def resume(
    report: SessionReport,
    source: MemberIndex,
    generations: Mapping[PartitionId, int],
    fetch: bool,
    now: float,
) -> CopySession | None:
    """Rebuild an open session from its source's report; None when it is not open.

    `generations` are those of the tablets that still need it, `fetch` says whether its destination reports a
    Direct copy. The engine is chosen again when no member knows it.
    """
    if report.ended or report.info is None:
        return None
    session = CopySession(
        report.session, source, report.destination, {}, generations, now, stage=Stage.COPY, fetch_sent=fetch
    )
    session.token = report.info.token
    session.items = tuple(
        CopyItem(each.partition, each.generation, generations[each.partition], each.bytes)
        for each in report.info.tablets
        if each.partition in generations
    )
    known = next((each for each in Engine if each.value == report.engine), None)
    session.engine = Engine.DIRECT if fetch else known
    session.engine_reason = "the previous master chose it"
    return session


@dataclass(slots=True)
class Copied:
    """Bytes copied to one member, by name since it may have left.

    `failures` are failed sessions; a session is counted when it ends.
    """

    member: str = ""
    bytes_planned: int = 0
    bytes_copied: int = 0
    engine: Engine | None = None
    engine_reason: str = ""
    tasks: int = 0
    retries: int = 0
    failures: int = 0
    began_seconds: float | None = None
    ended_seconds: float | None = None

    def begin(self, session: CopySession, now: float) -> None:
        """Note a session's engine; the newest reason is shown."""
        self.engine, self.engine_reason = session.engine, session.engine_reason
        self.began_seconds = now if self.began_seconds is None else self.began_seconds
        self.ended_seconds = None

    def count(self, session: CopySession, copied_bytes: int, now: float) -> None:
        """Count an ended session with its share of bytes."""
        self.bytes_copied += copied_bytes
        self.tasks += session.tasks
        self.retries += session.retries
        self.failures += session.failure is not None
        self.ended_seconds = now


def choose_engine(
    engine: str,
    needed_bytes: int,
    threshold_bytes: int,
    *,
    warm: bool,
    copier_problem: str,
    spark_failure: str,
) -> tuple[Engine, str]:
    """Choose the engine for this many bytes to the destination. Returns it and the reason.

    `copier_problem` and `spark_failure` are empty when there is none.
    """
    if engine == "Direct":
        return Engine.DIRECT, "spec.migration.engine is Direct"
    if spark_failure:
        return Engine.DIRECT, f"Spark failed for this destination: {spark_failure}"
    if copier_problem:
        return Engine.DIRECT, f"Spark cannot be used: {copier_problem}"
    if engine == "Spark":
        return Engine.SPARK, "spec.migration.engine is Spark"
    limit = min(threshold_bytes, WARM_THRESHOLD_BYTES) if warm else threshold_bytes
    state = "a warm driver" if warm else "a cold driver"
    if needed_bytes >= limit:
        return Engine.SPARK, f"{needed_bytes} bytes are to be copied at once, at least {limit} for {state}"
    return Engine.DIRECT, f"{needed_bytes} bytes are to be copied at once, less than {limit} for {state}"
