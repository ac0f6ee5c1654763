"""The engine port on RocksDB: families `log` (with the write-ahead log) and `data` (without).

RocksDB's own family `default` holds nothing.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from rocksdict import (
    AccessType,
    Checkpoint,
    DbClosedError,
    IngestExternalFileOptions,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from stele.adapters.rocksdb.bounds import file_bounds
from stele.adapters.rocksdb.options import DATA, LOG, data_options, database_options, families
from stele.errors import Corrupt, SteleError, Unavailable
from stele.ports.engine import SCAN_BYTES_MAX

DEFAULT_KEYS_MAX = 1000
"""So many keys of the family `default` are counted at most."""

KEY_BYTES_MAX = 64
"""No key of the log is as long."""

DAMAGE = ("Corruption", "checksum mismatch", "No such file or directory")
"""In RocksDB's text: files contradict themselves, or one that others name is missing."""

FULL = ("No space left on device", "Disk quota exceeded", "Writer has previous error")
"""In RocksDB's text: the volume is full, or was when a file had its first error. After other first errors the
process ends before it hears the last of them.
"""


class _Closed:
    """What takes the place of the database and its families once `close` began."""

    def __getattr__(self, name: str) -> Any:
        raise Unavailable.closed()


class RocksEngine:
    """See ports.Engine. One process at a time may have a directory open."""

    def __init__(self, data: Path, wals: Path, damaged: Callable[[str], None] = lambda text: None) -> None:
        """Raise Corrupt when the files contradict themselves, Unavailable when they cannot be opened now.

        `damaged` is told what RocksDB found outside of a read, in a compaction say: it takes no more writes.
        """
        self._damaged = damaged
        self._db = self._opened(data, wals)
        self._log: Any = self._db.get_column_family(LOG)
        self._data: Any = self._db.get_column_family(DATA)
        self._log_handle: Any = self._db.get_column_family_handle(LOG)
        self._data_handle: Any = self._db.get_column_family_handle(DATA)
        self._clear_default()
        # An attribute in fact, a method according to the stub that comes with rocksdict.
        volatile: Any = WriteOptions()
        volatile.disable_wal = True
        self._volatile = volatile
        self._log_failed: Unavailable | None = None

    def _clear_default(self) -> None:
        """RocksDB has a family `default` that belongs to nobody here. What is in it was written while the
        database was being closed, and later operations went on without it.
        """
        if self.default_keys():
            self._writing(lambda: self._db.delete_range(b"", b"\xff" * KEY_BYTES_MAX))

    def default_keys(self) -> int:
        """How many keys the family `default` has, DEFAULT_KEYS_MAX at most: none of them belongs there."""
        return len(_scan(_walk(self._db), b"", b"\xff" * KEY_BYTES_MAX, DEFAULT_KEYS_MAX))

    def _open_database(self) -> Any:
        database = self._db
        if isinstance(database, _Closed):
            raise Unavailable.closed()
        return database

    @staticmethod
    def _batch(family: Any) -> WriteBatch:
        """An empty batch. Without a handle of a family rocksdict would write to the family `default`."""
        if family is None:
            raise Unavailable.closed()
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(family)
        return batch

    def _writing(self, work: Callable[[], None]) -> None:
        """Raise Corrupt when RocksDB stopped because of damage, Unavailable when it is closed (CLOSED) or the
        disk fails it: NO_SPACE when it is full, and DISK_ERROR.
        """
        try:
            work()
        except SteleError:
            raise
        except Exception as error:  # rocksdict raises bare Exception
            if any(sign in str(error) for sign in DAMAGE):
                self._damaged(f"database: {error}")
                raise Corrupt(f"database: {error}") from error
            raise _unavailable("database", error) from error

    def _opened(self, data: Path, wals: Path) -> Any:
        return _guarded(
            data, lambda: Rdict(str(data), database_options(str(wals)), column_families=families())
        )

    def get(self, key: bytes) -> bytes | None:
        return _get(self._data, key)

    def scan(
        self, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX
    ) -> list[tuple[bytes, bytes]]:
        return _scan(_walk(self._data, _until(end)), begin, end, limit, bytes_max)

    def last_key(self, begin: bytes, end: bytes) -> bytes | None:
        return _last_key(_walk(self._data), begin, end)

    def write_data(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        batch = self._batch(self._data_handle)
        for key, value in changes:
            if value is None:
                del batch[key]
            else:
                batch[key] = value
        self._writing(lambda: self._db.write(batch, self._volatile))

    def drop_data(self, begin: bytes, end: bytes) -> None:
        self._writing(lambda: self._data.delete_range(begin, end, self._volatile))

    def view(self) -> "RocksView":
        return RocksView(_walk(self._data))

    def write_log(
        self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        family = self._log_handle
        batch = self._batch(family)
        for begin, end in drops:
            batch.delete_range(begin, end, family)
        for key, value in puts:
            batch[key] = value
        if self._log_failed is not None:
            raise self._log_failed
        try:
            self._writing(lambda: self._db.write(batch))
        except Unavailable as error:
            # What is behind a broken record of a file of the log is not to be relied on: only an opening is.
            self._log_failed = error if ".log" in str(error) else None
            raise

    def get_log(self, key: bytes) -> bytes | None:
        return _get(self._log, key)

    def scan_log(self, begin: bytes, end: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        walk, found, size = _walk(self._log, _until(end)), list[tuple[bytes, bytes]](), 0
        walk.seek(begin)
        while size < bytes_max and walk.valid():
            value = walk.value()
            found.append((walk.key(), value))
            size += len(value)
            walk.next()
        _check(walk)
        return found

    def log_bounds(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        walk = _walk(self._log)
        walk.seek(begin)
        if not walk.valid() or walk.key() >= end:
            _check(walk)
            return None
        first: bytes = walk.key()
        last = _last_key(walk, begin, end)
        return None if last is None else (first, last)

    def sync_log(self) -> None:
        self._writing(lambda: self._db.flush_wal(True))

    def flush(self) -> None:
        self._writing(lambda: self._data.flush(True))

    def checkpoint(self, path: str) -> None:
        # A checkpoint flushes by itself, but holds Python's lock while it does.
        self._writing(lambda: self._log.flush(True))
        self.flush()
        database = self._open_database()
        try:
            Checkpoint(database).create_checkpoint(path)
        except Exception as error:  # rocksdict raises bare Exception
            raise _unavailable("checkpoint", error) from error

    def open_checkpoint(self, path: str) -> "CheckpointReader":
        self._open_database()
        return open_checkpoint(Path(path))

    def make_file(self, path: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._open_database()
        writer = SstFileWriter(data_options())
        try:
            writer.open(path)
            for key, value in entries:
                writer[key] = value
            writer.finish()
        except Exception as error:  # rocksdict raises bare Exception
            raise _unavailable("SST file", error) from error
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def file_bounds(self, paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
        try:
            return file_bounds(paths)
        except (OSError, SubprocessError) as error:
            if any(sign in str(error) for sign in DAMAGE):
                raise Corrupt(f"SST files: {error}") from error
            raise _unavailable("SST files were not read", error) from error

    def ingest(self, paths: Sequence[str]) -> None:
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        ingest = self._data.ingest_external_file
        try:
            ingest(list(paths), options)
        except Exception as error:  # rocksdict raises bare Exception
            raise _unavailable("SST files were not taken in", error) from error

    def close(self) -> None:
        """Nothing is written once this began: whoever comes later is told so, whatever thread asks."""
        log, data, database = self._log, self._data, self._db
        self._log = self._data = self._db = _Closed()
        # Handles of families keep the directory locked as long as they live.
        self._log_handle = self._data_handle = None
        if isinstance(database, _Closed):
            return
        try:
            self._flush_last(data)
        finally:
            for part in (log, data, database):
                part.close()

    def _flush_last(self, data: Any) -> None:
        self._writing(lambda: data.flush(True))


class RocksReader(RocksEngine):
    """A member's database, read-only: no file of it is changed. RocksDB's notes go to `notes`.

    Whoever makes one has to know that no process has the database open.
    """

    def __init__(self, data: Path, wals: Path, notes: Path) -> None:
        """Raise Corrupt or Unavailable when it cannot be read."""
        self._notes = notes
        super().__init__(data, wals)

    def _opened(self, data: Path, wals: Path) -> Any:
        return _guarded(data, lambda: _open_read_only(data, wals, self._notes))

    def _clear_default(self) -> None:
        """It is only read."""

    def _flush_last(self, data: Any) -> None:
        """Nothing was written."""


class RocksView:
    """`data` as one iterator saw it when it was made.

    Not rocksdict's own Snapshot: in 0.3.29 its iterators read the newest state, only its lookups the old one.
    """

    def __init__(self, walk: Any) -> None:
        self._walk = walk

    def get(self, key: bytes) -> bytes | None:
        found = _scan(self._walk, key, key + b"\0", 1)
        return found[0][1] if found else None

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return _scan(self._walk, begin, end, limit)

    def close(self) -> None:
        self._walk = None


class CheckpointReader:
    """A checkpoint, opened read-only; another process may have it open too."""

    def __init__(self, path: Path) -> None:
        """Raise Corrupt or Unavailable when it cannot be read."""
        self._db = _guarded(path, lambda: _open_read_only(path))
        self._data: Any = self._db.get_column_family(DATA)

    def get(self, key: bytes) -> bytes | None:
        return _get(self._data, key)

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return _scan(_walk(self._data, _until(end)), begin, end, limit)

    def close(self) -> None:
        self._data.close()
        self._db.close()


def open_checkpoint(path: Path) -> CheckpointReader:
    """Read what `Engine.checkpoint` wrote to `path`."""
    return CheckpointReader(path)


def _open_read_only(path: Path, wals: Path | None = None, notes: Path | None = None) -> Any:
    options = database_options(None if wals is None else str(wals))
    options.create_if_missing(False)
    if notes is not None:
        options.set_db_log_dir(str(notes))
    return Rdict(str(path), options, column_families=families(), access_type=AccessType.read_only(False))


def _guarded(path: Path, opener: Any) -> Any:
    """Tell damage from trouble of the moment: rocksdict raises bare exceptions with RocksDB's text."""
    try:
        return opener()
    except Exception as error:
        text = f"database {path}: {error}"
        if any(sign in str(error) for sign in DAMAGE):
            raise Corrupt(text) from error
        raise Unavailable(text) from error


def _unavailable(what: str, error: Exception) -> Unavailable:
    """The database is closed, or the disk failed RocksDB: it is full, or something else is wrong with it."""
    if isinstance(error, DbClosedError):
        return Unavailable.closed()
    full = any(sign in str(error) for sign in FULL)
    return Unavailable(f"{what}: {error}", "NO_SPACE" if full else "DISK_ERROR")


def _until(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _corrupt(error: Exception) -> SteleError:
    """What a read found wrong: rocksdict raises bare exceptions."""
    if isinstance(error, SteleError):
        return error
    return Unavailable.closed() if isinstance(error, DbClosedError) else Corrupt(f"database: {error}")


def _get(family: Any, key: bytes) -> bytes | None:
    try:
        value: bytes | None = family.get(key)
    except Exception as error:
        raise _corrupt(error) from error
    return value


def _walk(family: Any, *options: ReadOptions) -> Any:
    try:
        return family.iter(*options)
    except Exception as error:
        raise _corrupt(error) from error


def _scan(
    walk: Any, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX
) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    size = 0
    walk.seek(begin)
    while len(found) < limit and size < bytes_max and walk.valid():
        key = walk.key()
        if key >= end:
            return found
        value = walk.value()
        found.append((key, value))
        size += len(key) + len(value)
        walk.next()
    _check(walk)
    return found


def _check(walk: Any) -> None:
    """An iterator ends at a damaged block as it ends at the last entry; only its status tells."""
    if walk.valid():
        return
    try:
        walk.status()
    except Exception as error:
        raise _corrupt(error) from error


def _last_key(walk: Any, begin: bytes, end: bytes) -> bytes | None:
    walk.seek_for_prev(end)
    if walk.valid() and walk.key() == end:
        walk.prev()
    if not walk.valid():
        _check(walk)
        return None
    key: bytes = walk.key()
    return key if key >= begin else None
