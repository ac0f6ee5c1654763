"""SST files and small files below a session's staging folder, on disk when they are named."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c
from rocksdict import SstFileWriter

from stele.adapters.rocksdb.options import data_options
from stele.core.control.commands import CopyItem
from stele.core.copy.pacing import STOP_FREE_BYTES
from stele.errors import Corrupt, Refused
from stele.wire.storage.keys import EXPIRY_BYTES, TABLET_PREFIX_BYTES, USER, tablet_prefix

# An entry is left out only when it expired this long ago: the clock here is not the owner's.
EXPIRED_MARGIN_MS = 600_000
READ_BYTES = 1024 * 1024

_NEVER = bytes(EXPIRY_BYTES)


class SstWriter:
    """A fragment under another generation. RocksDB wants the keys ascending, as the stream has them.

    `entries` and `bytes` (keys and values) count what is in the file. Methods raise Refused (NO_SPACE,
    INTERNAL) when the disk or RocksDB fails.
    """

    def __init__(self, path: Path, item: CopyItem) -> None:
        self.entries = 0
        self.bytes = 0
        self._path = path
        self._source_prefix = tablet_prefix(item.partition, item.source_generation)
        self._prefix = tablet_prefix(item.partition, item.generation)
        self._sst = SstFileWriter(data_options())
        self._expired_ms = int(time.time() * 1000) - EXPIRED_MARGIN_MS
        self._guard(lambda: self._sst.open(str(path)))
        self._sum = _Sum(path)

    def write(self, keys: list[bytes], values: list[bytes]) -> None:
        """Append what did not expire long ago. Raise Corrupt for keys of another tablet.

        The last of the disk is the member's own: a copy that took it would end a process that serves.
        """
        if not (keys[0].startswith(self._source_prefix) and keys[-1].startswith(self._source_prefix)):
            raise Corrupt("the stream holds keys of another tablet or generation")
        usage = os.statvfs(self._path.parent)
        if (free := usage.f_bavail * usage.f_frsize) < STOP_FREE_BYTES:
            text = f"{free} bytes of the volume are free, a copy goes on with {STOP_FREE_BYTES} or more"
            raise Refused(text, "NO_SPACE")
        self._guard(lambda: self._append(keys, values))
        self._sum.follow()

    def _append(self, keys: list[bytes], values: list[bytes]) -> None:
        sst, prefix, size, count = self._sst, self._prefix, 0, 0
        for key, value in zip(keys, values, strict=True):
            if value[:EXPIRY_BYTES] != _NEVER and self._is_expired(key, value):
                continue
            sst[prefix + key[TABLET_PREFIX_BYTES:]] = value
            size += len(key) + len(value)
            count += 1
        self.entries += count
        self.bytes += size

    def _is_expired(self, key: bytes, value: bytes) -> bool:
        if key[TABLET_PREFIX_BYTES] != USER:
            return False
        return 0 < int.from_bytes(value[:EXPIRY_BYTES], "big") <= self._expired_ms

    def finish(self) -> tuple[int, int]:
        """(bytes, crc32c) of the file on disk; (0, 0) when it holds no entry and RocksDB makes none."""
        try:
            if not self.entries:
                self._path.unlink(missing_ok=True)
                return 0, 0
            self._sum.sync()
            self._guard(self._sst.finish)  # It writes and syncs the rest.
            return self._sum.follow()
        finally:
            self._sum.close()

    def drop(self) -> None:
        """Remove the file under the name that it was written with."""
        self._sum.close()
        self._path.unlink(missing_ok=True)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # rocksdict raises bare Exception
            if "No space left" in str(error):
                raise Refused(f"the volume is full: {error}", "NO_SPACE") from None
            if not self._path.parent.exists():
                raise Refused("the session's staging folder is gone", "CANCELLED") from None
            raise Refused(f"SST file {self._path.name}: {error}", "INTERNAL") from error


class _Sum:
    """Size and crc32c of a file that only grows, read as it grows.

    RocksDB drops a file from the page cache when it finishes it: all of it would come from disk then.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._bytes = self._crc = 0

    def follow(self) -> tuple[int, int]:
        """(bytes, crc32c) of what is in the file now."""
        while count := self._file.readinto(self._buffer):
            self._crc = crc32c(self._buffer[:count], self._crc)
            self._bytes += count
        return self._bytes, self._crc

    def sync(self) -> None:
        """Unlike RocksDB's own, without Python's lock: what it then has left to sync is little."""
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
