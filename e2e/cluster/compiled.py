"""The package `stele` as images have it, some modules compiled (`setup.py`), for tests and benchmarks."""

from __future__ import annotations

import zipfile
from pathlib import Path

from e2e.cluster import cache, images


def ensure() -> Path:
    """A folder for PYTHONPATH with what is in the very wheel that images install."""
    wheels, key = images.code()

    def make(folder: Path) -> None:
        (wheel,) = wheels.glob("stele-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)

    return cache.entry("compiled", key, make)
