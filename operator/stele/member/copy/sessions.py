"""Source side of copies: sessions, which are snapshots with a lease (docs/internals/copy.md)."""

import asyncio
import logging
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stele.adapters.folders import sync_folder
from stele.core.control import commands as m
from stele.core.tablet.lifecycle import state_name
from stele.errors import Corrupt, Refused
from stele.member import limits
from stele.member.background import Background
from stele.member.copy.fetches import Fetches, remove_session
from stele.member.copy.snapshots import Damaged, are_small, checkpoint, held, write_streams
from stele.member.live_settings import LiveSettings
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.settings import Settings
from stele.member.storage import durable, failpoints
from stele.member.storage.volume import CHECKPOINTS, DATA, Volume, files_in
from stele.ports.transfer import Transfer
from stele.transfer.server.checkpoint import read_session
from stele.wire.copy.bulk import EXPORT_PREFIX
from stele.wire.copy.jobs import STREAM_SUFFIX, SessionFile, damage_note

log = logging.getLogger("stele.sessions")

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class SourceSession:
    """One session. `floor` is, by partition, the last operation that it does not need.

    `ended` is why it ended by itself; nothing else of it is then left until it is closed.
    """

    began: float
    until: float
    floor: dict[int, int]
    task: "asyncio.Task[m.SessionInfo]"
    destination: int
    engine: str
    bytes_per_second: int
    held_bytes: int = 0
    ended: str = ""

    @property
    def info(self) -> m.SessionInfo | None:
        """The opened session; None while its snapshot is being made."""
        opened = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if opened else None


@dataclass(eq=False)
class CopySessions:
    """Open sessions. A session ends by CloseSession, when its lease expires, or when it holds too much disk
    space.

    `fetches` are the copies to this member; closing a session ends it on both sides. `log_bytes` are those of
    logs that only copies needed when they were last counted.
    """

    _settings: Settings
    _live: LiveSettings
    _volume: Volume
    _tablets: TabletStore
    transfer: Transfer
    _background: Background

    def __post_init__(self) -> None:
        self._engine = self._tablets.engine
        self._watching = False
        self.log_bytes = 0
        self.known: dict[str, SourceSession] = {}
        table = self._tablets.table
        self.fetches = Fetches(self._settings, self._volume, table, self.transfer, self._background)

    @property
    def open(self) -> dict[str, SourceSession]:
        """The sessions that have not ended."""
        return {name: session for name, session in self.known.items() if not session.ended}

    @property
    def pinned(self) -> set[int]:
        """The partitions whose log some open session needs."""
        return {partition for session in self.known.values() for partition in session.floor}

    def pin(self, partition: int) -> int:
        """Return the last operation that no open session needs."""
        floors = (s.floor[partition] for s in self.known.values() if partition in s.floor)
        return min(floors, default=2**62)

    def unpin(self, partition: int) -> None:
        """Release the partition's log for all sessions; their copies of it may be too old in the end."""
        for session in self.known.values():
            session.floor.pop(partition, None)

    def note_log(self, size_bytes: int) -> None:
        """Note the bytes of logs that only copies need."""
        self.log_bytes = size_bytes

    # -- commands

    async def open_session(self, command: m.OpenSession) -> m.Result:
        """Flush, checkpoint and describe. A repetition renews the lease and returns the same session.

        Raises Refused: SESSION_LOST, BUSY, ILLEGAL_STATE.
        """
        name = plain(command.session)
        session = self.known.get(name)
        if session is None:
            session = self._begin(name, command)
        if session.ended:
            raise Refused(session.ended, "SESSION_LOST")
        session.until = self._background.now() + max(1.0, command.lease_seconds)
        session.engine = command.engine or session.engine
        done, _ = await asyncio.wait([session.task], timeout=5.0)
        if not done:
            return m.Result(m.WAIT, "the snapshot is being made", wait_ms=200)
        if session.task.exception() is not None:
            self.known.pop(name, None)
        info = session.task.result()
        await self._set_rate(name, session, command.bytes_per_second)
        return m.Result(session=None if command.renew else info)

    def _begin(self, name: str, command: m.OpenSession) -> SourceSession:
        if command.renew:
            raise Refused(f"session {name} is not open here", "SESSION_LOST")
        if len(self.open) >= limits.SESSIONS_PER_MEMBER_MAX:
            count = limits.SESSIONS_PER_MEMBER_MAX
            raise Refused(f"{count} sessions are open, which is the limit; close one first", "BUSY")
        floor = {
            p: self._tablets.replicas[p].tablet.log.applied[1] for p in self._readable(command.partitions)
        }
        task = asyncio.create_task(self._snapshot(name, sorted(floor), command))
        began, who = self._background.now(), (command.destination, command.engine, command.bytes_per_second)
        session = self.known[name] = SourceSession(began, began, floor, task, *who)
        if not self._watching:
            self._watching = True
            self._background.spawn(self._watch())
        return session

    def _readable(self, partitions: tuple[int, ...]) -> list[int]:
        for partition in partitions:
            replica = self._tablets.replicas.get(partition)
            if replica is None or not replica.ready:
                state = state_name(None if replica is None else replica.state)
                raise Refused(f"partition {partition} is {state} here; it must be READY", "ILLEGAL_STATE")
        return list(partitions)

    async def _snapshot(self, name: str, partitions: list[int], command: m.OpenSession) -> m.SessionInfo:
        replicas, in_thread = [self._tablets.replicas[p] for p in partitions], self._background.in_thread
        folder, engine, me = self._folder(name), self._engine, self._tablets.table.me
        await in_thread(_make_folder, folder)
        try:
            tablets = None
            if self._writes_streams(name, replicas):
                tablets = await in_thread(write_streams, engine, folder, [*map(held, replicas)], me)
            if tablets is None:
                tablets = await checkpoint(engine, in_thread, folder, replicas, me)
        except Damaged as found:
            self._note_damage(found.partition, found.generation, found.text)
            raise
        return await in_thread(self._describe, folder, tablets, command)

    def _writes_streams(self, name: str, replicas: list[Replica]) -> bool:
        """Return whether a session has streams instead of a checkpoint, which takes next to no space."""
        room = self._volume.free_bytes() >= limits.SESSIONS_FREE_BYTES_MIN
        small = are_small([each.keyspaces for each in replicas])
        return room and small and not name.startswith(EXPORT_PREFIX)

    def _folder(self, name: str) -> Path:
        return self._volume.path(CHECKPOINTS) / name

    @staticmethod
    def _describe(
        folder: Path, tablets: tuple[m.SessionTablet, ...], command: m.OpenSession
    ) -> m.SessionInfo:
        """Describe the session in a thread; from then on it is served."""
        info = m.SessionInfo(folder.name, secrets.token_urlsafe(24), tablets)
        how = (command.fragments, command.bytes_per_second)
        _write_description(folder, SessionFile(info.session, info.token, info.tablets, *how))
        sync_folder(folder)
        failpoints.hit("session.described")
        return info

    async def _set_rate(self, name: str, session: SourceSession, rate: int) -> None:
        """Change the rate in the session's description, which the transfer process reads."""
        if session.bytes_per_second != rate:
            await self._background.in_thread(self._change_rate, self._folder(name), rate)
            session.bytes_per_second = rate

    @staticmethod
    def _change_rate(folder: Path, rate: int) -> None:
        """Change the rate in a thread, unless the session was removed. Raises Corrupt."""
        described = read_session(folder)
        if described is not None:
            _write_description(folder, msgspec.structs.replace(described, bytes_per_second=rate))

    async def close_session(self, command: m.CloseSession) -> m.Result:
        """Close the session, as its source or destination. Idempotent."""
        name = plain(command.session)
        session = self.known.pop(name, None)
        if session is not None:
            await asyncio.wait([session.task])
        await self._remove(name)
        await self.fetches.close(name)
        return m.Result()

    async def fetch(self, command: m.FetchDirect) -> m.Result:
        """Run `Fetches.fetch`."""
        return await self.fetches.fetch(plain(command.session), command)

    async def cancel(self, name: str, reason: str) -> None:
        """End a session on a user's request. Raises Refused (NOT_FOUND)."""
        if plain(name) not in self.open:
            raise Refused(f"there is no open session {name} here", "NOT_FOUND")
        await self._end(name, reason)

    # -- reports

    def reports(self) -> tuple[m.SessionReport, ...]:
        """Return all sessions that are not closed; of exports, which readers close, only ended ones."""
        now = self._background.now()
        return tuple(
            m.SessionReport(name, max(0, int((each.until - now) * 1000)), each.held_bytes, each.ended)
            for name, each in self.known.items()
            if each.ended or not name.startswith(EXPORT_PREFIX)
        )

    def take_over(self) -> tuple[m.SessionReport, ...]:
        """Return the reports for a new master, and keep open sessions until it can renew their leases.

        It knows none of them before it has the reports of all members.
        """
        return tuple(self._take_over(self.known[each.session], each) for each in self.reports())

    def _take_over(self, session: SourceSession, report: m.SessionReport) -> m.SessionReport:
        session.until = max(session.until, self._background.now() + limits.TAKE_OVER_LEASE_SECONDS)
        return msgspec.structs.replace(
            report, destination=session.destination, engine=session.engine, info=session.info
        )

    # -- time

    async def _watch(self) -> None:
        """While any session is open, end those that are overdue or hold too much disk space."""
        try:
            while self.open:
                await asyncio.sleep(limits.SESSION_WATCH_SECONDS)
                now = self._background.now()
                for name in [name for name, session in self.open.items() if session.until <= now]:
                    await self._end(name, "its lease expired")
                await self._bound_disk()
        finally:
            self._watching = False

    async def _bound_disk(self) -> None:
        names = [name for name, session in self.open.items() if session.info is not None]
        if not names:
            return
        held = await self._background.in_thread(self._held, names)
        for name, size in held.items():
            if name in self.open:
                self.known[name].held_bytes = size
        largest = max(held, key=lambda name: (held[name], name))
        free, most = self._volume.free_bytes(), self._live.snapshot_space_bytes
        if held[largest] > most:
            limit = f"the limit is {most} (spec.migration.snapshotSpacePerMember)"
            await self._end(largest, f"its snapshot holds {held[largest]} bytes beyond the database; {limit}")
        elif held[largest] and free < limits.SESSIONS_FREE_BYTES_MIN:
            await self._end(
                largest, f"{free} bytes of the volume are free, its snapshot holds {held[largest]}"
            )

    def _held(self, names: list[str]) -> dict[str, int]:
        """Return the bytes of files that only sessions have, by session; run in a thread."""
        live = {file.st_ino for file in files_in(self._volume.path(DATA)).values()}
        return {name: sum(_sizes(self._folder(name), live)) for name in names}

    async def _end(self, name: str, reason: str) -> None:
        """End a session by itself; the master reads the reason."""
        session = self.known.get(name)
        if session is None or session.ended:
            return
        log.warning("session %s ends: %s", name, reason)
        session.ended, session.floor, session.held_bytes = reason, {}, 0
        await asyncio.wait([session.task])
        await self._remove(name)
        ended = [each for each, session in self.known.items() if session.ended]
        for each in ended[: -limits.SESSIONS_ENDED_MAX]:
            self.known.pop(each, None)

    async def _remove(self, name: str) -> None:
        folder = self._folder(name)
        self._report_damage(folder)
        await self._background.in_thread(remove_session, folder)

    def _report_damage(self, folder: Path) -> None:
        """Take damaged tablets offline: a checkpoint shares the database's files, so its damage is the
        tablet's."""
        for path in folder.glob(damage_note("*", "*")):
            partition, generation = map(int, path.name.split("-")[1:])
            self._note_damage(partition, generation, path.read_text(errors="replace"))

    def _note_damage(self, partition: int, generation: int, text: str) -> None:
        replica = self._tablets.replicas.get(partition)
        if replica is not None and replica.ready and replica.generation == generation:
            self._tablets.break_off(replica, Corrupt(text))

    async def collect_garbage(self) -> None:
        """Remove directories that belong to no session."""
        await self._background.in_thread(self._delete_folders, frozenset(self.open))
        await self.fetches.collect_garbage()

    def _delete_folders(self, open_now: frozenset[str]) -> None:
        for path in self._volume.path(CHECKPOINTS).iterdir():
            if path.name not in open_now and not self._is_open(path.name):
                remove_session(path)

    def _is_open(self, name: str) -> bool:
        """Return whether the session is open. Safe in any thread: a single lookup."""
        session = self.known.get(name)
        return session is not None and not session.ended

    async def stop(self) -> None:
        self.fetches.stop()
        await self.transfer.close()


def _make_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _sizes(folder: Path, live: set[int]) -> Iterator[int]:
    """Iterate the bytes of a session's files, without those that the database has."""
    streams = [file for name, file in files_in(folder).items() if name.endswith(STREAM_SUFFIX)]
    for file in (*streams, *files_in(folder / "db").values()):
        if file.st_ino not in live:
            yield file.st_size


def _write_description(folder: Path, described: SessionFile) -> None:
    durable.replace(folder / "session.json", _encode(described))


def plain(session: str) -> str:
    """Return the session's name if it is valid as a directory name. Raises Refused (BAD_REQUEST)."""
    printable = session.isascii() and session.isprintable()
    if not session or not printable or "/" in session or session.startswith(".") or len(session) > 200:
        text = f"session is {session[:200]!r}; it must be a plain name of at most 200 characters"
        raise Refused(text, "BAD_REQUEST")
    return session
