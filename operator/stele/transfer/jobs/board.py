"""Board of copy jobs: accepted once per session, run a few at a time, queried over HTTP.

The copier pod and a member's transfer process share it; they differ in the runner.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from stele.core.control.commands import Reason, ReasonCode
from stele.core.copy.pacing import CORES_MAX, EXECUTORS_MAX, IDLE_SECONDS_MAX
from stele.core.copy.states import JobState
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, Conflict, Refused, SteleError
from stele.wire.copy.jobs import CopyJob, CopyJobStatus
from stele.wire.urls import host_and_port

log = logging.getLogger(__name__)

UNASKED_SECONDS_MAX = 60.0
"""A job that is not queried for this long is cancelled, since its client is gone."""

UNASKED_LOOK_SECONDS = 1.0

JOBS_MAX = 64
JOBS_KEPT_MAX = 256
ITEMS_MAX = PARTITIONS_MAX
GENERATION_MAX = 2**32 - 1
"""Keys store generations in four bytes."""

BYTES_MAX = 2**63 - 1
ERROR_CHARS_MAX = 500

TRUSTED_CHARS_MAX = 1024 * 1024
"""What Kubernetes allows for the Secret of a CA."""

_SESSION = re.compile(r"[a-z0-9-]{1,63}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_MEMORY = re.compile(r"[1-9][0-9]{0,7}[kmgKMG]")
_TOKEN = re.compile(r"[!-~]{1,200}")


class Report(msgspec.Struct, frozen=True):
    """Progress of a running copy: totals so far, and completed partitions.

    `tasks` is the number of tasks that share the tablets; `retries` counts restarted tasks, and restarted
    copies within them.
    """

    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    tasks: int = 0
    retries: int = 0


class CopyRunner(Protocol):
    """Copies the tablets of one job."""

    async def run(self, job: CopyJob, starting: Callable[[], None], report: Callable[[Report], None]) -> None:
        """Run until all manifests are complete; stop when cancelled. Raises SteleError when the job failed.

        `starting` is called when the job no longer waits for resources held by other jobs; until then it is
        QUEUED. The first report means that copying has begun.
        """
        ...


@dataclass(slots=True)
class _Entry:
    job: CopyJob
    begun: float
    asked: float
    state: JobState = JobState.QUEUED
    last: Report = field(default_factory=Report)
    failure: Reason | None = None
    seconds: float = 0.0
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        return self.state in (JobState.DONE, JobState.FAILED)


class JobBoard:
    """Jobs by session. `parallel` of them run at a time, the others wait in order."""

    def __init__(
        self, runner: CopyRunner, parallel: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._jobs: dict[str, _Entry] = {}
        self._slots = asyncio.Semaphore(parallel)

    def submit(self, job: CopyJob) -> CopyJobStatus:
        """Start the job, or return the status of the same job.

        Raises BadInput, Conflict (the session has another job) or Refused (too many jobs).
        """
        check_job(job)
        entry_known = self._jobs.get(job.session)
        if entry_known is not None:
            if entry_known.job != job:
                raise Conflict(f"session {job.session} has another job: cancel that one first")
            return self._ask(entry_known)
        if sum(not entry.over for entry in self._jobs.values()) >= JOBS_MAX:
            raise Refused(f"{JOBS_MAX} copy jobs are active: retry later", "BUSY")
        self._forget_oldest()
        entry = self._jobs[job.session] = _Entry(job, self._clock(), self._clock())
        entry.task = asyncio.get_running_loop().create_task(self._run(entry))
        return self._status(entry)

    def status(self, session: str) -> CopyJobStatus | None:
        """Return the job's status; None when it is unknown here."""
        entry = self._jobs.get(session)
        return None if entry is None else self._ask(entry)

    async def cancel(self, session: str) -> bool:
        """Stop and forget the job; False when it was unknown. Completed files stay on the volume."""
        entry = self._jobs.pop(session, None)
        if entry is not None and entry.task is not None:
            entry.task.cancel()
            await asyncio.gather(entry.task, return_exceptions=True)
        return entry is not None

    async def close(self) -> None:
        """Stop all jobs."""
        for session in list(self._jobs):
            await self.cancel(session)

    async def _run(self, entry: _Entry) -> None:
        try:
            async with self._slots:
                await self._while_wanted(entry)
            self._end(entry, JobState.DONE)
        except SteleError as error:
            self._end(entry, JobState.FAILED, Reason.of(error))
        except asyncio.CancelledError:
            self._end(entry, JobState.FAILED, Reason(ReasonCode.CANCELLED, "the job was deleted"))
            raise
        except Exception as error:
            log.exception("copy job of session %s failed with an unexpected error", entry.job.session)
            self._end(entry, JobState.FAILED, Reason("INTERNAL", f"{type(error).__name__}: {error}"))

    async def _while_wanted(self, entry: _Entry) -> None:
        """Run the job while it is queried often enough."""
        running = self._runner.run(
            entry.job, lambda: self._started(entry), lambda report: self._note(entry, report)
        )
        work = asyncio.ensure_future(running)
        try:
            while not work.done():
                if self._clock() - entry.asked > UNASKED_SECONDS_MAX:
                    text = f"the job was not queried for {UNASKED_SECONDS_MAX:g} s"
                    raise Refused(text, ReasonCode.CANCELLED)
                await asyncio.wait([work], timeout=UNASKED_LOOK_SECONDS)
            work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def _ask(self, entry: _Entry) -> CopyJobStatus:
        entry.asked = self._clock()
        return self._status(entry)

    @staticmethod
    def _started(entry: _Entry) -> None:
        entry.state = JobState.STARTING

    @staticmethod
    def _note(entry: _Entry, report: Report) -> None:
        entry.state = JobState.RUNNING
        entry.last = report

    def _end(self, entry: _Entry, state: JobState, failure: Reason | None = None) -> None:
        entry.state = state
        if failure is not None:
            entry.failure = Reason(failure.code, failure.detail[:ERROR_CHARS_MAX])
        entry.seconds = self._clock() - entry.begun
        log.info("copy job of session %s: %s %s", entry.job.session, state, entry.failure or "")

    def _status(self, entry: _Entry) -> CopyJobStatus:
        return CopyJobStatus(
            session=entry.job.session,
            state=entry.state,
            copied_bytes=entry.last.copied_bytes,
            entries=entry.last.entries,
            finished=entry.last.finished,
            failure=entry.failure,
            tasks=entry.last.tasks,
            retries=entry.last.retries,
            seconds=round(entry.seconds if entry.over else self._clock() - entry.begun, 3),
        )

    def _forget_oldest(self) -> None:
        over = [session for session, entry in self._jobs.items() if entry.over]
        for session in over[: max(0, len(self._jobs) - JOBS_KEPT_MAX + 1)]:
            del self._jobs[session]


def check_job(job: CopyJob) -> None:
    """Raise BadInput with the field, its value and what was expected."""
    _match("session", job.session, _SESSION, "1 to 63 of a-z, 0-9 and -")
    _match("destination", job.destination, _NAME, "the name of a TabletMember")
    if job.claim:
        _match("claim", job.claim, _NAME, "the name of a PersistentVolumeClaim or nothing")
    if host_and_port(job.source_url) is None:
        text = "expected http://HOST:PORT of a member's transfer process"
        raise BadInput(f"source_url is '{job.source_url[:80]}', {text}")
    if not _TOKEN.fullmatch(job.token):
        # The token is a secret, so its value is not shown.
        raise BadInput(f"token has {len(job.token)} characters, expected 1 to 200 of printable ASCII")
    if job.source:
        _match("source", job.source, _NAME, "the name of a TabletMember or nothing")
    if job.tls is not None:
        _match("source", job.source, _NAME, "the name of a TabletMember, since tls is set")
        _match("tls.cluster", job.tls.cluster, _UID, "the UID of a TabletCluster")
        _within("tls.trusted", len(job.tls.trusted), 1, TRUSTED_CHARS_MAX)
    _match("memory", job.memory, _MEMORY, "a number and k, m or g, such as 896m")
    _within("items", len(job.items), 1, ITEMS_MAX)
    _within("executors", job.executors, 1, EXECUTORS_MAX)
    _within("cores", job.cores, 1, CORES_MAX)
    _within("idle_seconds", job.idle_seconds, 1, IDLE_SECONDS_MAX)
    for item in job.items:
        _within("items.partition", item.partition, 0, PARTITIONS_MAX - 1)
        _within("items.source_generation", item.source_generation, 0, GENERATION_MAX)
        _within("items.generation", item.generation, 0, GENERATION_MAX)
        _within("items.bytes", item.bytes, 0, BYTES_MAX)
    if len({item.partition for item in job.items}) != len(job.items):
        raise BadInput("items name a partition twice; expected each at most once")


def _match(field_name: str, value: str, pattern: re.Pattern[str], expected: str) -> None:
    if not pattern.fullmatch(value):
        raise BadInput(f"{field_name} is '{value[:80]}', expected {expected}")


def _within(field_name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadInput(f"{field_name}: {value}, expected {least} to {most}")
