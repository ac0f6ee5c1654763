"""Work side by side, in threads that run programs: one waits for the network while another computes.

When one fails, or Ctrl-C comes, the programs of all others are ended, and they start no further ones.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from e2e.cluster.errors import ClusterError


class GivenUpError(ClusterError):
    """This work was ended because what was done beside it failed or was interrupted; that failure counts."""


def side_by_side(*works: Callable[[], Any]) -> list[Any]:
    """Do all works at once; their results in order. Raises the first failure, after all have come back."""
    with _programs.shared(), ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work) for work in works]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if not all(map(_succeeded, futures)):
                _programs.end()
    failures = [failure for each in futures if (failure := each.exception()) is not None]
    # False sorts before True, and sorting keeps the order of equals.
    for failure in sorted(failures, key=lambda failure: isinstance(failure, GivenUpError)):
        raise failure
    return [each.result() for each in futures]


def _succeeded(future: Future[Any]) -> bool:
    return future.done() and future.exception() is None


def check() -> None:
    """Raise GivenUpError when this work is to end because other work beside it failed."""
    _programs.check()


@contextmanager
def program(words: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has ended when the block is left. `how` is what subprocess.Popen takes."""
    process = _programs.start(words, how)
    try:
        with process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise
    finally:
        _programs.forget(process)


class _Programs:
    """The programs that run now, of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._groups = 0
        self._ending = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold this while work is done side by side; when nobody does any more, programs may start again."""
        with self._lock:
            self._groups += 1
        try:
            yield
        finally:
            with self._lock:
                self._groups -= 1
                self._ending = self._ending and self._groups > 0

    def start(self, words: Sequence[str], how: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Start a program, unless all are to end."""
        with self._lock:  # `end` sees each program that was started, and none is started after it.
            self.check()
            process = subprocess.Popen(words, **how)
            self._running.add(process)
            return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """It has ended."""
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """Ask all that run to end."""
        with self._lock:
            self._ending = True
            for process in self._running:
                process.terminate()

    def check(self) -> None:
        """Raise GivenUpError when all are to end."""
        if self._ending:
            raise GivenUpError("Given up, because other work beside it failed or was interrupted.")


_programs = _Programs()
