"""Writes files in a session's staging directory: SST files, synced before they are named, and blocks."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from crc32c import crc32c
from rocksdict import SstFileWriter

from stele.adapters.rocksdb.options import data_options
from stele.core.control.commands import CopyItem
from stele.core.copy.pacing import STOP_FREE_BYTES
from stele.errors import Corrupt, Refused
from stele.wire.copy.blocks import End, encode_end, encode_entries
from stele.wire.copy.jobs import BLOCKS_BYTES_MAX, BLOCKS_SUFFIX
from stele.wire.storage.keys import EXPIRY_BYTES, TABLET_PREFIX_BYTES, USER, is_expired, tablet_prefix

# Entries are dropped only if they expired this long ago, since this clock is not the owner's.
EXPIRED_MARGIN_MS = 600_000
READ_BYTES = 1024 * 1024

_NEVER = bytes(EXPIRY_BYTES)


class FragmentWriter(ABC):
    """Writes a fragment under another generation. Keys must ascend, as they do in the stream.

    `entries` and `bytes` (keys and values) count the content of the file, whose name ends with `suffix`.
    Methods raise OSError, or Refused (NO_SPACE, INTERNAL), when the disk or RocksDB fails.
    """

    suffix: ClassVar[str]

    def __init__(self, path: Path, item: CopyItem) -> None:
        self.entries = 0
        self.bytes = 0
        self._path = path
        self._source_prefix = tablet_prefix(item.partition, item.source_generation)
        self._prefix = tablet_prefix(item.partition, item.generation)
        self._expired_ms = int(time.time() * 1000) - EXPIRED_MARGIN_MS

    def write(self, keys: list[bytes], values: list[bytes]) -> None:
        """Append entries, except those that expired long ago. Raises Corrupt for keys of another tablet.

        Refused near the end of the volume, which is reserved for the member: a full disk would end its
        process.
        """
        if not (keys[0].startswith(self._source_prefix) and keys[-1].startswith(self._source_prefix)):
            raise Corrupt("the stream holds keys of another tablet or generation")
        usage = os.statvfs(self._path.parent)
        if (free := usage.f_bavail * usage.f_frsize) < STOP_FREE_BYTES:
            text = f"the volume has {free} bytes free; a copy needs {STOP_FREE_BYTES} or more"
            raise Refused(text, "NO_SPACE")
        self._append(self._kept(keys, values))

    def _kept(self, keys: list[bytes], values: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Iterate what has not expired, under the new generation, and count it."""
        prefix, size, count = self._prefix, 0, 0
        for key, value in zip(keys, values, strict=True):
            if value[:EXPIRY_BYTES] != _NEVER and self._is_expired(key, value):
                continue
            yield prefix + key[TABLET_PREFIX_BYTES:], value
            size += len(key) + len(value)
            count += 1
        self.entries += count
        self.bytes += size

    def _is_expired(self, key: bytes, value: bytes) -> bool:
        return key[TABLET_PREFIX_BYTES] == USER and is_expired(value, self._expired_ms)

    @abstractmethod
    def _append(self, entries: Iterator[tuple[bytes, bytes]]) -> None: ...

    @abstractmethod
    def finish(self) -> tuple[int, int]:
        """Return (bytes, crc32c) of the file; (0, 0) without a file when there are no entries."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the file under its temporary name."""


class BlockWriter(FragmentWriter):
    """Writes a file of blocks, as a stream has them. It is not synced: the member writes what it holds."""

    suffix = BLOCKS_SUFFIX

    def __init__(self, path: Path, item: CopyItem) -> None:
        super().__init__(path, item)
        self._item = item
        self._blocks: list[bytearray] = []

    def _append(self, entries: Iterator[tuple[bytes, bytes]]) -> None:
        if kept := list(entries):
            keys, values = zip(*kept, strict=True)
            self._blocks.append(encode_entries(keys, values))
        if (size := sum(map(len, self._blocks))) > BLOCKS_BYTES_MAX:
            text = f"the stream has {size} bytes, and the tablet was said to have {self._item.bytes}"
            raise Corrupt(text)

    def finish(self) -> tuple[int, int]:
        if not self.entries:
            return 0, 0
        end = End(self._item.partition, self._item.generation, None, self.entries, self.bytes)
        content = bytearray().join((*self._blocks, encode_end(end)))
        self._path.write_bytes(content)
        return len(content), crc32c(content)

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)


class SstWriter(FragmentWriter):
    """Writes an SST file, which is on disk when it is finished."""

    suffix = ".sst"

    def __init__(self, path: Path, item: CopyItem) -> None:
        super().__init__(path, item)
        self._sst = SstFileWriter(data_options())
        self._guard(lambda: self._sst.open(str(path)))
        self._sum = _Sum(path)

    def _append(self, entries: Iterator[tuple[bytes, bytes]]) -> None:
        self._guard(lambda: self._put(entries))
        self._sum.follow()

    def _put(self, entries: Iterator[tuple[bytes, bytes]]) -> None:
        sst = self._sst
        for key, value in entries:
            sst[key] = value

    def finish(self) -> tuple[int, int]:
        """Return (bytes, crc32c) of the file on disk; (0, 0) without a file when there are no entries."""
        try:
            if not self.entries:
                self._path.unlink(missing_ok=True)
                return 0, 0
            self._sum.sync()
            self._guard(self._sst.finish)  # Writes and syncs the rest.
            return self._sum.follow()
        finally:
            self._sum.close()

    def drop(self) -> None:
        """Remove the file under its temporary name."""
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
    """Size and crc32c of a growing file, computed as it grows.

    RocksDB drops a file from the page cache when it finishes it, so a later pass would read it from disk.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._bytes = self._crc = 0

    def follow(self) -> tuple[int, int]:
        """Return (bytes, crc32c) of the content so far."""
        while count := self._file.readinto(self._buffer):
            self._crc = crc32c(self._buffer[:count], self._crc)
            self._bytes += count
        return self._bytes, self._crc

    def sync(self) -> None:
        """Sync without holding the GIL, so that RocksDB's own sync, which holds it, has little left to do."""
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
