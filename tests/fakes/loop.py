"""Virtual time: one queue of events for everything, and an asyncio loop for each simulated process.

`Clock.run` takes events in the order of their time, then of their making, and jumps to the next. A process
sees time by its own clock, which may run fast or slow. Nothing of a killed process runs; what happens to a
paused one waits until it goes on. All of it is decided by one random generator, so a seed is a history.
"""

import asyncio
import heapq
import math
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any

from stele.errors import SteleError

DISK_SECONDS = (0.0005, 0.004)
"""How long slow work of a healthy disk takes: least and most."""


class Defect(Exception):  # noqa: N818
    """The product raised what it must never raise, or broke a rule that a checker watches."""


class Killed(BaseException):
    """The process ended in the middle of this step: what comes after it in the step never happens."""


class Clock:
    """The one queue. `current` is the process that runs now, None for the world around them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = self.processes = 0
        self.current: ProcessLoop | None = None
        self.failure: Exception | None = None
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._made = 0

    def soon(self, handle: "Handle") -> None:
        self._ready.append(handle)

    def later(self, delay: float, handle: "Handle") -> None:
        self._made += 1
        # A delay too short to change the time would let a process that waits for a moment wait for ever.
        at = (
            self.now + delay
            if delay <= 0.0 or self.now + delay > self.now
            else math.nextafter(self.now, math.inf)
        )
        heapq.heappush(self._timers, (max(self.now, at), self._made, handle))

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> "Handle":
        """Something that happens in the world, whatever becomes of the processes."""
        handle = Handle(None, callback, args)
        self.later(delay, handle)
        return handle

    def fail(self, failure: Exception) -> None:
        """End the run with it, from wherever it was found: threads and tasks keep what is raised in them."""
        self.failure = self.failure or failure

    def run(self, until: float) -> None:
        """Everything up to that moment. Raises the first failure, and what a callback raises."""
        ready, timers = self._ready, self._timers
        try:
            while self.failure is None:
                while ready:
                    self._step(ready.popleft())
                if not timers or timers[0][0] > until:
                    self.now = until
                    break
                self.now, _, handle = heapq.heappop(timers)
                self._step(handle)
        finally:
            self.let_run(None)
        if self.failure is not None:
            raise self.failure

    def _step(self, handle: "Handle") -> None:
        process = handle.process
        if handle.cancelled_ or (process is not None and not process.takes(handle)):
            return
        self.steps += 1
        if process is not self.current:
            self.let_run(process)
        try:
            handle.callback(*handle.args)
        except Killed:
            # The caller that ended the process has seen to everything.
            return

    def let_run(self, process: "ProcessLoop | None") -> None:
        self.current = process
        events._set_running_loop(process)


class Handle:
    """A callback that waits for its turn."""

    __slots__ = ("args", "callback", "cancelled_", "process")

    def __init__(self, process: "ProcessLoop | None", callback: Callable[..., object], args: Any) -> None:
        self.process, self.callback, self.args = process, callback, args
        self.cancelled_ = False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_


class Job:
    """Slow work in a thread: what it does happens at one moment between its beginning and its end."""

    def __init__(
        self,
        work: Callable[[], object],
        before: Callable[[Callable[[], object]], None],
        future: "asyncio.Future[object]",
    ) -> None:
        self.work, self._before, self.future = work, before, future
        self.done = False
        self.result: object = None
        self.error: BaseException | None = None

    def run(self) -> None:
        self.done = True
        try:
            self._before(self.work)
            self.result = self.work()
        except Exception as error:  # noqa: BLE001  handed to the caller, as a thread does
            self.error = error

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process: as much of asyncio's as the product uses.

    `rate` is how fast its clock runs, `wall_seconds` how much the time of day is wrong,
    `before_slow` is told of slow work before it is done: it may raise.
    """

    def __init__(self, clock: Clock, name: str, network: Any = None, rate: float = 1.0) -> None:
        self.clock, self.name, self.network = clock, name, network
        clock.processes += 1
        self.number = clock.processes
        self.alive = True
        self.paused_until = 0.0
        self.jobs: list[Job] = []
        self.disk_seconds = DISK_SECONDS
        self.before_slow: Callable[[Callable[[], object]], None] = lambda work: None
        self.wall_seconds = 0.0
        self.rate = rate
        self.paused_seconds = 0.0
        self._started = clock.now
        self._offset = clock.random.uniform(1.0, 1000.0)
        self._waiting: list[Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._busy_until: dict[object, float] = {}
        self._fuse = 0
        self._end: Callable[[], object] | None = None

    # -- life

    def takes(self, handle: Handle) -> bool:
        """Whether the process runs; a paused one keeps the handle for later."""
        if not self.alive:
            return False
        if self.clock.now >= self.paused_until:
            return self._goes_on()
        if not self._waiting:
            self.clock.call_later(self.paused_until - self.clock.now, self._resume)
        self._waiting.append(handle)
        return False

    def end_after(self, steps: int, end: Callable[[], object]) -> None:
        """Do `end`, which kills it, instead of the step after so many more."""
        self._fuse, self._end = steps, end

    def _goes_on(self) -> bool:
        """Count down the steps of a process that is to end."""
        if self._end is None:
            return True
        self._fuse -= 1
        if self._fuse > 0:
            return True
        end, self._end = self._end, None
        self.clock.let_run(None)
        end()
        return self.alive

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after that time."""
        self.paused_until = max(self.paused_until, self.clock.now + seconds)
        self.paused_seconds += seconds

    def _resume(self) -> None:
        waiting, self._waiting = self._waiting, []
        for handle in waiting:
            self.clock.soon(handle)

    def kill(self) -> list[Callable[[], object]]:
        """Nothing of it runs any more. Returns the slow work that had begun and had not happened."""
        self.alive = False
        begun = [job.work for job in self.jobs if not job.done]
        self.jobs = []
        for task in self._tasks:
            task._log_destroy_pending = False
            if not task.done():
                _forget(task.get_coro())
        self._tasks = []
        return begun

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self._offset + (self.clock.now - self._started) * self.rate

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(self, callback, args)
        if self.alive:
            self.clock.soon(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(self, callback, args)
        if self.alive:
            self.clock.later(delay / self.rate, handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_later(when - self.time(), callback, *args)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> "asyncio.Task[Any]":  # type: ignore[override]
        task = asyncio.Task(coro, loop=self)
        self._tasks.append(task)
        if len(self._tasks) > 64 and len(self._tasks) % 64 == 0:
            self._tasks = [each for each in self._tasks if not each.done()]
        return task

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """One after the other for each executor: all of the product's have one thread."""
        clock, work = self.clock, partial(func, *args)
        begin = max(clock.now, self._busy_until.get(executor, 0.0))
        seconds = clock.random.uniform(*self.disk_seconds)
        self._busy_until[executor] = begin + seconds
        job = Job(work, self.before_slow, self.create_future())
        self.jobs = [each for each in self.jobs if not each.done]
        self.jobs.append(job)
        moment = begin - clock.now + seconds * clock.random.random()
        clock.later(moment, Handle(self, job.run, ()))
        clock.later(begin - clock.now + seconds, Handle(self, job.deliver, ()))
        return job.future

    async def create_connection(self, factory: Any, host: str, port: int) -> Any:  # type: ignore[override]
        return await self.network.connect(self, factory, host, port)

    async def create_server(self, factory: Any, host: str, port: int, **_: Any) -> Any:  # type: ignore[override]
        return self.network.listen(self, factory, port)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Told of an error that nobody took: a defect, but for what the product raises on purpose."""
        error = context.get("exception")
        if error is not None and not isinstance(error, SteleError | OSError | Killed):
            self.clock.fail(Defect(f"{self.name}: {context.get('message')}: {error!r}"))


def _forget(coro: Any) -> None:
    """End a coroutine of a process that is no more; what its `finally` does reaches nothing any more."""
    # It may want to go on while it ends, or be what runs right now.
    with suppress(Exception):
        coro.close()
