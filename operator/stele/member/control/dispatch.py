"""Runs the master's commands: those of one partition in order, different partitions concurrently."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from stele.adapters import logs
from stele.core.control import commands as m
from stele.errors import SteleError
from stele.member.control.fencing import Fencing
from stele.member.control.migrations import Migrations
from stele.member.control.state_lock import StateLock
from stele.member.copy.ingest import Ingester
from stele.member.copy.sessions import CopySessions
from stele.member.replication.tablet_store import TabletStore
from stele.member.storage.disk_full import is_disk_full

log = logging.getLogger("stele.dispatch")

Handler = Callable[[Any], Awaitable[m.Result]]

PATIENCE_SECONDS = 0.05
"""Seconds that one exchange waits for bulk work.

Longer work continues and replies WAIT until it is asked again after its end. Other commands to this member
wait for the exchange, and a master without a reply for a few seconds considers the member failed.
"""
SAVED_PATIENCE_SECONDS = 1.0
"""The same for commands that only wait for the disk, of which thousands may come at once."""
_BULK = (m.Ingest, m.OpenSession, m.CloseSession)
_CALL_SERVICES = (m.StartTabletCopy, m.AddLearner, m.HandOver)
"""Bulk work as well, where services are installed: they may be slow."""
_SAVED = (m.Fence, m.Accept)
_OF_MIGRATIONS = (m.StartTabletCopy, m.AddLearner, m.HandOver, m.Abort)
_STILL_BUSY = m.Result(m.WAIT, "still under way", wait_ms=50)


@dataclass(eq=False)
class CommandDispatcher:
    """Runs commands. Every command is idempotent; a refused one changes nothing.

    `_call_services`: services are installed, and steps of a migration may wait for them.
    """

    _tablets: TabletStore
    _migrations: Migrations
    _fencing: Fencing
    _sessions: CopySessions
    _ingester: Ingester
    _state_lock: StateLock
    _call_services: bool

    def __post_init__(self) -> None:
        self._slow_kinds = _BULK + _CALL_SERVICES if self._call_services else _BULK
        self._bulk: dict[m.Command, asyncio.Task[m.Result]] = {}
        migrations, fencing, sessions = self._migrations, self._fencing, self._sessions
        self._handlers: dict[Any, Handler] = {
            m.StartTabletCopy: migrations.start_copy,
            m.AddLearner: migrations.add_learner,
            m.HandOver: migrations.hand_over,
            m.Abort: migrations.abort,
            m.DeleteTablet: migrations.delete,
            m.CreateTablet: migrations.create,
            m.Accept: fencing.accept,
            m.Fence: fencing.fence,
            m.OpenSession: sessions.open_session,
            m.CloseSession: sessions.close_session,
            m.FetchDirect: sessions.fetch,
            m.Ingest: self._ingester.ingest,
            m.LockState: self._state_lock.lock,
            m.UnlockState: self._state_lock.unlock,
        }

    async def run(self, commands: tuple[m.Command, ...]) -> tuple[m.Result, ...]:
        """Return one result per command, in order."""
        for command in [each for each, task in self._bulk.items() if task.done() and each not in commands]:
            del self._bulk[command]
        return tuple(await asyncio.gather(*(self._answer(command) for command in commands)))

    async def _answer(self, command: m.Command) -> m.Result:
        """Return the result, or WAIT for unfinished work; the same command finds its result later."""
        if isinstance(command, self._slow_kinds):
            patience = PATIENCE_SECONDS
        elif isinstance(command, _SAVED):
            patience = SAVED_PATIENCE_SECONDS
        else:
            return await self._run(command)
        task = self._bulk.get(command)
        if task is None:
            task = self._bulk[command] = asyncio.create_task(self._run(command))
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            return _STILL_BUSY
        self._bulk.pop(command, None)
        return task.result()

    async def _run(self, command: m.Command) -> m.Result:
        partition = getattr(command, "partition", None)
        if partition is not None and not 0 <= partition < len(self._tablets.rows):
            return m.Result("BAD_REQUEST", f"partition {partition} is not in this member's table")
        if self._state_lock.refuses(command):
            return m.Result("STATE_LOCKED", "the cluster state is being changed; nothing new is begun")
        try:
            with logs.about(**_named(command)):
                return await self._handlers[type(command)](command)
        except SteleError as error:
            log.warning("%s refused: %s", type(command).__name__, error)
            return m.Result(error.code, error.text)
        except OSError as error:
            log.error("%s failed: %s", type(command).__name__, error)
            return m.Result("NO_SPACE" if is_disk_full(error) else "DISK_ERROR", str(error))


def _named(command: m.Command) -> dict[str, str | int]:
    """Return what lines of the log name while the command runs."""
    if isinstance(command, _OF_MIGRATIONS):
        return {"partition": command.partition, "migration": command.id}
    session = getattr(command, "session", "")
    return {"session": session} if session else {}
