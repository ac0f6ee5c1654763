"""The engine port on RocksDB: families `log` (with the write-ahead log) and `data` (without).

RocksDB's own family `default` is empty.
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

from stele.adapters.rocksdb.bounds import BoundsReader
from stele.adapters.rocksdb.options import DATA, LOG, data_options, database_options, families
from stele.errors import Corrupt, SteleError, Unavailable
from stele.ports.engine import SCAN_BYTES_MAX

DEFAULT_KEYS_MAX = 1000
"""Keys of the family `default` that are counted at most."""

KEY_BYTES_MAX = 64
"""Longer than any key of the log."""

DAMAGE = ("Corruption", "checksum mismatch", "No such file or directory")
"""Parts of RocksDB's errors for damage: files contradict each other, or one is missing."""

FULL = ("No space left on device", "Disk quota exceeded", "Writer has previous error")
"""Parts of RocksDB's errors for a full volume, now or when a file first failed.

After any other first error the process ends before it could get the last of these.
"""


class _Closed:
    """Replaces the database and its families once `close` has begun."""

    def __getattr__(self, name: str) -> Any:
        raise Unavailable.closed()


class RocksEngine:
    """Implements ports.Engine. Only one process at a time can have a directory open."""

    def __init__(self, data: Path, wals: Path, damaged: Callable[[str], None] = lambda text: None) -> None:
        """Open the database. Raises Corrupt for damaged files, Unavailable when it cannot be opened now.

        `damaged` is called with errors that RocksDB finds outside of reads, such as in a compaction; RocksDB
        accepts no more writes then.
        """
        self._damaged = damaged
        self._db = self._opened(data, wals)
        self._log: Any = self._db.get_column_family(LOG)
        self._data: Any = self._db.get_column_family(DATA)
        self._log_handle: Any = self._db.get_column_family_handle(LOG)
        self._data_handle: Any = self._db.get_column_family_handle(DATA)
        self._clear_default()
        # An attribute in fact, though rocksdict's stub declares a method.
        volatile: Any = WriteOptions()
        volatile.disable_wal = True
        self._volatile = volatile
        self._log_failed: Unavailable | None = None
        self._bounds = BoundsReader()

    def _clear_default(self) -> None:
        """Empty RocksDB's family `default`, which Stele does not use.

        Keys in it were written while the database was being closed; later operations went on without them.
        """
        if self.default_keys():
            self._writing(lambda: self._db.delete_range(b"", b"\xff" * KEY_BYTES_MAX))

    def default_keys(self) -> int:
        """Return the number of stray keys in the family `default`, at most DEFAULT_KEYS_MAX."""
        return len(_scan(_walk(self._db), b"", b"\xff" * KEY_BYTES_MAX, DEFAULT_KEYS_MAX))

    def _open_database(self) -> Any:
        database = self._db
        if isinstance(database, _Closed):
            raise Unavailable.closed()
        return database

    @staticmethod
    def _batch(family: Any) -> WriteBatch:
        """Return an empty batch; without a family's handle rocksdict would write to the family `default`."""
        if family is None:
            raise Unavailable.closed()
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(family)
        return batch

    def _writing(self, work: Callable[[], None]) -> None:
        """Run a write and convert its errors.

        Raises Corrupt when RocksDB stopped because of damage, and Unavailable when it is closed (CLOSED), its
        disk is full (NO_SPACE) or fails otherwise (DISK_ERROR).
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

    def write_data(
        self, changes: Sequence[tuple[bytes, bytes | None]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        batch = self._batch(self._data_handle)
        for begin, end in drops:
            batch.delete_range(begin, end, self._data_handle)
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
        if self._log_failed is not None:
            raise self._log_failed
        try:
            if len(puts) == 1 and not drops:
                # A batch takes half as long again, and most writes of an idle member are of one operation.
                self._writing(lambda: self._log.put(*puts[0]))
            else:
                self._writing(lambda: self._db.write(self._log_batch(puts, drops)))
        except Unavailable as error:
            # Records after a broken one in a log file are unreliable until the database is reopened.
            self._log_failed = error if ".log" in str(error) else None
            raise

    def _log_batch(
        self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]]
    ) -> WriteBatch:
        family = self._log_handle
        batch = self._batch(family)
        for begin, end in drops:
            batch.delete_range(begin, end, family)
        for key, value in puts:
            batch[key] = value
        return batch

    def get_log(self, key: bytes) -> bytes | None:
        return _get(self._log, key)

    def scan_log(self, begin: bytes, end: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        walk, entries, size = _walk(self._log, _until(end)), list[tuple[bytes, bytes]](), 0
        walk.seek(begin)
        while size < bytes_max and walk.valid():
            value = walk.value()
            entries.append((walk.key(), value))
            size += len(value)
            walk.next()
        _check(walk)
        return entries

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
        # A checkpoint flushes by itself, but would hold the GIL meanwhile.
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
            return self._bounds.read(paths)
        except (OSError, SubprocessError) as error:
            if any(sign in str(error) for sign in DAMAGE):
                raise Corrupt(f"SST files: {error}") from error
            raise _unavailable("SST files could not be read", error) from error

    def ingest(self, paths: Sequence[str]) -> None:
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        ingest = self._data.ingest_external_file
        try:
            ingest(list(paths), options)
        except Exception as error:  # rocksdict raises bare Exception
            raise _unavailable("SST files could not be ingested", error) from error

    def close(self) -> None:
        """Close the database.

        From the start of this call on, writes in any thread raise Unavailable (CLOSED).
        """
        log, data, database = self._log, self._data, self._db
        self._log = self._data = self._db = _Closed()
        # Handles of families keep the directory locked while they exist.
        self._log_handle = self._data_handle = None
        self._bounds.close()
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
    """A member's database, read-only: no file of it changes. RocksDB's info log goes to `notes`.

    The caller must ensure that no process has the database open.
    """

    def __init__(self, data: Path, wals: Path, notes: Path) -> None:
        """Open the database. Raises Corrupt or Unavailable."""
        self._notes = notes
        super().__init__(data, wals)

    def _opened(self, data: Path, wals: Path) -> Any:
        return _guarded(data, lambda: _open_read_only(data, wals, self._notes))

    def _clear_default(self) -> None:
        """Do nothing: the database is read-only."""

    def _flush_last(self, data: Any) -> None:
        """Do nothing: nothing was written."""


class RocksView:
    """`data` as one iterator saw it at its creation.

    Not rocksdict's own Snapshot: in 0.3.29 its iterators read the newest state, only its lookups the old one.
    """

    def __init__(self, walk: Any) -> None:
        self._walk = walk

    def get(self, key: bytes) -> bytes | None:
        entries = _scan(self._walk, key, key + b"\0", 1)
        return entries[0][1] if entries else None

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return _scan(self._walk, begin, end, limit)

    def close(self) -> None:
        self._walk = None


class CheckpointReader:
    """A checkpoint, opened read-only; other processes may have it open too."""

    def __init__(self, path: Path) -> None:
        """Open the checkpoint. Raises Corrupt or Unavailable."""
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
    """Open a checkpoint that `Engine.checkpoint` wrote to `path`."""
    return CheckpointReader(path)


def _open_read_only(path: Path, wals: Path | None = None, notes: Path | None = None) -> Any:
    options = database_options(None if wals is None else str(wals))
    options.create_if_missing(False)
    if notes is not None:
        options.set_db_log_dir(str(notes))
    return Rdict(str(path), options, column_families=families(), access_type=AccessType.read_only(False))


def _guarded(path: Path, opener: Any) -> Any:
    """Open a database, distinguishing damage from temporary errors by RocksDB's text."""
    try:
        return opener()
    except Exception as error:
        text = f"database {path}: {error}"
        if any(sign in str(error) for sign in DAMAGE):
            raise Corrupt(text) from error
        raise Unavailable(text) from error


def _unavailable(what: str, error: Exception) -> Unavailable:
    """Return the error of a failed write: closed, full, or a failing disk."""
    if isinstance(error, DbClosedError):
        return Unavailable.closed()
    full = any(sign in str(error) for sign in FULL)
    return Unavailable(f"{what}: {error}", "NO_SPACE" if full else "DISK_ERROR")


def _until(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _corrupt(error: Exception) -> SteleError:
    """Return the error of a failed read; rocksdict raises bare exceptions."""
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
    entries: list[tuple[bytes, bytes]] = []
    size = 0
    walk.seek(begin)
    while len(entries) < limit and size < bytes_max and walk.valid():
        key = walk.key()
        if key >= end:
            return entries
        value = walk.value()
        entries.append((key, value))
        size += len(key) + len(value)
        walk.next()
    _check(walk)
    return entries


def _check(walk: Any) -> None:
    """Raise when an iterator ended at a damaged block rather than after the last entry."""
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
