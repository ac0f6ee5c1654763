"""The driver process of one destination: `python -m stele.copyjob.driver FD`. Only it imports PySpark.

Orders arrive on stdin and reports go to FD (`messages.py`). It ends with its stdin; the JVM ends with this
process, and stops the executors.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stele.copyjob.messages import Began, Cancel, Copy, Ended, Start, Up, decode_order, decode_result, encode
from stele.copyjob.task import Slice, run_slice
from stele.core.copy.pacing import slices
from stele.wire.copy.jobs import CopyJob

POLL_SECONDS = 0.1
TEXT_CHARS_MAX = 300
# A SparkContext (Any, so that checks do not need PySpark), and the class of a job's threads.
Made = tuple[Any, type[threading.Thread]]
_CODE = re.compile(r"STELE\[([A-Z_]+)\] ([^\r\n]*)")


class _News:
    """Sends lines to the copier, from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def tell(self, message: msgspec.Struct) -> None:
        data = memoryview(encode(message) + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


class _Driver:
    """One Spark application and its jobs, each in its own thread and job group."""

    def __init__(self, made: "Made", start: Start, news: _News) -> None:
        self._context, self._thread = made
        self._start = start
        self._news = news
        self._unwanted: dict[int, bool] = {}
        self._lacking: set[int] = set()

    def begin(self, ticket: int, job: CopyJob) -> None:
        """Run the job; its end is reported as a message."""
        self._unwanted[ticket] = False
        self._thread(target=self._run, args=(ticket, job), daemon=True).start()

    def cancel(self, ticket: int) -> None:
        """Stop the tasks of a run."""
        if ticket in self._unwanted:
            self._unwanted[ticket] = True
            self._stop(ticket)

    def _stop(self, ticket: int) -> None:
        self._context.cancelJobGroup(f"run-{ticket}")

    def _run(self, ticket: int, job: CopyJob) -> None:
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(ticket, over), daemon=True)
        watch.start()
        try:
            ended = self._collect(ticket, job)
        except Exception as error:  # noqa: BLE001  Py4J raises its own types; every end of a job is reported
            ended = self._failed(ticket, error)
        finally:
            over.set()
        watch.join()
        self._unwanted.pop(ticket, None)
        self._lacking.discard(ticket)
        self._news.tell(ended)

    def _collect(self, ticket: int, job: CopyJob) -> Ended:
        context = self._context
        context.setJobGroup(f"run-{ticket}", f"copy to {job.destination}", interruptOnCancel=True)
        parts = slices([item.bytes for item in job.items], self._start.slots)
        tasks: list[Slice] = [
            (number, len(parts), _body(job, part), self._start.staging, self._start.callback)
            for number, part in enumerate(parts)
        ]
        collected = context.parallelize(tasks, len(tasks)).map(run_slice).collect()
        results = [decode_result(raw) for raw in collected]
        failed = next((result for result in results if result.code), None)
        return Ended(
            ticket,
            failed.code if failed else "",
            failed.text if failed else "",
            sum(result.copied_bytes for result in results),
            sum(result.entries for result in results),
            tuple(partition for result in results for partition in result.finished),
            len(parts),
            sum(result.retries for result in results),
        )

    def _failed(self, ticket: int, error: Exception) -> Ended:
        if ticket in self._lacking:
            seconds = self._start.executor_seconds
            text = f"no executor could be scheduled on the destination's node for {seconds:g} s"
            return Ended(ticket, "NO_EXECUTORS", text)
        match = _CODE.search(str(error))
        if match:
            return Ended(ticket, match[1], match[2][:TEXT_CHARS_MAX])
        if "cancelled" in str(error):
            return Ended(ticket, "CANCELLED", "the job was deleted")
        return Ended(ticket, "DRIVER", _first_lines(error))

    def _watch(self, ticket: int, over: threading.Event) -> None:
        """Report when the job has an executor; cancel it when it lacks one for too long."""
        began = False
        seen_at = time.monotonic()
        while not over.wait(POLL_SECONDS):
            if self._unwanted[ticket]:
                # Repeated, because Spark only cancels tasks that run: the job may have been deleted just
                # before it started.
                self._stop(ticket)
            if not self._start.executor_seconds or self._executors():
                seen_at = time.monotonic()
                if not began:
                    began = True
                    self._news.tell(Began(ticket))
            elif time.monotonic() - seen_at > self._start.executor_seconds:
                self._lacking.add(ticket)
                self._stop(ticket)
                return

    def _executors(self) -> int:
        """Return the number of registered executors; Spark's status tracker also lists the driver."""
        return len(self._context._jsc.sc().statusTracker().getExecutorInfos()) - 1


def _body(job: CopyJob, part: Sequence[int]) -> bytes:
    return encode(msgspec.structs.replace(job, items=tuple(job.items[index] for index in part)))


def _first_lines(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:TEXT_CHARS_MAX]


def make_context(start: Start) -> Made:
    """Create the Spark application; return it with the thread class that carries Spark's job group."""
    from pyspark import InheritableThread, SparkConf, SparkContext

    conf = SparkConf(loadDefaults=False)
    for name, value in start.conf.items():
        conf.set(name, value)
    context = SparkContext(conf=conf)
    context.setLogLevel("WARN")
    return context, InheritableThread


def main(argv: Sequence[str], make: Callable[[Start], Made] = make_context) -> int:
    """Serve the copier until it closes stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The copier ends this process.
    news = _News(int(argv[0]))
    start = decode_order(sys.stdin.buffer.readline())
    assert isinstance(start, Start), "the first order is Start"
    try:
        made = make(start)
    except Exception as error:  # noqa: BLE001  Py4J raises its own types; reported to the copier
        news.tell(Ended(0, "DRIVER", _first_lines(error)))
        return 1
    news.tell(Up(str(made[0].applicationId)))
    driver = _Driver(made, start, news)
    for line in sys.stdin.buffer:
        order = decode_order(line)
        if isinstance(order, Copy):
            driver.begin(order.ticket, order.job)
        elif isinstance(order, Cancel):
            driver.cancel(order.ticket)
    made[0].stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
