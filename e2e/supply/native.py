"""Builds the compiled module in `native/`, and installs it beside the interpreter that runs this."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from e2e.cluster import cache, debian
from e2e.cluster.steps import run, say, step

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "native"
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
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CARGO_TARGET_DIR": str(cache.root() / "native")}


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
