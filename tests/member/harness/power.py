"""What a loss of power takes from a member's volume, as far as it is known from the calls that sync.

A killed process leaves all that it wrote to the operating system; a machine without power leaves what was
synced. In a member that is watched, the death at a crash point first takes back: the end of each file of the
write-ahead log behind the last sync, files that were written and not synced, and renames in a folder that was
not synced after them. Files of the database but its write-ahead log are RocksDB's own business: it syncs each
before it refers to it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any

from stele.adapters.rocksdb.engine import RocksEngine
from stele.member.storage import failpoints, volume


class Watch:
    """What was written and is not safe yet; who changes that holds `lock`, and so does the death for ever."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.wals: Path | None = None
        self.sizes: dict[Path, int] = {}
        self.renamed: dict[Path, bytes | None] = {}
        self.unsynced: set[Path] = set()

    # -- the write-ahead log

    def opened(self, wals: Path) -> None:
        """All that recovery read is on disk: it was there after the last death."""
        self.wals = wals
        self.synced(self.measure())

    def measure(self) -> dict[Path, int]:
        assert self.wals is not None
        return {path: path.stat().st_size for path in self.wals.glob("*.log")}

    def synced(self, sizes: dict[Path, int]) -> None:
        self.sizes.update(sizes)

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
            for path, size in self.measure().items():
                os.truncate(path, min(size, self.sizes.get(path, 0)))


def watch() -> Watch:
    """Watch this process from now on."""
    found = Watch()
    _watch_wals(found)
    _watch_files(found)
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

    opening = Path.open

    def watched_open(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        with found.lock:
            if "w" in mode:
                found.write(self)
            return opening(self, mode, *args, **kwargs)

    volume.os.replace = watched_replace  # type: ignore[assignment]
    volume.os.fsync = watched_fsync
    Path.open = watched_open  # type: ignore[method-assign,assignment]
