"""The disk: a wait until it has nothing left to do of what came before, and what it writes in a second."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from e2e.cluster.steps import say

FILES = 9
USUAL_SECONDS = 0.004
"""A small file that is made and synced takes less than this on a disk that is at rest."""
IDLE_SECONDS_MAX = 60.0
BLOCK_BYTES = 1 << 20


def until_idle(folder: Path) -> float:
    """Seconds that a small file takes to be made and synced, once that is little or after IDLE_SECONDS_MAX.

    Files that were deleted may keep a disk busy for long: one that is mounted with `discard` lets every sync
    wait meanwhile. What is measured next would pay for what was measured before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.sync()
    end = time.monotonic() + IDLE_SECONDS_MAX
    while (found := _small_file_seconds(folder)) > USUAL_SECONDS and time.monotonic() < end:
        time.sleep(0.5)
    if found > USUAL_SECONDS:
        say(f"The disk is busy: a sync of a small file takes {1000 * found:.0f} ms. Figures may suffer.")
    return found


def _small_file_seconds(folder: Path) -> float:
    path, took = folder / f"sync-{os.getpid()}", []
    for _ in range(FILES):
        begin = time.monotonic()
        with path.open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        took.append(time.monotonic() - begin)
        path.unlink()
    return statistics.median(took)


def sequential_rate(folder: Path, number_bytes: int) -> float:
    """Bytes per second of one new file that is written from its beginning to its end and synced once.

    `number_bytes` is rounded down to whole blocks. The file is gone afterwards.
    """
    path, block = folder / f"sequential-{os.getpid()}", os.urandom(BLOCK_BYTES)
    blocks = number_bytes // BLOCK_BYTES
    begin = time.monotonic()
    with path.open("wb") as file:
        for _ in range(blocks):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    took = time.monotonic() - begin
    path.unlink()
    return blocks * BLOCK_BYTES / took
