"""Builds the compiled module in `native/`, and installs it beside the interpreter that runs this."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from e2e.cluster import cache, debian
from e2e.cluster.steps import run, say, step

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "native"
NAME = "stele-native"
TOOLS = {
    "rustc-web": "rustc",
    "cargo-web": "cargo",
    **{package: debian.PACKAGES[package] for package in ("gcc", "libc6-dev")},
}
"""Debian's own `rustc` is too old; `rustc-web` is the newer one that it keeps for browsers."""
BUILD_SECONDS_MAX = 900.0


def environment() -> dict[str, str]:
    """The environment of a build: this interpreter's programs go first, and what was compiled before is kept
    in the cache, also for other checkouts."""
    path, target = f"{Path(sys.executable).parent}:{os.environ['PATH']}", cache.root() / "native"
    _forget_other_sources(target)
    return {**os.environ, "PATH": path, "CARGO_TARGET_DIR": str(target)}


def _forget_other_sources(target: Path) -> None:
    """Have the module compiled again when it was built last from other sources.

    Cargo compares times only: for it, files of another checkout that are older than the last build are built.
    """
    noted, sources = target / "sources", cache.hash_inputs([SOURCE])
    if noted.exists() and noted.read_text(encoding="utf-8") == sources:
        return
    for built in target.glob(f"*/.fingerprint/{NAME}-*"):
        shutil.rmtree(built, ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    noted.write_text(sources, encoding="utf-8")


def install() -> None:
    """Build and install; without a compiler, and where none can be installed, say so: plain Python works."""
    missing = debian.missing_packages(TOOLS)
    if missing and not debian.can_install():
        names = " ".join(missing)
        say(f"The compiled module is not built, plain Python is used: as root, apt-get install {names}.")
        return
    debian.ensure_packages(TOOLS)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words += ["--no-deps", "--no-build-isolation", "--force-reinstall", str(SOURCE)]
    with cache.locked("native"), step("build the compiled module", "half a minute the first time"):
        run(words, cache.root() / "logs" / "native.log", env=environment(), seconds_max=BUILD_SECONDS_MAX)
