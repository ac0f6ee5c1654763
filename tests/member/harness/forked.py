"""Processes that start in milliseconds: one that has imported everything forks them (`fork_server.py`)."""

import asyncio
import atexit
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

PROGRAM = Path(__file__).with_name("fork_server.py")
FORK_SECONDS_MAX = 30.0


class Forked:
    """As much of asyncio's Process as the harness uses, in whatever loop asks."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: Future[int] = Future()

    @property
    def returncode(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        # Who gives up waiting leaves the end to be told to others.
        return await asyncio.shield(asyncio.wrap_future(self.ended))


class ForkServer:
    """Forks one process at a time. A thread reads what became of them: loops come and go with tests.

    `source` is the root of the modules of another build; `kind` is what `fork_server.py` takes.
    """

    def __init__(self, source: Path | None = None, kind: str = "members") -> None:
        path = [str(PROGRAM.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        path.insert(1, "" if source is None else str(source))
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        )
        self._born: SimpleQueue[Forked] = SimpleQueue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        children: dict[int, Forked] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            child = children.setdefault(told["pid"], Forked(told["pid"]))
            if "code" in told:
                del children[told["pid"]]
                child.ended.set_result(told["code"])
            else:
                self._born.put(child)

    def fork(self, what: str, env: dict[str, str], log: Path, *arguments: str) -> Forked:
        assert self._process.stdin is not None
        order = {"what": what, "env": env, "log": str(log), "arguments": arguments}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._born.get(timeout=FORK_SECONDS_MAX)

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._reader.join()


@cache
def fork_server(source: Path | None = None, kind: str = "members") -> ForkServer:
    """The only one of this process of tests for a build, this one by default, and a kind."""
    made = ForkServer(source, kind)
    atexit.register(made.close)
    return made
