"""Small Debian file systems made by debootstrap: the ground of the node image and of our own images."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import cache, debian
from e2e.cluster.steps import run, step

DEBIAN_SUITE = "bookworm"  # its systemd 252 works on cgroup v1, that of the next release does not
DEBOOTSTRAP_SECONDS_MAX = 1800.0
# What a container never reads; emptied, not removed, because packages expect the folders.
_NOT_NEEDED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "var/cache/debconf",
)


def ensure(name: str, packages: Sequence[str]) -> Path:
    """The root of a minimal Debian with `packages`; cached by the list. Change a copy of it only."""
    key = f"{name}-{cache.hash_inputs(values=[DEBIAN_SUITE, *packages])}"
    return cache.entry("rootfs", key, lambda folder: _make(folder, name, packages)) / "root"


def _make(folder: Path, name: str, packages: Sequence[str]) -> None:
    debian.ensure_packages()
    root = folder / "root"
    debs = cache.root() / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--cache-dir={debs}", f"--include={','.join(packages)}"]
    # Two at once would write the same packages into the folder that they share.
    with cache.locked("debs"), step(f"make a small Debian ({name})", "about 40 s"):
        log = cache.root() / "logs" / f"rootfs-{name}.log"
        run([*command, DEBIAN_SUITE, root], log, seconds_max=DEBOOTSTRAP_SECONDS_MAX)
    for place in _NOT_NEEDED:
        empty(root / place)


def empty(folder: Path) -> None:
    """Remove what is in a folder, keep the folder."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
