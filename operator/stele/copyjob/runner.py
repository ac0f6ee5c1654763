"""The Spark engine: sends jobs to the driver of their destination, which is kept for a while."""

import asyncio
import logging
import time
from collections.abc import Callable

from stele.copyjob.drivers import Command, Driver, driver_command
from stele.copyjob.messages import Ended, SliceProgress
from stele.copyjob.settings import Settings
from stele.errors import BadInput, SteleError
from stele.transfer.jobs.board import Report
from stele.wire.copy.jobs import CopyJob

log = logging.getLogger(__name__)

IDLE_CHECK_SECONDS = 1.0

HANG_SECONDS = 60.0
"""A driver without progress for this long is considered stuck: it ends when one of its jobs is deleted.

The master deletes a job without progress after three times as long.
"""


class _Running:
    """A running job, and the last progress of each of its slices."""

    def __init__(self, job: CopyJob, report: Callable[[Report], None]) -> None:
        self.job = job
        self.driver: Driver | None = None
        self._told = report
        self._last: Report | None = None
        self._parts: dict[int, SliceProgress] = {}

    def began(self) -> None:
        """Report that the job has an executor."""
        self._report(self._sum())

    def take(self, progress: SliceProgress) -> None:
        """Take the progress of a slice; a new attempt replaces the previous one."""
        self._parts[progress.part] = progress
        self._report(self._sum())

    def end(self, ended: Ended) -> None:
        """Report the final totals of Spark, which do not depend on progress messages."""
        if not ended.code:
            finished = tuple(sorted(ended.finished))
            self._report(Report(ended.copied_bytes, ended.entries, finished, ended.tasks, ended.retries))

    def _report(self, report: Report) -> None:
        if report != self._last and self.driver is not None:
            self.driver.moved_at = time.monotonic()
        self._last = report
        self._told(report)

    def _sum(self) -> Report:
        parts = self._parts.values()
        finished = sorted({partition for part in parts for partition in part.finished})
        copied_bytes = sum(part.copied_bytes for part in parts)
        tasks = max((part.parts for part in parts), default=0)
        retries = sum(part.retries for part in parts)
        return Report(copied_bytes, sum(part.entries for part in parts), tuple(finished), tasks, retries)


class SparkRunner:
    """A `Runner`. At most `settings.drivers_max` drivers run; idle ones make room for others."""

    def __init__(self, settings: Settings, command: Command = driver_command) -> None:
        self._settings, self._command = settings, command
        self._drivers: dict[str, Driver] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._running: dict[str, _Running] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._sweeper: asyncio.Task[None] | None = None

    async def run(self, job: CopyJob, starting: Callable[[], None], report: Callable[[Report], None]) -> None:
        """Implement `Runner.run`."""
        running = self._running[job.session] = _Running(job, report)
        try:
            driver = running.driver = await self._take_driver(job, starting)
            try:
                ended = await driver.copy(job, running.began)
            except asyncio.CancelledError:
                if time.monotonic() - driver.moved_at > HANG_SECONDS:
                    log.warning("driver of member %s is stuck and is stopped", driver.destination)
                    self._end(driver)
                raise
            finally:
                await self._give_back(driver)
            running.end(ended)
        finally:
            # A deleted job may still be ending when its session is requested again.
            if self._running.get(job.session) is running:
                del self._running[job.session]
        text = ended.text
        if ended.code == "NO_EXECUTORS":
            reason = await driver.why_not_placed()
            text = f"{text}: {reason}" if reason else text
            await self._drop(driver)  # Its pods would stay pending.
        if ended.code:
            raise SteleError(text, ended.code)

    def token_of(self, session: str) -> str | None:
        """Return the token that tasks of a running job must present; None when it is not running."""
        running = self._running.get(session)
        return None if running is None else running.job.token

    def progress(self, session: str, progress: SliceProgress) -> bool:
        """Take the progress of a task; False when its job is not running, so that the task stops."""
        running = self._running.get(session)
        if running is None:
            return False
        running.take(progress)
        return True

    def open(self) -> None:
        """Start to end drivers that have been idle for too long."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def close(self) -> None:
        """End all drivers."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self._drop(driver) for driver in list(self._drivers.values())))
        await asyncio.gather(*self._stopping)

    async def _take_driver(self, job: CopyJob, starting: Callable[[], None]) -> Driver:
        """Return the destination's driver, reserved for the job; start one if none fits."""
        if not job.claim:
            raise BadInput("claim is empty; expected the PersistentVolumeClaim for Spark to mount")
        lock = self._starting.setdefault(job.destination, asyncio.Lock())
        async with lock:
            driver = await self._warm_driver(job)
            if driver is None:
                await self._make_room()
            starting()
            if driver is None:
                driver = await self._new_driver(job)
            if not driver.jobs:
                driver.moved_at = time.monotonic()
            driver.jobs += 1
            driver.idle_seconds = float(job.idle_seconds)
            return driver

    async def _warm_driver(self, job: CopyJob) -> Driver | None:
        """Return the destination's driver if it fits the job; wait for the end of one that does not."""
        while (driver := self._drivers.get(job.destination)) is not None:
            if driver.fits(job) and not driver.broken:
                return driver
            if driver.broken or not driver.jobs:
                await self._drop(driver)
                continue
            async with self._changed:
                await self._changed.wait()
        return None

    async def _new_driver(self, job: CopyJob) -> Driver:
        driver = self._drivers[job.destination] = Driver(self._settings, job, self._command)
        driver.jobs += 1
        try:
            await driver.start()
        except BaseException:
            await self._drop(driver)
            raise
        finally:
            driver.jobs -= 1
        return driver

    async def _make_room(self) -> None:
        """Wait until another driver may run; the longest idle one is ended first."""
        while len(self._drivers) >= self._settings.drivers_max:
            idle = [driver for driver in self._drivers.values() if not driver.jobs]
            if idle:
                await self._drop(min(idle, key=lambda driver: driver.idle_since))
                continue
            async with self._changed:
                await self._changed.wait()

    async def _give_back(self, driver: Driver) -> None:
        driver.jobs -= 1
        driver.idle_since = time.monotonic()
        async with self._changed:
            self._changed.notify_all()

    async def _drop(self, driver: Driver) -> None:
        await asyncio.shield(self._end(driver))  # The process ends even if the waiter is cancelled.

    def _end(self, driver: Driver) -> asyncio.Task[None]:
        """Stop giving jobs to a driver, and end it."""
        if self._drivers.get(driver.destination) is driver:
            del self._drivers[driver.destination]
        stopping = asyncio.get_running_loop().create_task(self._stop(driver))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        return stopping

    async def _stop(self, driver: Driver) -> None:
        await driver.stop()
        async with self._changed:
            self._changed.notify_all()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_SECONDS)
            now = time.monotonic()
            for driver in list(self._drivers.values()):
                idle = not driver.jobs and now - driver.idle_since > driver.idle_seconds
                if idle or (driver.broken and not driver.jobs):
                    log.info("stopping driver of member %s: it is idle or broken", driver.destination)
                    await self._drop(driver)
