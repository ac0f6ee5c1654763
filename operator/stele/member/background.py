"""Background work: tasks, one thread for slow work, and the clocks."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stele.adapters import logs
from stele.member import limits
from stele.member.storage.disk_full import is_disk_full, is_stopping

log = logging.getLogger("stele.member")
R = TypeVar("R")


class Background:
    """`failed` ends the process. `wall` returns Unix seconds."""

    def __init__(self, failed: Callable[[str], None], wall: Callable[[], float] = time.time) -> None:
        self.loop = asyncio.get_running_loop()
        self.slow = ThreadPoolExecutor(1, "slow")
        self.wall = wall
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        """Return seconds of the loop's clock."""
        return self.loop.time()

    def in_thread(self, work: Callable[..., R], *args: Any) -> "asyncio.Future[R]":
        """Run in the thread for slow work, one call at a time."""
        return self.loop.run_in_executor(self.slow, work, *args)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run in the background. An unexpected error ends the process.

        Work that lacks space, or is running when the member stops, is dropped.
        """
        task = self.loop.create_task(work, context=logs.about_nothing())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if is_disk_full(error) or is_stopping(error):
            log.warning("background work is postponed: %s", error)
            return
        log.error("background work failed", exc_info=error)
        self._failed(f"background work failed: {error}")

    async def until(self, done: Callable[[], bool], seconds_max: float) -> None:
        """Wait until `done`, which ends in many places, for at most so long."""
        until = self.now() + seconds_max
        while not done() and self.now() < until:  # noqa: ASYNC110
            await asyncio.sleep(limits.DRAIN_LOOK_SECONDS)

    def cancel(self) -> None:
        """Cancel running tasks before the process ends."""
        for task in list(self._tasks):
            task.cancel()
