"""The simulation's fakes as a test's own loop can call them: simulated time passes while a call waits."""

from asyncio import events
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.fakes.loop import Clock, ProcessLoop

T = TypeVar("T")

STEP_SECONDS = 0.05
PATIENCE_SECONDS = 600.0
"""Simulated; what takes longer waits for ever."""


@contextmanager
def apart() -> Iterator[None]:
    """The simulation's processes have loops of their own: the test's does not run meanwhile."""
    running = events._get_running_loop()
    events._set_running_loop(None)
    try:
        yield
    finally:
        events._set_running_loop(running)


def finish(loop: ProcessLoop, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` returns or raises in that process, however long it takes there."""

    async def run() -> T:
        return await work()

    with apart():
        clock, task = loop.clock, loop.create_task(run())
        end = clock.now + PATIENCE_SECONDS
        while not task.done():
            assert clock.now < end, "it waits for ever"
            clock.run(clock.now + STEP_SECONDS)
        found: T = task.result()
        return found


def pass_time(clock: Clock, seconds: float) -> None:
    with apart():
        clock.run(clock.now + seconds)


class Bridged:
    """An object of a simulated process; its coroutines are awaited in the test's loop."""

    def __init__(self, target: Any, loop: ProcessLoop) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            return finish(self._loop, lambda: method(*arguments, **named))

        return call
