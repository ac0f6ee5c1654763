"""Files that are on disk when a call returns: written aside, synced and renamed, and their folder synced.

To sync thousands of small files one by one costs a member seconds of processor time, which its requests and
the answers to the master lack. Many files are therefore synced with their file system (`syncfs`), at a fifth
of that, while little else waits to be written there: `syncfs` waits for the other files too.
"""

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import repeat
from pathlib import Path
from typing import Final

from stele.member.storage import failpoints

PARALLEL_FILES_MIN: Final = 4
PARALLEL_FILES: Final = 16
"""Files that are synced concurrently, which cuts the time of a fence of tens of partitions to a fifth."""

SYNCFS_FILES_MIN = 32
"""So many files at once are synced with their file system."""
DIRTY_BYTES_MAX: Final = 64 * 1024 * 1024
"""No `syncfs` where more than this waits to be written. On ext4 a single fsync waits for most of that too."""
SYNCFS_RELEASE: Final = (5, 8)
"""Before this release of Linux `syncfs` does not tell of data that could not be written: see syncfs(2)."""


def replace_all(paths: Sequence[str], contents: Sequence[bytes], threads: Executor) -> None:
    """Replace files in one file system, each atomically.

    All are on disk on return; after a crash any of them may be old.
    """
    _write_all([aside(path) for path in paths], contents, threads)
    failpoints.hit("file.aside")
    for path in paths:
        os.replace(aside(path), path)
    failpoints.hit("file.renamed")
    for folder in {os.path.dirname(path) for path in paths}:
        sync_folder(Path(folder))


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; its name is on disk once its folder is synced."""
    _write(aside(str(path)), content, os.fsync)
    os.replace(aside(str(path)), path)


def aside(path: str) -> str:
    """The name under which a file is written before it takes its place."""
    return f"{path}.new"


def sync_folder(path: Path) -> None:
    """Bring names of files in the folder to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def can_syncfs() -> bool:
    """Whether this system syncs a file system on demand, and tells when that fails."""
    release = re.findall(r"\d+", os.uname().release)
    return hasattr(_libc, "syncfs") and (*map(int, release[:2]),) >= SYNCFS_RELEASE


def dirty_bytes() -> int:
    """Return what waits to be written to this machine's disks; no end of it where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 1 << 62
    return 1024 * sum(map(int, re.findall(r"^(?:Dirty|Writeback): +(\d+) kB$", text, re.MULTILINE)))


def _write_all(paths: Sequence[str], contents: Sequence[bytes], threads: Executor) -> None:
    if len(paths) >= SYNCFS_FILES_MIN and can_syncfs() and dirty_bytes() <= DIRTY_BYTES_MAX:
        _write_and_syncfs(paths, contents)
    elif len(paths) >= PARALLEL_FILES_MIN:
        list(threads.map(_write, paths, contents, repeat(os.fsync)))
    else:
        for path, content in zip(paths, contents, strict=True):
            _write(path, content, os.fsync)


def _write_and_syncfs(paths: Sequence[str], contents: Sequence[bytes]) -> None:
    # The handle comes first: syncfs tells of what could not be written since it was opened.
    handle = os.open(os.path.dirname(paths[0]), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path, content in zip(paths, contents, strict=True):
            _write(path, content)
        syncfs(handle)
    finally:
        os.close(handle)


def _write(path: str, content: bytes, sync: Callable[[int], None] | None = None) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        if sync is not None:
            sync(handle)
    finally:
        os.close(handle)


def syncfs(handle: int) -> None:
    """Bring all that was written to the file system of an open file to disk.

    Raises OSError when something of it could not be written since the file was opened.
    """
    if _libc.syncfs(handle) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_libc = ctypes.CDLL(None, use_errno=True)
