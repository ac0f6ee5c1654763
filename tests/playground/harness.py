"""Playgrounds as processes of their own, as a shell starts them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from stele.model import TabletCluster

COMMAND = [sys.executable, "-m", "stele.cli", "playground"]
SECONDS_MAX = 120.0


def until(holds: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
    """Wait, and fail with a text."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


class Ground:
    """One playground; `up` after `interrupt` goes on with the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def up(self, *words: str) -> None:
        """Start, and wait until the cluster is as it should be."""
        with (self.folder.parent / "up.log").open("a") as out:
            command = [*COMMAND, "up", "--dir", str(self.folder), *words]
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, text=True, start_new_session=True
            )
        began = self.epoch()
        until(lambda: self.epoch() > began, f"a master leads: {self.said()}")
        self.until_running()

    def said(self) -> str:
        """What `up` printed so far."""
        return (self.folder.parent / "up.log").read_text()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command."""
        command = [*COMMAND, words[0], "--dir", str(self.folder), *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def cluster(self) -> TabletCluster | None:
        """What is stored."""
        path = self.folder / "cluster.yaml"
        if not path.exists():
            return None
        read = TabletCluster.read(yaml.safe_load(path.read_text()))
        assert isinstance(read, TabletCluster), read
        return read

    def epoch(self) -> int:
        cluster = self.cluster()
        return 0 if cluster is None else cluster.status.epoch

    def until_running(self, seconds: float = SECONDS_MAX) -> None:
        """Wait until nothing is left to do."""
        until(self._is_settled, f"the cluster is Running: {self.said()}", seconds)

    def _is_settled(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        cluster = self.cluster()
        if cluster is None:
            return False
        status = cluster.status
        return (
            status.phase == "Running"
            and status.observed_generation == cluster.metadata.generation
            and status.members.ready == cluster.spec.members
            and status.partitions.safe == status.partitions.total > 0
        )

    def ports(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode((self.folder / "ports.json").read_bytes())
        return found

    def members(self) -> list[int]:
        """Ids of the processes of members."""
        return self._with_setting("STELE_DATA_DIR")

    def copiers(self) -> list[int]:
        """Ids of the processes of the copier: itself, and Spark's."""
        return self._with_setting("STELE_STAGING")

    def _with_setting(self, name: str) -> list[int]:
        """Ids of processes that have this setting, a place in the folder."""
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"{name}={self.folder}/".encode() in (each / "environ").read_bytes()
            except OSError:
                continue
            if ours:
                found.append(int(each.name))
        return found

    def signal(self, number: signal.Signals) -> int:
        """Send it to the playground alone; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        """End what a failed test left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for each in self.members() + self.copiers():
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
