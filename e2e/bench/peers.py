"""The Java side: built once by Maven into the cache, then one process that answers a line for each line."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from e2e.bench.errors import BenchError
from e2e.cluster import cache, debian
from e2e.cluster.errors import MachineUnfitError
from e2e.cluster.steps import output, run, step

JAVA = Path(__file__).parent / "java"
PACKAGES = {"default-jdk-headless": "javac", "maven": "mvn"}
JAVA_VERSION_MIN = 17
JAVA_VERSION_SECONDS_MAX = 30.0
BUILD_SECONDS_MAX = 900.0
ANSWER_SECONDS_MAX = 120.0
END_SECONDS_MAX = 5.0
HEAP = "2g"


def check_java() -> None:
    """Install a JDK and Maven when they are missing; raise MachineUnfitError when that cannot be or helps
    not.
    """
    debian.ensure_packages(PACKAGES)
    said = output(["java", "--version"], seconds_max=JAVA_VERSION_SECONDS_MAX)
    if java_version(said) < JAVA_VERSION_MIN:
        raise MachineUnfitError(
            f"Java {JAVA_VERSION_MIN} or newer is needed and `java` is: {said.splitlines()[0]}; "
            "put a newer one first on the PATH."
        )


def java_version(said: str) -> int:
    """The feature version in what `java --version` prints (`openjdk 17.0.15 2025-04-15`); 0 when none is."""
    words = said.split()
    number = words[1].split(".")[0].split("-")[0] if len(words) > 1 else ""
    return int(number) if number.isdigit() else 0


def ensure() -> Path:
    """The folder of the build; Maven makes it when the sources changed."""
    return cache.entry("bench-peers", cache.hash_inputs(folders=[JAVA]), _make)


def _make(folder: Path) -> None:
    shutil.copytree(JAVA, folder, dirs_exist_ok=True)
    log = cache.root() / "logs" / "bench-peers-build.log"
    with step("build the planners of Hazelcast and Infinispan", "half a minute the first time"):
        run(["mvn", "-q", "-B", "package"], log, cwd=folder, seconds_max=BUILD_SECONDS_MAX)


class Peers:
    """The process; ended when the `with` block is left. Raises BenchError when it does not answer well."""

    def __init__(self, folder: Path) -> None:
        classes = f"{folder}/target/peers.jar:{folder}/target/lib/*"
        self._command = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-cp", classes, "stele.bench.Main"]
        self._log = cache.root() / "logs" / "bench-peers.log"
        self._answers: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w", encoding="utf-8") as log:
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
        # A process that is measured may be in the middle of a long plan: nothing of it is worth waiting for.
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

    def ask(self, *words: object) -> dict[str, Any]:
        """The answer to one request, after at most `ANSWER_SECONDS_MAX`."""
        request = " ".join(str(word) for word in words)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=ANSWER_SECONDS_MAX)
        except BrokenPipeError:
            line = ""
        except queue.Empty:
            raise BenchError(
                f"The Java side did not answer {request!r} within {ANSWER_SECONDS_MAX:.0f} s."
            ) from None
        return self._parsed(request, line)

    def _parsed(self, request: str, line: str) -> dict[str, Any]:
        if not line:
            raise BenchError(f"The Java side ended at {request!r}; its messages are in {self._log}.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(
                f"The Java side failed at {request!r}: {answer['error']}; its messages are in {self._log}."
            )
        return answer
