"""Group commit in one thread: decides when written operations count as held."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from stele.adapters import logs
from stele.member.limits import SYNC_INTERVAL_SECONDS
from stele.member.replication.latency import Histogram
from stele.member.settings import Fsync
from stele.member.storage import failpoints
from stele.ports.engine import Engine


class GroupCommit:
    """`after_write(then)` calls `then` once what is written counts as held, in the order of the calls.

    After `stop` nothing counts as held and nothing is called. `failed` is called with a disk error, after
    which nothing may be acknowledged, so the process must end.
    """

    def __init__(
        self, engine: Engine, mode: Fsync, executor: Executor, failed: Callable[[BaseException], None]
    ) -> None:
        self._engine = engine
        self._mode = mode
        self._executor = executor
        self._failed = failed
        self._waiting: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.seconds = Histogram()
        """How long syncs took, including the wait for the thread."""

    def after_write(self, then: Callable[[], None]) -> None:
        if self._stopped:
            return
        if self._mode is Fsync.ALWAYS:
            self._waiting.append(then)
        else:
            then()
        if self._mode is not Fsync.NEVER and self._task is None:
            self._task = asyncio.create_task(self._run(), context=logs.about_nothing())
            self._task.add_done_callback(self._ended)
            self._running.add(self._task)

    async def _run(self) -> None:
        if self._mode is Fsync.INTERVAL:
            await asyncio.sleep(SYNC_INTERVAL_SECONDS)
            self._task = None
            await self.sync()
            return
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await self.sync()
            for then in waiting if not self._stopped else ():
                then()
        # Here, not in a callback of the task: calls scheduled before that callback would run too early.
        self._task = None

    async def stop(self) -> None:
        """Wait for the running sync and start no other: the engine is about to be closed."""
        self._stopped = True
        self._waiting.clear()
        if self._running:
            await asyncio.wait(self._running)

    async def sync(self) -> None:
        """Sync now, in any mode."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await loop.run_in_executor(self._executor, self._engine.sync_log)
        self.seconds.add(loop.time() - began)
        failpoints.hit("write.synced")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
