"""A process that answers one line of JSON to each line of input."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from e2e.bench.errors import BenchError

ANSWER_SECONDS_MAX = 120.0
END_SECONDS_MAX = 5.0


class Talker:
    """The process; killed when the `with` block is left. Raises BenchError when it does not answer well."""

    name = "The other side"

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name, self._command, self._log = name, command, log
        self._answers: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            # A group of its own: Ctrl-C is for this program, which ends the other in order.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                process_group=0,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A process that is measured may be in the middle of something long: it is not worth waiting for.
        self._process.kill()
        self._process.wait(END_SECONDS_MAX)
        self._reader.join(END_SECONDS_MAX)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, *words: object, seconds: float = ANSWER_SECONDS_MAX) -> dict[str, Any]:
        """The answer to one request, after at most so many seconds."""
        self.send(*words)
        return self.answer(" ".join(map(str, words)), seconds)

    def send(self, *words: object) -> None:
        """Ask without waiting; `answer` gets what is said to it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # Its end is in the queue of answers.

    def answer(self, request: str, seconds: float = ANSWER_SECONDS_MAX) -> dict[str, Any]:
        """The next answer."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise BenchError(f"{self.name} did not answer {request!r} within {seconds:g} s.") from None
        return self._parsed(request, line)

    def _parsed(self, request: str, line: str) -> dict[str, Any]:
        if not line:
            raise BenchError(f"{self.name} ended at {request!r}; its messages are in {self._log}.")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise BenchError(
                f"{self.name} failed at {request!r}: {found['error']}; its messages are in {self._log}."
            )
        return found
