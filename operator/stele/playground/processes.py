"""One container of a pod as a process of this machine, which is started again whenever it ends."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a log from which on the next start of the process begins another."""

PAUSE_SECONDS = (0.5, 10.0)
"""Seconds until a process that ended is started again: at first, and doubled each time up to this."""

STEADY_SECONDS = 10.0
"""A process that ran for this long is started again as at first."""

Ended = Callable[[int], None]


class Container:
    """`began` is called for each start and `ended` with each exit code, unless it was to stop."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._command, self._log = command, log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STELE_")}
        self._env = {**kept, **env}
        self._process: asyncio.subprocess.Process | None = None
        self._away_until = 0.0
        self._stopping = False

    async def keep(self, began: Callable[[], None], ended: Ended) -> None:
        """Run until `stop`."""
        pause, last = PAUSE_SECONDS
        while not self._stopping:
            self._process = await self.run(self._command)
            begin = time.monotonic()
            began()
            code = await self._process.wait()
            if self._stopping:
                return
            ended(code)
            pause = PAUSE_SECONDS[0] if time.monotonic() - begin > STEADY_SECONDS else min(2 * pause, last)
            await asyncio.sleep(max(pause, self._away_until - time.monotonic()))

    async def run(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a program in the container."""
        if self._log.exists() and self._log.stat().st_size > LOG_BYTES_MAX:
            self._log.replace(self._log.with_suffix(".log.1"))
        words = [sys.executable, "-P", "-m", "stele.playground.child", str(os.getpid()), *command]
        with self._log.open("ab") as out:
            # A session of its own: Ctrl-C is for the playground, which ends them in its order.
            return await asyncio.create_subprocess_exec(
                *words, env=self._env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    def kill(self, away_seconds: float = 0.0) -> None:
        """SIGKILL; it is not started again for so many seconds."""
        self._away_until = time.monotonic() + away_seconds
        self._signal(signal.SIGKILL)

    async def stop(self, seconds: float) -> None:
        """SIGTERM, SIGKILL after so many seconds, and no further start."""
        self._stopping = True
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
