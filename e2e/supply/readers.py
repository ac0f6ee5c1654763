"""Programs of others that read what is released, for tests: buildx reads the bake file, krew the plugin's
manifest and archive, hadolint the Dockerfile.

Each is made or installed once, into the cache, and then runs without a network. No image, and no cluster, has
them.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from e2e.cluster import cache, programs
from e2e.cluster.programs import Build
from e2e.cluster.steps import run, step
from e2e.supply import locks

BUILDX = Build("build buildx", ("buildx",), "buildx", (".",))
KREW = Build("build krew", ("kubectl-krew",), "krew", ("sigs.k8s.io/krew/cmd/krew",))
INSTALL_SECONDS_MAX = 300.0


def buildx() -> Path:
    """The program, which prints bake files without a Docker; builds it first when it is not in the cache."""
    return programs.separate(BUILDX) / BUILDX.programs[0]


def krew() -> Path:
    """The program by the name that kubectl finds; builds it first when it is not in the cache."""
    return programs.separate(KREW) / KREW.programs[0]


def hadolint() -> Path:
    """The program, in the version and with the hash of the lock; installs it first when it is not there."""
    lock = locks.files(locks.LINT)[0]
    key = cache.hash_inputs(files=[lock], values=[sys.platform, platform.machine()])
    return cache.entry("hadolint", key, lambda folder: _install(lock, folder)) / "bin" / "hadolint"


def ensure() -> list[Path]:
    """All of them."""
    return [buildx(), krew(), hadolint()]


def _install(lock: Path, folder: Path) -> None:
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--only-binary=:all:", "--require-hashes", "-r", str(lock), "--target", str(folder)]
    with step("install hadolint"):
        run(words, cache.root() / "logs" / "hadolint.log", seconds_max=INSTALL_SECONDS_MAX)
