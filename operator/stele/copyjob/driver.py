"""The driver process of one destination: `python -m stele.copyjob.driver FD`. Only here is PySpark imported.

Orders come on stdin and news go out on FD (`messages.py`). It ends when stdin does; the JVM ends when this
process does, and takes the executors with it.
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
# A SparkContext (PySpark has no types that a check without it could see), and the class of a job's threads.
Made = tuple[Any, type[threading.Thread]]
_CODE = re.compile(r"STELE\[([A-Z_]+)\] ([^\r\n]*)")


class _News:
    """Lines to the copier, from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def tell(self, message: msgspec.Struct) -> None:
        data = memoryview(encode(message) + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


class _Driver:
    """One Spark application and the jobs that run in it, each in a thread and a job group of its own."""

    def __init__(self, made: "Made", start: Start, news: _News) -> None:
        self._context, self._thread = made
        self._start = start
        self._news = news
        self._unwanted: dict[int, bool] = {}
        self._lacking: set[int] = set()

    def begin(self, ticket: int, job: CopyJob) -> None:
        """Run the job; its end is told, not returned."""
        self._unwanted[ticket] = False
        self._thread(target=self._run, args=(ticket, job), daemon=True).start()

    def cancel(self, ticket: int) -> None:
        """Stop the run's tasks."""
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
        except Exception as error:  # noqa: BLE001  Py4J raises its own types; each end of a job is told
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
        given: list[Slice] = [
            (number, len(parts), _body(job, part), self._start.staging, self._start.callback)
            for number, part in enumerate(parts)
        ]
        collected = context.parallelize(given, len(given)).map(run_slice).collect()
        results = [decode_result(raw) for raw in collected]
        wrong = next((result for result in results if result.code), None)
        return Ended(
            ticket,
            wrong.code if wrong else "",
            wrong.text if wrong else "",
            sum(result.copied_bytes for result in results),
            sum(result.entries for result in results),
            tuple(partition for result in results for partition in result.finished),
            len(parts),
            sum(result.retries for result in results),
        )

    def _failed(self, ticket: int, error: Exception) -> Ended:
        if ticket in self._lacking:
            seconds = self._start.executor_seconds
            text = f"no executor could be placed beside the destination for {seconds:g} s"
            return Ended(ticket, "NO_EXECUTORS", text)
        found = _CODE.search(str(error))
        if found:
            return Ended(ticket, found[1], found[2][:TEXT_CHARS_MAX])
        if "cancelled" in str(error):
            return Ended(ticket, "CANCELLED", "the job was deleted")
        return Ended(ticket, "DRIVER", _first_lines(error))

    def _watch(self, ticket: int, over: threading.Event) -> None:
        """Tell when the job has an executor; cancel it when it has none for too long."""
        began = False
        seen_at = time.monotonic()
        while not over.wait(POLL_SECONDS):
            if self._unwanted[ticket]:
                # Spark cancels what runs already; a job may have been deleted a moment before it did.
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
        """Registered executors; the list of Spark's status tracker holds the driver too."""
        return len(self._context._jsc.sc().statusTracker().getExecutorInfos()) - 1


def _body(job: CopyJob, part: Sequence[int]) -> bytes:
    return encode(msgspec.structs.replace(job, items=tuple(job.items[place] for place in part)))


def _first_lines(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:TEXT_CHARS_MAX]


def make_context(start: Start) -> Made:
    """The Spark application, and the kind of thread whose job group Spark follows."""
    from pyspark import InheritableThread, SparkConf, SparkContext

    conf = SparkConf(loadDefaults=False)
    for name, value in start.conf.items():
        conf.set(name, value)
    context = SparkContext(conf=conf)
    context.setLogLevel("WARN")
    return context, InheritableThread


def main(argv: Sequence[str], make: Callable[[Start], Made] = make_context) -> int:
    """Serve the copier until it closes our stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The copier decides when this process ends.
    news = _News(int(argv[0]))
    start = decode_order(sys.stdin.buffer.readline())
    assert isinstance(start, Start), "the first order is Start"
    try:
        made = make(start)
    except Exception as error:  # noqa: BLE001  Py4J raises its own types; the copier has to know
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
