"""The Java side: built once by Maven into the cache, then one process that answers a line for each line."""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.bench.talk import Talker
from e2e.cluster import cache, debian
from e2e.cluster.errors import MachineUnfitError
from e2e.cluster.steps import output, run, step

JAVA = Path(__file__).parent / "java"
PACKAGES = {"default-jdk-headless": "javac", "maven": "mvn"}
JAVA_VERSION_MIN = 17
JAVA_VERSION_SECONDS_MAX = 30.0
BUILD_SECONDS_MAX = 900.0
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


class Peers(Talker):
    """The process that plans; ended when the `with` block is left."""

    def __init__(self, folder: Path) -> None:
        log = cache.root() / "logs" / "bench-peers.log"
        log.unlink(missing_ok=True)
        super().__init__("The Java side", java(folder, HEAP, "stele.bench.Main"), log)


def java(folder: Path, heap: str, *words: str) -> list[str]:
    """The command that runs a class of the build."""
    classes = f"{folder}/target/peers.jar:{folder}/target/lib/*"
    return ["java", f"-Xms{heap}", f"-Xmx{heap}", "-cp", classes, *words]
