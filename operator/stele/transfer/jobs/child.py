"""Runs copy jobs one after the other in a separate process: `...transfer.jobs.child DATA TLS_DIR FD`.

A separate process, because packing and writing entries hold the GIL while the transfer process must keep
serving streams, and because a process can be killed at any time. Jobs arrive on stdin as one JSON object per
line; reports go to file descriptor FD in the same form: `Progress`, and finally `Ended`.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import msgspec

from stele.adapters import environment, logs
from stele.adapters.logs import LogSettings
from stele.core.control.commands import CopyItem
from stele.core.copy.pacing import slices
from stele.errors import Refused, SteleError
from stele.transfer.client.copy import copy_tablets
from stele.transfer.jobs.board import Report
from stele.transfer.tls import VolumeTls
from stele.wire.copy.jobs import CopyJob, Manifest

THREADS = 4
"""Threads per job: while one waits for a sync, others copy, and concurrent syncs share the cost."""
REPORT_SECONDS = 0.2

Emit = Callable[[msgspec.Struct], None]


class CopyEnded(msgspec.Struct, frozen=True, tag="ended"):
    """End of a job; `code` is empty when all manifests are complete."""

    code: str = ""
    text: str = ""


class CopyProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Progress of a job."""

    report: Report


class Tally:
    """Adds up the progress of a job's threads, and emits a report at most every `REPORT_SECONDS`."""

    def __init__(self, emit: Emit, tasks: int) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._bytes = self._entries = self._retries = 0
        self._tasks = tasks
        self._finished: list[int] = []
        self._next = 0.0
        self.stopped = False

    def add_bytes(self, more: int) -> None:
        """CopyProgress of one copy. Raise Refused (CANCELLED) when another one has failed."""
        if self.stopped and more > 0:
            raise Refused("another tablet of this job failed", "CANCELLED")
        with self._lock:
            self._bytes += more
            self._report(time.monotonic() >= self._next)

    def again(self) -> None:
        """Count a restarted fragment."""
        with self._lock:
            self._retries += 1

    def finish(self, manifest: Manifest) -> None:
        """Count a completed tablet."""
        with self._lock:
            self._entries += manifest.entries
            self._finished.append(manifest.partition)
            self._report(time.monotonic() >= self._next)

    def flush(self) -> None:
        """Report now."""
        with self._lock:
            self._report(True)

    def _report(self, due: bool) -> None:
        if due:
            self._next = time.monotonic() + REPORT_SECONDS
            finished = tuple(self._finished)
            self._emit(CopyProgress(Report(self._bytes, self._entries, finished, self._tasks, self._retries)))


def run_job(job: CopyJob, data: Path, tls: VolumeTls, emit: Emit, threads: int = THREADS) -> None:
    """Copy all items to the volume and emit reports, `CopyEnded` last. The first error stops the rest."""
    parts = [
        [job.items[index] for index in item_indexes]
        for item_indexes in slices([item.bytes for item in job.items], threads)
    ]
    tally = Tally(emit, len(parts))
    tally.flush()
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(_copy_items, job, items, data, tls, tally) for items in parts]
        wait(running, return_when=FIRST_EXCEPTION)
        ended = _ended(running)
        tally.stopped = bool(ended.code)
        if ended.code:
            pool.shutdown(wait=True, cancel_futures=True)
    tally.flush()
    emit(ended)


def _copy_items(job: CopyJob, items: Sequence[CopyItem], data: Path, tls: VolumeTls, tally: Tally) -> None:
    copy_tablets(
        job,
        items,
        staging=data / "staging",
        progress=tally.add_bytes,
        finished=tally.finish,
        again=tally.again,
        secured=partial(tls.dialling, job.source),
    )


def _ended(running: Sequence[Future[None]]) -> CopyEnded:
    for future in running:
        error = future.exception() if future.done() and not future.cancelled() else None
        if isinstance(error, SteleError):
            return CopyEnded(error.code, error.text)
        if error is not None:
            return CopyEnded("INTERNAL", f"{type(error).__name__}: {error}")
    return CopyEnded()


def main(argv: Sequence[str]) -> int:
    """Run jobs and report them until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.
    logs.start(environment.read(LogSettings, os.environ))
    data, reports = Path(argv[0]), int(argv[2])
    tls = VolumeTls(data, argv[1])
    decode, encode = msgspec.json.Decoder(CopyJob).decode, msgspec.json.Encoder().encode
    for line in sys.stdin.buffer:
        run_job(decode(line), data, tls, lambda message: _write_line(reports, encode(message)))
    return 0


def _write_line(descriptor: int, line: bytes) -> None:
    data = memoryview(line + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
