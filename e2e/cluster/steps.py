"""Telling what happens: one line for each step with its time, the programs' own output into log files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import lanes
from e2e.cluster.errors import ClusterError

LOG_TAIL_LINES = 15
COMMAND_SECONDS_MAX = 600.0


@dataclass(frozen=True)
class Part:
    """A step that ended well: when it began, and how long it took."""

    title: str
    begin_seconds: float
    seconds: float


_parts: list[Part] = []  # of all threads, in the order of their ends; begins are monotonic times


def parts(since_seconds: float) -> list[Part]:
    """The steps since that monotonic time, by their begins, which are counted from it."""
    found = [each for each in _parts if each.begin_seconds >= since_seconds]
    counted = [Part(each.title, each.begin_seconds - since_seconds, each.seconds) for each in found]
    return sorted(counted, key=lambda each: each.begin_seconds)


def say(text: str) -> None:
    """Print one line to standard error; standard output is for results only."""
    sys.stderr.write(f"{text}\n")  # at once: lines of several threads do not mix
    sys.stderr.flush()


@contextmanager
def step(title: str, hint: str = "") -> Iterator[None]:
    """Print `title` and the seconds it took when the block is left; a `hint` on its length goes first."""
    if hint:
        say(f"           {title}: {hint}")
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"[{time.monotonic() - start:7.1f} s] {title}: failed")
        raise
    part = Part(title, start, time.monotonic() - start)
    _parts.append(part)
    say(f"[{part.seconds:7.1f} s] {title}")


def run(
    command: Sequence[str | Path],
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds_max: float = COMMAND_SECONDS_MAX,
) -> None:
    """Run a program, its output appended to `log`; a failure is a `ClusterError` with the log's end."""
    words = [str(word) for word in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        out.write(f"$ {' '.join(words)}\n".encode())
        out.flush()
        try:
            done = _ended(words, seconds_max, stdout=out, stderr=out, env=env, cwd=cwd)
        except TimeoutError as error:
            raise ClusterError(f"{error} {_end_of(log)}") from error
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(words[:3])} failed with exit code {done.returncode}. {_end_of(log)}")


def output(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds_max: float = COMMAND_SECONDS_MAX,
) -> str:
    """Standard output of a program, stripped; a failure becomes a `ClusterError` with what it said."""
    words = [str(word) for word in command]
    try:
        done = _ended(words, seconds_max, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd)
    except TimeoutError as error:
        raise ClusterError(str(error)) from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise ClusterError(f"{' '.join(words[:3])} failed with exit code {done.returncode}: {said}")
    return done.stdout.decode(errors="replace").strip()


def _ended(words: list[str], seconds_max: float, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """The program's end; raises TimeoutError when that does not come in time."""
    try:
        with lanes.program(words, stdin=subprocess.DEVNULL, **how) as process:
            said = process.communicate(timeout=seconds_max)
    except FileNotFoundError as error:
        raise ClusterError(f"The program {words[0]!r} is not installed: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{' '.join(words[:3])} did not end within {seconds_max:.0f} s.") from error
    if process.returncode != 0:
        lanes.check()
    return subprocess.CompletedProcess(words, process.returncode, *said)


def succeeds(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, seconds_max: float = 10.0
) -> bool:
    """Whether a program is there, ends in time and says that all is well."""
    try:
        output(command, env=env, seconds_max=seconds_max)
    except ClusterError:
        return False
    return True


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return f"The log is {log}; its last lines:{os.linesep}" + os.linesep.join(f"    {line}" for line in lines)
