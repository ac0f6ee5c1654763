"""Copy sessions: checkpoints at the source, and copies that this member's own transfer process makes."""

import asyncio
import logging
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from stele.core.errors import Corrupt, Refused, Unavailable
from stele.core.fragments import versions
from stele.core.table import Replicas
from stele.core.tablet_owner import Flow
from stele.member import crash, limits
from stele.member.local_transfer import bracketed
from stele.member.node import Node
from stele.member.replica import Replica
from stele.member.volume import CHECKPOINTS, STAGING, sync_folder, write_aside
from stele.ports import Transfer
from stele.wire import keys
from stele.wire import messages as m
from stele.wire.copyjobs import CopyJob, CopyJobStatus, SessionFile, damage_note
from stele.wire.volume import APPLIED, DataState, decode_state

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

    def __init__(self, node: Node, transfer: Transfer) -> None:
        self._node = node
        self._transfer = transfer
        self.open: dict[str, _Open] = {}
        self._fetches: dict[str, _Fetch] = {}
        node.pins, node.unpin = self.pin, self.unpin

    def pin(self, partition: int) -> int:
        """The last operation that no open session needs."""
        return min((s.floor[partition] for s in self.open.values() if partition in s.floor), default=2**62)

    def unpin(self, partition: int) -> None:
        """No session needs the partition's log any more: what it copied may be too old when it ends."""
        for session in self.open.values():
            session.floor.pop(partition, None)

    # -- at the source

    async def open_session(self, command: m.OpenSession) -> m.Result:
        """Flush, checkpoint, describe. Asked again it renews the lease and gives the same answer."""
        node, name = self._node, _plain(command.session)
        session = self.open.get(name)
        if session is None:
            if len(self.open) >= limits.SESSIONS_MAX:
                raise Refused(f"{limits.SESSIONS_MAX} sessions are open; close one first", "BUSY")
            floor = {p: node.replicas[p].tablet.log.applied[1] for p in self._readable(command.partitions)}
            task = asyncio.create_task(self._checkpoint(name, sorted(floor), command.fragments))
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

    async def _checkpoint(self, name: str, partitions: list[int], fragments: bool) -> m.SessionInfo:
        node = self._node
        folder = node.volume.path(CHECKPOINTS) / name
        held = [_held(node.replicas[p]) for p in partitions]
        return await node.loop.run_in_executor(node.slow, self._make, folder, held, fragments)

    def _make(self, folder: Path, held: "list[_Held]", fragments: bool) -> m.SessionInfo:
        """In the executor. The applied OpIds are read from the checkpoint itself, so they cannot disagree."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._node.engine.checkpoint(str(folder / "db"))
        crash.reached("session.checkpointed")
        reader = self._node.engine.open_checkpoint(str(folder / "db"))
        try:
            tablets = tuple(_describe(reader.get, each, self._node.me) for each in held)
        finally:
            reader.close()
        info = m.SessionInfo(folder.name, secrets.token_urlsafe(24), tablets)
        path = folder / "session.json"
        write_aside(path, _encode(SessionFile(info.session, info.token, info.tablets, fragments)))
        os.replace(path.with_name(path.name + ".new"), path)
        sync_folder(folder)
        crash.reached("session.described")
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
        self._heed_damage(node.volume.path(CHECKPOINTS) / name)
        for folder in (CHECKPOINTS, STAGING):
            path = node.volume.path(folder) / name
            await node.loop.run_in_executor(node.slow, _remove, path)
        return m.Result()

    def _heed_damage(self, folder: Path) -> None:
        """A checkpoint has the files of the database: what could not be read there is damaged here."""
        for path in folder.glob(damage_note("*", "*")):
            partition, generation = map(int, path.name.split("-")[1:])
            replica = self._node.replicas.get(partition)
            if replica is not None and replica.ready and replica.generation == generation:
                self._node.tablets.break_off(replica, Corrupt(path.read_text(errors="replace")))

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
            source_url=f"http://{bracketed(source.address)}:{self._node.settings.transfer_port}",
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
                    await self._transfer.call("POST", "/v1/copies", _encode(job))
                    started = True
                status = _status(await self._transfer.call("GET", f"/v1/copies/{job.session}"))
                heard = self._node.loop.time()
                fetch.report = _fetch_report(job.session, status)
            except Refused as error:
                fetch.report = msgspec.structs.replace(fetch.report, state="FAILED", error=str(error))
            except (Unavailable, msgspec.MsgspecError) as error:
                if self._node.loop.time() - heard > FETCH_SILENCE_SECONDS_MAX:
                    text = f"the transfer process does not answer: {error}"
                    fetch.report = msgspec.structs.replace(fetch.report, state="FAILED", error=text)
            await asyncio.sleep(POLL_SECONDS)

    async def _cancel_copy(self, session: str) -> None:
        try:
            await self._transfer.call("DELETE", f"/v1/copies/{session}")
        except (Unavailable, Refused) as error:
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
            if path.name not in self._fetches and self._age_seconds(path) > limits.STAGING_AGE_SECONDS:
                _remove(path)

    def _age_seconds(self, path: Path) -> float:
        try:
            return self._node.wall() - path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    async def stop(self) -> None:
        for fetch in self._fetches.values():
            if fetch.task is not None:
                fetch.task.cancel()
        await self._transfer.close()


def _fetch_report(session: str, status: CopyJobStatus) -> m.FetchReport:
    state: Literal["RUNNING", "DONE", "FAILED"] = "RUNNING"
    if status.state in {"DONE", "FAILED"}:
        state = "DONE" if status.state == "DONE" else "FAILED"
    return m.FetchReport(session, state, status.copied_bytes, status.finished, status.error)


@dataclass(frozen=True, slots=True)
class _Held:
    """A tablet as a session is opened: its row, and the last operation that each member is known to hold."""

    partition: int
    generation: int
    row: Replicas
    held: dict[int, int]


def _held(replica: Replica) -> _Held:
    progress = {} if replica.owner is None else replica.owner.progress
    held = {member: each.match for member, each in progress.items() if each.flow is Flow.STREAM}
    return _Held(replica.partition, replica.generation, replica.tablet.row.replicas, held)


def _describe(get: "object", tablet: _Held, me: int) -> m.SessionTablet:
    assert callable(get)
    stored = get(keys.meta_key(tablet.partition, tablet.generation, APPLIED))
    state = DataState(m.OpId(), {}) if stored is None else decode_state(stored)
    size = sum(size for _, size in state.keyspaces.values())
    vector = versions(tablet.row, state.applied.index, me, tablet.held)
    return m.SessionTablet(tablet.partition, tablet.generation, state.applied, size, vector)


def _plain(session: str) -> str:
    if not session or "/" in session or session.startswith(".") or len(session) > 200:
        raise Refused(
            f"session is {session!r}; it must be a plain name of at most 200 letters", "BAD_REQUEST"
        )
    return session


def _remove(path: Path) -> None:
    """The description first: without it there is no session."""
    (path / "session.json").unlink(missing_ok=True)
    crash.reached("session.closing")
    shutil.rmtree(path, ignore_errors=True)
