"""Driver processes as the copier manages them: start, jobs, reports, end."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import IO

from stele.copyjob.conf import pod_template, spark_conf
from stele.copyjob.messages import Began, Cancel, Copy, Ended, Start, Up, decode_news, encode
from stele.copyjob.pods import delete_executors, why_not_placed
from stele.copyjob.settings import Settings
from stele.errors import Refused
from stele.transfer.jobs.direct import lines_of
from stele.wire.copy.jobs import CopyJob

log = logging.getLogger(__name__)

START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 15.0
EXECUTOR_SECONDS_MAX = 30.0

Command = Callable[[int], tuple[str, ...]]

_numbers = count(1)


def driver_command(descriptor: int) -> tuple[str, ...]:
    """Return the command line of a driver process."""
    return (sys.executable, "-m", "stele.copyjob.driver", str(descriptor))


class Driver:
    """A process with the Spark application of one destination, which may run several jobs at once.

    `moved_at` is the time of the last progress of any of them.
    """

    def __init__(self, settings: Settings, job: CopyJob, command: Command = driver_command) -> None:
        self.destination = job.destination
        self.jobs = 0
        self.idle_seconds = float(job.idle_seconds)
        self.idle_since = 0.0
        self.moved_at = 0.0
        self.broken = False
        self._settings, self._command = settings, command
        self._first = job
        self._tickets = count(1)
        self._waiting: dict[int, asyncio.Future[Ended]] = {}
        self._began: dict[int, Callable[[], None]] = {}
        self._up: asyncio.Future[str] | None = None
        self._application = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        # Unique to this driver: its predecessor may still be ending, and deletes its own file.
        self._template = settings.scratch / f"executor-{job.destination}-{next(_numbers)}.json"

    def fits(self, job: CopyJob) -> bool:
        """Return whether the application fits the job; its settings are fixed at its start."""
        return _asked(job) == _asked(self._first)

    async def start(self) -> None:
        """Start the application and wait until it runs. Raises Refused (DRIVER) when it does not."""
        self._up = asyncio.get_running_loop().create_future()
        reading, writing = os.pipe()
        reports = os.fdopen(reading, "rb", buffering=0)
        try:
            self._process = await self._spawn(writing)
        except BaseException:
            reports.close()
            raise
        finally:
            os.close(writing)
        self._reading = asyncio.get_running_loop().create_task(self._read(reports))
        self._tell(self._start_order())
        try:
            application = await asyncio.wait_for(asyncio.shield(self._up), START_SECONDS_MAX)
        except TimeoutError:
            self.broken = True
            text = f"Spark did not start in {START_SECONDS_MAX:g} s; see the copier's log"
            raise Refused(text, "DRIVER") from None
        self._application = application
        log.info("driver of member %s runs application %s", self.destination, application)

    async def copy(self, job: CopyJob, began: Callable[[], None]) -> Ended:
        """Run one job and return its end as reported by the driver. Cancellation stops the job's tasks."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        ticket = next(self._tickets)
        self._waiting[ticket], self._began[ticket] = future, began
        try:
            if self.broken:
                raise Refused("the driver process ended", "DRIVER")
            self._tell(Copy(ticket, job))
            return await future
        except asyncio.CancelledError:
            self._tell(Cancel(ticket))
            raise
        finally:
            self._waiting.pop(ticket, None)
            self._began.pop(ticket, None)

    async def why_not_placed(self) -> str:
        """Return why the scheduler cannot place an executor; empty when it gives no reason."""
        return await why_not_placed(self._settings, f"spark-app-selector={self._application}")

    async def stop(self) -> None:
        """End the application and the process, by force after a timeout. Its executors end with it."""
        lost, self.broken = self.broken, True
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            log.warning("driver of member %s does not stop and is killed", self.destination)
            process.kill()
            await process.wait()
            lost = True
        if lost and self._application:
            await delete_executors(self._settings, f"spark-app-selector={self._application}")
        if self._reading is not None:
            await self._reading
        await asyncio.to_thread(self._template.unlink, missing_ok=True)

    async def _spawn(self, writing: int) -> asyncio.subprocess.Process:
        self._template.write_text(pod_template(self._first, self._settings))
        environment = _environment(os.environ, self._settings.scratch)
        return await asyncio.create_subprocess_exec(
            *self._command(writing), stdin=asyncio.subprocess.PIPE, pass_fds=(writing,), env=environment
        )

    def _start_order(self) -> Start:
        job, settings = self._first, self._settings
        return Start(
            conf=spark_conf(settings, job, str(self._template)),
            staging=settings.staging_of(job.claim),
            callback=settings.callback,
            slots=job.executors * job.cores,
            executor_seconds=0.0 if settings.is_local else EXECUTOR_SECONDS_MAX,
        )

    def _tell(self, order: Start | Copy | Cancel) -> None:
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(encode(order) + b"\n")

    async def _read(self, reports: IO[bytes]) -> None:
        """Read the driver's reports until it ends; pending runs have then failed."""
        reader, transport = await lines_of(reports)
        try:
            while line := await reader.readline():
                self._take(decode_news(line))
        except ValueError:
            log.exception("invalid report of the driver of member %s", self.destination)
        finally:
            transport.close()
            self._fail("the driver process ended; see the copier's log")

    def _take(self, news: Up | Began | Ended) -> None:
        if isinstance(news, Up):
            if self._up is not None and not self._up.done():
                self._up.set_result(news.application)
        elif isinstance(news, Began):
            if news.ticket in self._began:
                self._began[news.ticket]()
        elif not news.ticket:
            self._fail(news.text)
        elif (future := self._waiting.get(news.ticket)) is not None and not future.done():
            future.set_result(news)

    def _fail(self, text: str) -> None:
        self.broken = True
        if self._up is not None and not self._up.done():
            self._up.set_exception(Refused(text, "DRIVER"))
            self._up.exception()  # There may be no waiter any more.
        for ticket, future in self._waiting.items():
            if not future.done():
                future.set_result(Ended(ticket, "DRIVER", text))


def _asked(job: CopyJob) -> tuple[str, int, int, str]:
    return job.claim, job.executors, job.cores, job.memory


def _environment(inherited: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return the driver's environment, without Spark settings from elsewhere."""
    foreign = ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
    kept = {name: value for name, value in inherited.items() if name not in foreign}
    python = {"PYSPARK_PYTHON": inherited.get("PYSPARK_PYTHON", sys.executable), "PYSPARK_PIN_THREAD": "true"}
    return kept | python | {"SPARK_LOCAL_DIRS": str(scratch)}
