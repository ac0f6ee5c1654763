"""Copy sessions: checkpoints at the source, and copies that this member's own transfer process makes."""

import asyncio
import logging
import os
import secrets
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from stele.adapters.rocksdb.engine import open_checkpoint
from stele.core.errors import Refused
from stele.member import limits
from stele.member.node import Node
from stele.member.volume import CHECKPOINTS, STAGING, sync_folder, write_aside
from stele.wire import keys
from stele.wire import messages as m
from stele.wire.copyjobs import CopyJob, CopyJobStatus, SessionFile
from stele.wire.volume import APPLIED, decode_state

log = logging.getLogger("stele.sessions")

POLL_SECONDS = 0.2
FETCH_SILENCE_SECONDS_MAX = 60.0
FETCHES_MAX = 64
_encode = msgspec.json.Encoder().encode
_status = msgspec.json.Decoder(CopyJobStatus).decode


@dataclass(slots=True)
class _Open:
    """A session at the source. `floor`: the last operation that it does not need, by partition."""

    until: float
    floor: dict[int, int]
    task: "asyncio.Task[m.SessionInfo]"


@dataclass(slots=True)
class _Fetch:
    """A copy that the transfer process makes for this member."""

    report: m.FetchReport
    task: "asyncio.Task[None] | None" = field(default=None)


class Sessions:
    """Open sessions end by CloseSession, or when nobody opens them again within their lease."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.open: dict[str, _Open] = {}
        self._fetches: dict[str, _Fetch] = {}
        self._http: aiohttp.ClientSession | None = None
        node.pins = self.pin

    def pin(self, partition: int) -> int:
        """The last operation that no open session needs."""
        return min((s.floor[partition] for s in self.open.values() if partition in s.floor), default=2**62)

    # -- at the source

    async def open_session(self, command: m.OpenSession) -> m.Result:
        """Flush, checkpoint, describe. Asked again it renews the lease and gives the same answer."""
        node, name = self._node, _plain(command.session)
        session = self.open.get(name)
        if session is None:
            if len(self.open) >= limits.SESSIONS_MAX:
                raise Refused(f"{limits.SESSIONS_MAX} sessions are open; close one first", "BUSY")
            floor = {p: node.replicas[p].tablet.log.applied[1] for p in self._readable(command.partitions)}
            task = asyncio.create_task(self._checkpoint(name, sorted(floor)))
            session = self.open[name] = _Open(0.0, floor, task)
        session.until = node.loop.time() + max(1.0, command.lease_seconds)
        done, _ = await asyncio.wait([session.task], timeout=5.0)
        if not done:
            return m.Result("WAIT", "the checkpoint is being made", wait_ms=200)
        if session.task.exception() is not None:
            self.open.pop(name, None)
        return m.Result(session=session.task.result())

    def _readable(self, partitions: tuple[int, ...]) -> list[int]:
        for partition in partitions:
            replica = self._node.replicas.get(partition)
            if replica is None or not replica.ready:
                state = "DOES_NOT_EXIST" if replica is None else replica.state.value
                raise Refused(f"partition {partition} is {state} here; READY is needed", "ILLEGAL_STATE")
        return list(partitions)

    async def _checkpoint(self, name: str, partitions: list[int]) -> m.SessionInfo:
        node = self._node
        folder = node.volume.path(CHECKPOINTS) / name
        generations = {p: node.replicas[p].generation for p in partitions}
        return await node.loop.run_in_executor(node.slow, self._make, folder, name, generations)

    def _make(self, folder: Path, name: str, generations: dict[int, int]) -> m.SessionInfo:
        """In the executor. The applied OpIds are read from the checkpoint itself, so they cannot disagree."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._node.engine.checkpoint(str(folder / "db"))
        reader = open_checkpoint(folder / "db")
        try:
            tablets = tuple(_describe(reader.get, p, g) for p, g in generations.items())
        finally:
            reader.close()
        info = m.SessionInfo(name, secrets.token_urlsafe(24), tablets)
        path = folder / "session.json"
        write_aside(path, _encode(SessionFile(info.session, info.token, info.tablets)))
        os.replace(path.with_name(path.name + ".new"), path)
        sync_folder(folder)
        return info

    async def close_session(self, command: m.CloseSession) -> m.Result:
        """Forget it, at source or destination. Unknown is done already."""
        name = _plain(command.session)
        session = self.open.pop(name, None)
        if session is not None:
            await asyncio.wait([session.task])
        fetch = self._fetches.pop(name, None)
        if fetch is not None and fetch.task is not None:
            fetch.task.cancel()
            await self._cancel_copy(name)
        node = self._node
        for folder in (CHECKPOINTS, STAGING):
            path = node.volume.path(folder) / name
            await node.loop.run_in_executor(node.slow, _remove, path)
        return m.Result()

    # -- at the destination

    async def fetch(self, command: m.FetchDirect) -> m.Result:
        """Let the own transfer process copy. Asked again while it runs or is done: the same."""
        name = _plain(command.session)
        known = self._fetches.get(name)
        if known is not None and known.report.state != "FAILED":
            return m.Result()
        source = self._node.table.members.get(command.source)
        if source is None:
            raise Refused(f"member {command.source} is not known here", "UNKNOWN_MEMBER")
        if known is None and len(self._fetches) >= FETCHES_MAX:
            raise Refused(f"{FETCHES_MAX} copies are known here; close their sessions first", "BUSY")
        job = CopyJob(
            session=name,
            destination=self._node.settings.name,
            claim="",
            source_url=f"http://{_host(source.address)}:{self._node.settings.transfer_port}",
            token=command.token,
            items=command.items,
        )
        fetch = self._fetches[name] = _Fetch(m.FetchReport(name, "RUNNING", 0))
        fetch.task = asyncio.create_task(self._follow(fetch, job))
        return m.Result()

    async def _follow(self, fetch: _Fetch, job: CopyJob) -> None:
        """Start the copy and ask how far it is until it ended; what goes wrong is in the report."""
        heard = self._node.loop.time()
        started = False
        while fetch.report.state == "RUNNING":
            try:
                if not started:
                    await self._call("POST", "/v1/copies", _encode(job))
                    started = True
                status = _status(await self._call("GET", f"/v1/copies/{job.session}"))
                heard = self._node.loop.time()
                fetch.report = _fetch_report(job.session, status)
            except Refused as error:
                fetch.report = msgspec.structs.replace(fetch.report, state="FAILED", error=str(error))
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
                if self._node.loop.time() - heard > FETCH_SILENCE_SECONDS_MAX:
                    text = f"the transfer process does not answer: {error or type(error).__name__}"
                    fetch.report = msgspec.structs.replace(fetch.report, state="FAILED", error=text)
            await asyncio.sleep(POLL_SECONDS)

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Refused for an answer that says no; ClientError when there is none."""
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        settings = self._node.settings
        url = f"http://{_host(settings.local_host)}:{settings.transfer_port}{path}"
        headers = {"Content-Type": "application/json"}
        async with self._http.request(method, url, data=body, headers=headers) as response:
            content = await response.read()
            if response.status >= 500:
                raise aiohttp.ClientError(f"{response.status} {content[:200]!r}")
            if response.status >= 400:
                raise Refused(content.decode(errors="replace")[:500], "COPY_REFUSED")
            return content

    async def _cancel_copy(self, session: str) -> None:
        try:
            await self._call("DELETE", f"/v1/copies/{session}")
        except (aiohttp.ClientError, TimeoutError, OSError, Refused) as error:
            log.warning("session %s: its copy could not be cancelled: %s", session, error)

    def fetch_reports(self) -> list[m.FetchReport]:
        return [fetch.report for fetch in self._fetches.values()]

    # -- time

    async def sweep(self) -> None:
        """End sessions whose lease ran out; remove folders that belong to none."""
        now = self._node.loop.time()
        for name in [name for name, session in self.open.items() if session.until <= now]:
            log.warning("session %s ends: nobody renewed it", name)
            await self.close_session(m.CloseSession(name))
        node = self._node
        await node.loop.run_in_executor(node.slow, self._sweep_folders, frozenset(self.open))

    def _sweep_folders(self, open_now: frozenset[str]) -> None:
        volume = self._node.volume
        for path in volume.path(CHECKPOINTS).iterdir():
            if path.name not in open_now and path.name not in self.open:
                _remove(path)
        for path in volume.path(STAGING).iterdir():
            if path.name not in self._fetches and _age_seconds(path) > limits.STAGING_AGE_SECONDS:
                _remove(path)

    async def stop(self) -> None:
        for fetch in self._fetches.values():
            if fetch.task is not None:
                fetch.task.cancel()
        if self._http is not None:
            await self._http.close()


def _fetch_report(session: str, status: CopyJobStatus) -> m.FetchReport:
    state: Literal["RUNNING", "DONE", "FAILED"] = "RUNNING"
    if status.state in {"DONE", "FAILED"}:
        state = "DONE" if status.state == "DONE" else "FAILED"
    return m.FetchReport(session, state, status.copied_bytes, status.finished, status.error)


def _describe(get: "object", partition: int, generation: int) -> m.SessionTablet:
    assert callable(get)
    stored = get(keys.meta_key(partition, generation, APPLIED))
    if stored is None:
        return m.SessionTablet(partition, generation, m.OpId(), 0)
    state = decode_state(stored)
    size = sum(size for _, size in state.keyspaces.values())
    return m.SessionTablet(partition, generation, state.applied, size)


def _plain(session: str) -> str:
    if not session or "/" in session or session.startswith(".") or len(session) > 200:
        raise Refused(
            f"session is {session!r}; it must be a plain name of at most 200 letters", "BAD_REQUEST"
        )
    return session


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove(path: Path) -> None:
    """The description first: without it there is no session."""
    (path / "session.json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
