"""Loops are let go of, whatever they do with a cancellation."""

import asyncio
from typing import Any, cast

from stele.master.loop import ClusterLoop
from stele.master.supervisor import Supervisor


class _Loop:
    """Stands for a ClusterLoop: only `wake` is called from outside."""

    def wake(self) -> None: ...


async def _deaf(swallow: int) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not swallow:
                raise
            swallow -= 1


async def test_a_loop_that_swallows_a_cancellation_is_cancelled_again() -> None:
    supervisor = Supervisor(cast("Any", None), cast("Any", None), cast("Any", None))
    key = ("ns", "demo")
    task = asyncio.create_task(_deaf(swallow=1))
    supervisor._loops[key], supervisor._tasks[key] = cast("ClusterLoop", _Loop()), task
    await asyncio.sleep(0)
    await asyncio.wait_for(supervisor._stop(key), 10)
    assert task.cancelled()
    assert key not in supervisor._loops
