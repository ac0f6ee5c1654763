"""Destination side of Direct copies: jobs of this member's transfer process, and staging directories."""

import asyncio
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stele.core.control import commands as m
from stele.core.copy.pacing import lack_of_space
from stele.core.copy.states import FetchState, JobState
from stele.errors import Refused, Unavailable
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.table_cache import TableCache
from stele.member.settings import Settings
from stele.member.storage import failpoints
from stele.member.storage.volume import STAGING, Volume
from stele.ports.transfer import Transfer
from stele.wire.copy.jobs import CopyJob, CopyJobStatus
from stele.wire.urls import http_root

log = logging.getLogger("stele.fetches")

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.005, 0.05
FETCH_SILENCE_SECONDS_MAX = 60.0
FETCHES_MAX = 64
_encode = msgspec.json.Encoder().encode
_status = msgspec.json.Decoder(CopyJobStatus).decode


@dataclass(slots=True)
class _Fetch:
    """A copy that the transfer process makes for this member."""

    report: m.FetchReport
    task: "asyncio.Task[None] | None" = field(default=None)

    def fail(self, failure: m.Reason) -> None:
        self.report = msgspec.structs.replace(self.report, state=FetchState.FAILED, failure=failure)


@dataclass(eq=False)
class Fetches:
    """Direct copies by session. Spark's tasks write into staging too, but this member learns of them last."""

    _settings: Settings
    _volume: Volume
    _table: TableCache
    _transfer: Transfer
    _background: Background

    def __post_init__(self) -> None:
        self._fetches: dict[str, _Fetch] = {}
        self._staged: tuple[str, ...] = ()

    async def fetch(self, name: str, command: m.FetchDirect) -> m.Result:
        """Start a copy by this pod's transfer process; a repetition does nothing while it runs or is done.

        Raises Refused: NO_SPACE, UNKNOWN_MEMBER, BUSY.
        """
        existing = self._fetches.get(name)
        if existing is not None and existing.report.state is not FetchState.FAILED:
            return m.Result()
        source = self._table.members.get(command.source)
        if source is None:
            raise Refused(f"member {command.source} is not in this member's table", "UNKNOWN_MEMBER")
        if existing is None and len(self._fetches) >= FETCHES_MAX:
            raise Refused(f"{FETCHES_MAX} copies are listed here; close their sessions first", "BUSY")
        self._check_space(sum(item.bytes for item in command.items))
        job = CopyJob(
            session=name,
            destination=self._settings.name,
            claim="",
            source_url=http_root(source.address, self._settings.transfer_port),
            token=command.token,
            items=command.items,
            source=source.name,
            blocks=True,
        )
        fetch = self._fetches[name] = _Fetch(m.FetchReport(name, FetchState.RUNNING, 0))
        fetch.task = asyncio.create_task(self._follow(fetch, job))
        return m.Result()

    def _check_space(self, coming_bytes: int) -> None:
        """Check the present free space: the master decided by an earlier report."""
        if lack := lack_of_space(coming_bytes, self._volume.free_bytes()):
            raise Refused(lack, "NO_SPACE")

    async def _follow(self, fetch: _Fetch, job: CopyJob) -> None:
        """Start the copy and poll its status until it ends; errors go into the report."""
        began = answered = self._background.now()
        started = False
        while fetch.report.state is FetchState.RUNNING:
            try:
                if not started:
                    await self._transfer.call("POST", "/v1/copies", _encode(job))
                    started = True
                status = _status(await self._transfer.call("GET", f"/v1/copies/{job.session}"))
                answered = self._background.now()
                fetch.report = _fetch_report(job.session, status)
            except Refused as error:
                fetch.fail(m.Reason.of(error))
            except (Unavailable, msgspec.MsgspecError) as error:
                if self._background.now() - answered > FETCH_SILENCE_SECONDS_MAX:
                    fetch.fail(m.Reason("UNAVAILABLE", f"the transfer process does not answer: {error}"))
            await asyncio.sleep(poll_seconds(self._background.now() - began))

    def reports(self) -> tuple[m.FetchReport, ...]:
        return tuple(fetch.report for fetch in self._fetches.values())

    def staged(self) -> tuple[str, ...]:
        """Return the sessions with a staging directory at the last scan; the master ends unknown ones."""
        return self._staged

    async def close(self, name: str) -> None:
        """Stop a copy and delete its files. Idempotent."""
        fetch = self._fetches.pop(name, None)
        if fetch is not None and fetch.task is not None:
            fetch.task.cancel()
        path = self._volume.path(STAGING) / name
        if fetch is not None or path.exists():
            await self._cancel_copy(name)
        await self._background.in_thread(remove_session, path)
        self._staged = tuple(staged for staged in self._staged if staged != name)

    async def _cancel_copy(self, session: str) -> None:
        try:
            await self._transfer.call("DELETE", f"/v1/copies/{session}")
        except (Unavailable, Refused) as error:
            log.debug("session %s: its copy could not be cancelled: %s", session, error)

    async def collect_garbage(self) -> None:
        """Scan staging directories; delete those that no master ends and that have been untouched for
        long."""
        self._staged = await self._background.in_thread(self._look, frozenset(self._fetches))

    def _look(self, known: frozenset[str]) -> tuple[str, ...]:
        """Scan in a thread."""
        sessions = []
        for path in self._volume.path(STAGING).iterdir():
            if path.name not in known and self._age_seconds(path) > limits.STAGING_AGE_SECONDS:
                remove_session(path)
            elif not path.name.startswith("."):
                # Only possible names of sessions, since a master can end nothing else.
                sessions.append(path.name)
        return tuple(sorted(sessions)[: limits.STAGED_REPORTED_MAX])

    def _age_seconds(self, path: Path) -> float:
        """Return the time since the last write; a growing file keeps its directory."""
        try:
            inside = list(path.iterdir()) if _is_folder(path) else []
            newest = max(path_inside.lstat().st_mtime for path_inside in (path, *inside))
        except FileNotFoundError:
            return 0.0
        return self._background.wall() - newest

    def stop(self) -> None:
        for fetch in self._fetches.values():
            if fetch.task is not None:
                fetch.task.cancel()


def poll_seconds(running_seconds: float) -> float:
    """Return the pause before a copy that runs for so long is asked for again.

    A quarter of that: a small copy takes 10 ms, and its migration waits for the answer.
    """
    return min(max(running_seconds / 4, POLL_SECONDS_MIN), POLL_SECONDS_MAX)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def remove_session(path: Path) -> None:
    """Delete a session's directory, its description first: without it the session does not exist.

    A process that can write to `staging/` may have put a file or a link there: it is deleted, but not its
    target.
    """
    if not _is_folder(path):
        path.unlink(missing_ok=True)
        return
    (path / "session.json").unlink(missing_ok=True)
    failpoints.hit("session.closing")
    shutil.rmtree(path, ignore_errors=True)


def _fetch_report(session: str, status: CopyJobStatus) -> m.FetchReport:
    ended = status.state in (JobState.DONE, JobState.FAILED)
    state = FetchState(status.state) if ended else FetchState.RUNNING
    return m.FetchReport(
        session, state, status.copied_bytes, status.finished, status.failure, status.tasks, status.retries
    )
