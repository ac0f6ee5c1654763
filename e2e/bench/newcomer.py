"""What somebody waits who tries Stele: from a clone to the end of the first scale-up in the playground."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from e2e.bench.errors import BenchError
from e2e.bench.report import Column, Goal, Report
from e2e.cluster.steps import say
from e2e.supply.locks import PROJECT
from stele.model import TabletCluster

TITLE = "from a clone to the end of the first scale-up in the playground, under load (two minutes)"
SECONDS_MAX = 120.0
STEP_SECONDS_MAX = 300.0
MEMBERS, MORE = 3, 4
LOOK_SECONDS = 0.1
STOP_SECONDS_MAX = 60.0

_NOTE = """\
The commands of docs/operating/playground.md. What pip needs may be in its cache; quick leaves nothing out."""


def run(report: Report, quick: bool) -> None:
    """Measure each step; raises BenchError when one does not end."""
    columns = [Column("step", "step"), Column("s", "seconds", lambda value: f"{value:.1f}")]
    section = report.section("A newcomer", columns, _NOTE)

    def measured(step: str, act: Callable[[], object]) -> None:
        say(step)
        begin = time.monotonic()
        act()
        section.rows.append({"step": step, "seconds": time.monotonic() - begin})

    with tempfile.TemporaryDirectory(prefix="stele-newcomer-") as folder:
        newcomer = Newcomer(Path(folder))
        measured("clone", newcomer.clone)
        measured("make a virtual environment, and install the playground", newcomer.install)
        with newcomer.playground() as up:
            measured(f"start {MEMBERS} members", lambda: up.until_running(MEMBERS))
            with up.load():
                measured(f"scale to {MORE} members under load", up.scale)
    total = sum(row["seconds"] for row in section.rows)
    section.rows.append({"step": "all of it", "seconds": total})
    report.goals.append(Goal(f"within {SECONDS_MAX:g} s", f"{total:.1f} s", total <= SECONDS_MAX))


class Newcomer:
    """Works in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._clone = folder, folder / "stele"

    def clone(self) -> None:
        finish("git", "clone", "-q", str(PROJECT), str(self._clone))

    def install(self) -> None:
        finish(sys.executable, "-m", "venv", str(self._clone / ".venv"))
        pip = str(self._clone / ".venv" / "bin" / "pip")
        finish(pip, "install", "-q", "--no-compile", f"{self._clone}[playground]")

    @contextmanager
    def playground(self) -> Iterator[Playground]:
        made = Playground(self._clone / ".venv" / "bin" / "kubectl-stele", self._folder / "playground")
        with made.running("up"):
            yield made


class Playground:
    """A playground in `folder`."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder

    def _words(self, command: str) -> list[str]:
        return [str(self._program), "playground", command, "--dir", str(self._folder)]

    @contextmanager
    def running(self, *words: str) -> Iterator[None]:
        """Run a command within the block, and end it as Ctrl-C does."""
        command, *more = words
        process = subprocess.Popen(
            [*self._words(command), *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS_MAX)
            finally:
                process.kill()

    @contextmanager
    def load(self) -> Iterator[None]:
        with self.running("load", "--seconds", f"{STEP_SECONDS_MAX:g}"):
            yield

    def scale(self) -> None:
        finish(*self._words("scale"), str(MORE))
        self.until_running(MORE)

    def until_running(self, members: int) -> None:
        """Wait until so many members have all data and nothing is left to do."""
        end = time.monotonic() + STEP_SECONDS_MAX
        while not self.has(members):
            if time.monotonic() > end:
                raise BenchError(f"the playground had no {members} members within {STEP_SECONDS_MAX:g} s")
            time.sleep(LOOK_SECONDS)

    def has(self, members: int) -> bool:
        """Whether so many members are ready, and nothing is left to do."""
        path = self._folder / "cluster.yaml"
        if not path.exists():
            return False
        found = TabletCluster.read(yaml.safe_load(path.read_text(encoding="utf-8")))
        if not isinstance(found, TabletCluster) or found.status.phase is None:
            return False
        status = found.status
        seen = status.observed_generation == found.metadata.generation
        return seen and status.phase == "Running" and status.members.ready == members


def finish(*words: str) -> None:
    """Run a command to its end; raises BenchError with what it said when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=STEP_SECONDS_MAX, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(words[:4])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
