"""What a loss of power takes from a member's volume, as far as it is known from the calls that sync.

A killed process leaves all that it wrote to the operating system; a machine without power leaves what was
synced. In a member that is watched, the death at a crash point first takes back: the end of each file of the
write-ahead log and of each segment behind the last sync, files that were written and not synced, and renames,
and segments that were created or deleted, in a folder that was not synced after them. Files of the database
but its write-ahead log are RocksDB's own business: it syncs each before it refers to it.

Segments of a member that is watched are small, so that it begins, moves and deletes many. Of its other writes
every other one is synced as many files are, with their file system.
"""

import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from threading import RLock
from typing import Any

from stele.adapters.rocksdb.engine import RocksEngine
from stele.adapters.segments import log
from stele.adapters.segments.files import FOLDER, SUFFIX
from stele.member.storage import durable, failpoints

SEGMENT_BYTES, CLEAN_BYTES, MOVE_BYTES = 8 * 1024, 16 * 1024, 2 * 1024


class Watch:
    """What was written and is not safe yet; who changes that holds `lock`, and so does the death for ever."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.wals: Path | None = None
        self.sizes: dict[Path, int] = {}
        self.renamed: dict[Path, bytes | None] = {}
        self.unsynced: set[Path] = set()
        self.created: set[Path] = set()
        self.deleted: dict[Path, bytes] = {}
        self.renamed_folders: dict[Path, Path] = {}

    # -- the write-ahead log, and segments

    def opened(self, wals: Path) -> None:
        """All that recovery read is on disk: it was there after the last death."""
        self.wals = wals
        self.synced(self.measure() | self.measure_segments())

    def measure(self) -> dict[Path, int]:
        assert self.wals is not None
        return {path: path.stat().st_size for path in self.wals.glob("*.log")}

    def measure_segments(self) -> dict[Path, int]:
        """Also of a log that is being moved."""
        assert self.wals is not None
        return {path: path.stat().st_size for path in self.wals.parent.glob(f"{FOLDER}*/*{SUFFIX}")}

    def synced(self, sizes: dict[Path, int]) -> None:
        self.sizes.update(sizes)

    def create_segment(self, path: Path) -> None:
        self.created.add(path)
        self.sizes.pop(path, None)

    def delete_segment(self, path: Path) -> None:
        """Before it is deleted."""
        if path in self.created:
            self.created.discard(path)
        elif path.exists():
            self.deleted.setdefault(path, path.read_bytes()[: self.sizes.get(path, 0)])

    def rename_folder(self, source: Path, target: Path) -> None:
        """After it was renamed."""
        self.renamed_folders[target] = source
        moved = {path: size for path, size in self.sizes.items() if path.parent == source}
        self.sizes.update({target / path.name: size for path, size in moved.items()})

    # -- files of the volume

    def write(self, path: Path) -> None:
        self.unsynced.add(path)

    def file_synced(self, path: Path) -> None:
        self.unsynced.discard(path)

    def rename(self, source: Path, target: Path) -> None:
        before = target.read_bytes() if target.is_file() else None
        self.renamed.setdefault(target, before)
        if source in self.unsynced:
            self.unsynced.discard(source)
            self.unsynced.add(target)

    def folder_synced(self, folder: Path) -> None:
        for path in [path for path in self.renamed if path.parent == folder]:
            del self.renamed[path]
        self.created = {path for path in self.created if path.parent != folder}
        self.deleted = {path: content for path, content in self.deleted.items() if path.parent != folder}
        for path in [path for path in self.renamed_folders if path.parent == folder]:
            del self.renamed_folders[path]

    # -- the death

    def lose(self) -> None:
        # Other threads go on until the process ends, but not with files: no power, no more calls.
        self.lock.acquire()
        for path in list(self.unsynced):
            path.write_bytes(b"")
        for path, before in self.renamed.items():
            if before is not None:
                path.write_bytes(before)
            else:
                path.unlink(missing_ok=True)
        if self.wals is not None:
            for path, size in (self.measure() | self.measure_segments()).items():
                os.truncate(path, min(size, self.sizes.get(path, 0)))
        for path in self.created:
            path.unlink(missing_ok=True)
        for path, content in self.deleted.items():
            path.write_bytes(content)
        for path, before_it in self.renamed_folders.items():
            path.rename(before_it)


def watch() -> Watch:
    """Watch this process from now on."""
    found = Watch()
    _watch_wals(found)
    _watch_files(found)
    _watch_segments(found)
    failpoints.before_death = found.lose  # type: ignore[assignment]
    return found


def _watch_wals(found: Watch) -> None:
    opening, syncing = RocksEngine.__init__, RocksEngine.sync_log

    def init(self: RocksEngine, data: Path, wals: Path, *others: Any) -> None:
        opening(self, data, wals, *others)
        found.opened(wals)

    def sync(self: RocksEngine) -> None:
        with found.lock:
            sizes = found.measure()
            syncing(self)
            found.synced(sizes)

    RocksEngine.__init__ = init  # type: ignore[method-assign]
    RocksEngine.sync_log = sync  # type: ignore[method-assign]


def _watch_files(found: Watch) -> None:
    replace: Callable[..., None] = os.replace
    fsync: Callable[[int], None] = os.fsync

    def watched_replace(source: Any, target: Any) -> None:
        with found.lock:
            found.rename(Path(source), Path(target))
            replace(source, target)

    def watched_fsync(handle: int) -> None:
        with found.lock:
            fsync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if path.is_dir():
                found.folder_synced(path)
            else:
                found.file_synced(path)

    opening, os_open, syncfs = Path.open, os.open, durable.syncfs

    def watched_open(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        with found.lock:
            if "w" in mode:
                found.write(self)
            return opening(self, mode, *args, **kwargs)

    def watched_os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        # Segments are synced in their own way, and are read while others hold the lock.
        if not flags & os.O_TRUNC or str(path).endswith(SUFFIX):
            return os_open(path, flags, *args, **kwargs)
        with found.lock:
            found.write(Path(path))
            return os_open(path, flags, *args, **kwargs)

    def watched_syncfs(handle: int) -> None:
        with found.lock:
            syncfs(handle)
            found.unsynced.clear()

    os.replace = watched_replace  # type: ignore[assignment]
    os.fsync, os.open = watched_fsync, watched_os_open  # type: ignore[assignment]
    Path.open = watched_open  # type: ignore[method-assign,assignment]
    turns = cycle((True, False))
    durable.SYNCFS_FILES_MIN, durable.syncfs = 1, watched_syncfs
    durable._is_worth_syncfs = lambda _: next(turns)


def _watch_segments(found: Watch) -> None:
    log.SEGMENT_BYTES, log.CLEAN_BYTES, log.MOVE_BYTES = SEGMENT_BYTES, CLEAN_BYTES, MOVE_BYTES
    fdatasync, opening, unlink, rename = os.fdatasync, os.open, os.unlink, os.rename

    def watched_fdatasync(handle: int) -> None:
        with found.lock:
            size = os.fstat(handle).st_size
            fdatasync(handle)
            found.synced({Path(os.readlink(f"/proc/self/fd/{handle}")): size})

    def watched_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if not (flags & os.O_CREAT and str(path).endswith(SUFFIX)):
            return opening(path, flags, *args, **kwargs)
        with found.lock:
            found.create_segment(Path(path))
            return opening(path, flags, *args, **kwargs)

    def watched_unlink(path: Any, **kwargs: Any) -> None:
        with found.lock:
            if not kwargs and str(path).endswith(SUFFIX):
                found.delete_segment(Path(path))
            unlink(path, **kwargs)

    def watched_rename(source: Any, target: Any, **kwargs: Any) -> None:
        with found.lock:
            rename(source, target, **kwargs)
            if Path(target).name == FOLDER:
                found.rename_folder(Path(source), Path(target))

    os.fdatasync = watched_fdatasync  # type: ignore[assignment]
    os.open, os.unlink, os.rename = watched_open, watched_unlink, watched_rename  # type: ignore[assignment]
