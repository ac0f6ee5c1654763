"""A copier whose Spark is a fake: the drivers are real processes, and each has one real executor process.

`python -m tests.operator.copyfaults.fake_spark copier` is the copier pod's program. As with Spark, an
executor that dies is replaced and its task is tried again, and a driver that dies leaves its executor to
itself. In `$FAKE_SPARK_FOLDER` each writes a file `<role>.<destination>.<pid>`; a file `no-room` there keeps
executors from being placed, and with a file `impatient` they bear less silence of a source.
"""

import os
import pickle
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from stele.copyjob import __main__ as copier
from stele.copyjob import driver, drivers, runner
from stele.copyjob.messages import Start
from stele.copyjob.runner import SparkRunner
from stele.transfer.client import stream_client

MODULE = "tests.operator.copyfaults.fake_spark"
ATTEMPTS = 3
PLACE_SECONDS = 1.0
HANG_SECONDS, STOP_SECONDS = 2.0, 1.0
IMPATIENT_SECONDS = 1.0
FOLDER = Path(os.environ.get("FAKE_SPARK_FOLDER", "/nonexistent"))
LENGTH_BYTES = 8
PATIENT_SECONDS = stream_client.SILENCE_SECONDS_MAX


def register(role: str, destination: str) -> None:
    (FOLDER / f"{role}.{destination}.{os.getpid()}").touch()


def send(stream: Any, value: object) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    stream.flush()


def receive(stream: Any) -> Any:
    """The next value; None when the other side ended."""
    size = stream.read(LENGTH_BYTES)
    data = stream.read(int.from_bytes(size, "big")) if len(size) == LENGTH_BYTES else b""
    return pickle.loads(data) if data else None


def executor(destination: str) -> int:
    """Run tasks until stdin ends. A task that is under way then is ended first: nobody can stop it."""
    register("executor", destination)
    while (given := receive(sys.stdin.buffer)) is not None:
        task, item = given
        stream_client.SILENCE_SECONDS_MAX = (
            IMPATIENT_SECONDS if (FOLDER / "impatient").exists() else PATIENT_SECONDS
        )
        try:
            done: tuple[str, object] = ("done", task(item))
        except RuntimeError as error:
            done = ("failed", str(error))
        try:
            send(sys.stdout.buffer, done)
        except BrokenPipeError:
            return 0
    return 0


class Context:
    """What `copyjob.driver` uses of a SparkContext."""

    applicationId = "fake-spark"  # noqa: N815  Spark's own name

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._local = threading.local()
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        tracker = SimpleNamespace(getExecutorInfos=lambda: [None] if no_room() else [None, None])
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker))

    def setJobGroup(self, group: str, text: str, interruptOnCancel: bool) -> None:  # noqa: N802, N803
        self._local.group = group

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802  Spark's own name
        self._cancelled.add(group)
        if self._process is not None:
            self._process.kill()

    def parallelize(self, items: list[Any], slices: int) -> SimpleNamespace:
        return SimpleNamespace(map=lambda task: SimpleNamespace(collect=lambda: self._collect(items, task)))

    def _collect(self, items: list[Any], task: Any) -> list[Any]:
        with self._lock:
            return [self._attempts(task, item) for item in items]

    def _attempts(self, task: Any, item: Any) -> Any:
        said = ""
        for _ in range(ATTEMPTS):
            self._await_room()
            if self._process is None or self._process.poll() is not None:
                command = [sys.executable, "-m", MODULE, "executor", self._destination]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                send(self._process.stdin, (task, item))
                answer = receive(self._process.stdout)
            except BrokenPipeError:
                answer = None
            if answer is not None and answer[0] == "done":
                return answer[1]
            if answer is None:
                self._process.wait()
            said = answer[1] if answer else "the executor was lost"
        raise ValueError(f"Job aborted: {said}")

    def _await_room(self) -> None:
        while True:
            if self._local.group in self._cancelled:
                raise ValueError(f"Job cancelled part of cancelled job group {self._local.group}")
            if not no_room():
                return
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def no_room() -> bool:
    return (FOLDER / "no-room").exists()


def make(start: Start) -> tuple[Context, type[threading.Thread]]:
    """The context of one driver. What is `/staging` in an executor's pod is a folder of the member here."""
    destination = start.conf["spark.app.name"].removeprefix("stele-copy-")
    msgspec.structs.force_setattr(start, "staging", str(FOLDER.parent / destination / "staging"))
    register("driver", destination)
    return Context(destination), threading.Thread


def driver_command(descriptor: int) -> tuple[str, ...]:
    return (sys.executable, "-m", MODULE, "driver", str(descriptor))


def main(role: str, *rest: str) -> int:
    if role == "copier":
        drivers.EXECUTOR_SECONDS_MAX, drivers.STOP_SECONDS_MAX = PLACE_SECONDS, STOP_SECONDS
        runner.HANG_SECONDS = HANG_SECONDS
        copier.SparkRunner = partial(SparkRunner, command=driver_command)  # type: ignore[misc, assignment]
        return copier.main([])
    return driver.main(rest, make) if role == "driver" else executor(*rest)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
