"""Files that are on disk when a call returns: written aside, synced and renamed, and their folder synced.

To sync thousands of small files one by one costs a member seconds of processor time, which its requests and
the answers to the master lack. Many files are therefore synced with their file system (`syncfs`), at a fifth
of that, while little else waits to be written: `syncfs` waits for the other files, too.
"""

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Final

from stele.adapters.folders import sync_folder
from stele.member.storage import failpoints

PARALLEL_FILES_MIN: Final = 4
PARALLEL_FILES: Final = 16
"""Files that are synced concurrently, which cuts the time of a fence of tens of partitions to a fifth."""

SYNCFS_FILES_MIN = 32
"""From this many files on, they are synced with their file system."""
SYNCFS_TYPES: Final = frozenset({"ext4", "xfs"})
"""File systems of which `syncfs` is known to do what fsync does for each file; of some it does nothing."""
SYNCFS_RELEASE: Final = (5, 17)
"""Linux reports from here on whatever `syncfs` could not write; before 5.8 nothing of it: see syncfs(2)."""
DIRTY_BYTES_MAX: Final = 64 * 1024 * 1024
"""No `syncfs` where more than this waits to be written. On ext4 a single fsync waits for most of that too."""
UNKNOWN_BYTES: Final = 1 << 62


def replace_all(paths: Sequence[str], contents: Sequence[bytes], threads: Executor) -> None:
    """Replace files in one file system, each atomically.

    All are on disk on return; after a crash any of them may be old.
    """
    _write_all([path_aside(path) for path in paths], contents, threads)
    failpoints.hit("file.aside")
    for path in paths:
        os.replace(path_aside(path), path)
    failpoints.hit("file.renamed")
    for folder in {os.path.dirname(path) for path in paths}:
        sync_folder(Path(folder))


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; its name is on disk once its folder is synced."""
    _write(path_aside(str(path)), content, os.fsync)
    os.replace(path_aside(str(path)), path)


def path_aside(path: str) -> str:
    """Return the path at which a file is written before it takes its place."""
    return f"{path}.new"


@cache
def can_syncfs(device: int) -> bool:
    """Whether the file system on this device (`st_dev`) can be synced, and reports when that fails."""
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    return hasattr(_libc, "syncfs") and release >= SYNCFS_RELEASE and type_of(device) in SYNCFS_TYPES


def type_of(device: int) -> str:
    """Return the type of the file system on a device, as in mountinfo; empty if the system does not say."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == number:
                return source.split()[0]
    return ""


def dirty_bytes() -> int:
    """Return what waits to be written to disks of this machine, UNKNOWN_BYTES if the system does not say."""
    text = ""
    with suppress(OSError):
        text = Path("/proc/meminfo").read_text()
    found = re.findall(r"^(?:Dirty|Writeback): +(\d+) kB$", text, re.MULTILINE)
    return 1024 * sum(map(int, found)) if found else UNKNOWN_BYTES


def _write_all(paths: Sequence[str], contents: Sequence[bytes], threads: Executor) -> None:
    if len(paths) >= SYNCFS_FILES_MIN and _is_worth_syncfs(paths[0]):
        _write_and_syncfs(paths, contents)
    elif len(paths) >= PARALLEL_FILES_MIN:
        list(threads.map(_write, paths, contents, repeat(os.fsync)))
    else:
        for path, content in zip(paths, contents, strict=True):
            _write(path, content, os.fsync)


def _is_worth_syncfs(path: str) -> bool:
    return can_syncfs(os.stat(os.path.dirname(path)).st_dev) and dirty_bytes() <= DIRTY_BYTES_MAX


def _write_and_syncfs(paths: Sequence[str], contents: Sequence[bytes]) -> None:
    # The handle comes first: syncfs reports what could not be written since it was opened.
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

    Raises OSError when something of it could not be written since the file was opened, or before and nobody
    was told; it may be another's.
    """
    if _libc.syncfs(handle) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_libc = ctypes.CDLL(None, use_errno=True)
