"""The engine port: entries in RocksDB's family `data`, without a write-ahead log, and operations in segments.

A volume of format 1 has its operations in RocksDB's family `log` instead, with RocksDB's write-ahead log.
RocksDB's own family `default` is empty.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, cast

from rocksdict import (
    AccessType,
    Checkpoint,
    IngestExternalFileOptions,
    Rdict,
    SstFileWriter,
    WriteOptions,
)

from stele.adapters.rocksdb import reads
from stele.adapters.rocksdb.bounds import BoundsReader
from stele.adapters.rocksdb.family_log import FamilyLog
from stele.adapters.rocksdb.options import DATA, data_options, database_options, families
from stele.adapters.segments.files import FOLDER
from stele.adapters.segments.log import SegmentedLog
from stele.core.formats import LOG_SEGMENTS
from stele.errors import Corrupt, SteleError, Unavailable
from stele.ports.engine import SCAN_BYTES_MAX

DEFAULT_KEYS_MAX = 1000
"""Keys of the family `default` that are counted at most."""

KEY_BYTES_MAX = 64
"""Longer than any key of the log."""

DAMAGE = ("Corruption", "checksum mismatch", "No such file or directory")
"""Parts of RocksDB's errors for damage: files contradict each other, or one is missing."""


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
        self._data: Any = self._db.get_column_family(DATA)
        self._data_handle: Any = self._db.get_column_family_handle(DATA)
        self._clear_default()
        self._segments = wals.with_name(FOLDER)
        try:
            self._log: FamilyLog | SegmentedLog = self._opened_log()
        except SteleError:
            self._data_handle = None
            self._data.close()
            self._db.close()
            raise
        # An attribute in fact, though rocksdict's stub declares a method.
        volatile: Any = WriteOptions()
        volatile.disable_wal = True
        self._volatile = volatile
        self._bounds = BoundsReader()

    def _clear_default(self) -> None:
        """Empty RocksDB's family `default`, which Stele does not use.

        Keys in it were written while the database was being closed; later operations went on without them.
        """
        if self.default_keys():
            self._writing(lambda: self._db.delete_range(b"", b"\xff" * KEY_BYTES_MAX))

    def default_keys(self) -> int:
        """Return the number of stray keys in the family `default`, at most DEFAULT_KEYS_MAX."""
        return len(reads.scan(reads.walk(self._db), b"", b"\xff" * KEY_BYTES_MAX, DEFAULT_KEYS_MAX))

    def _open_database(self) -> Any:
        database = self._db
        if isinstance(database, _Closed):
            raise Unavailable.closed()
        return database

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
            raise reads.unavailable("database", error) from error

    def _opened(self, data: Path, wals: Path) -> Any:
        return _guarded(
            data, lambda: Rdict(str(data), database_options(str(wals)), column_families=families())
        )

    def _opened_log(self) -> FamilyLog | SegmentedLog:
        family = FamilyLog(self._db, self._writing)
        if not self._segments.exists():
            return family
        with closing(family), ExitStack() as undo:
            segments = SegmentedLog(self._segments)
            undo.callback(segments.close)
            self._clear_moved(family, segments)
            undo.pop_all()
            return segments

    @staticmethod
    def _clear_moved(family: FamilyLog, segments: SegmentedLog) -> None:
        """Empty RocksDB's family, all of which was moved. Raises Corrupt for operations that were not."""
        for page in family.pages():
            for key, record in page:
                if segments.get(key) != record and not segments.is_trimmed(key):
                    raise Corrupt(f"RocksDB has operation {key.hex()}, which the log in segments lacks")
        with suppress(Unavailable):
            family.clear()

    def use_format(self, number: int) -> None:
        if number >= LOG_SEGMENTS and isinstance(self._log, FamilyLog) and self._log.empty:
            with suppress(Unavailable):
                self.move_log()

    def move_log(self) -> None:
        """Slow. Keep operations in segments from now on; those in RocksDB are moved.

        The segments are made aside, and are in force once their folder has its name. Must not run beside
        writes. Raises Unavailable; RocksDB goes on to have the log then, or refuses all writes until the next
        start if the segments are in force.
        """
        family = self._log
        if not isinstance(family, FamilyLog):
            return
        try:
            SegmentedLog.copy(family.pages(), self._segments)
            self._log = SegmentedLog(self._segments)
        except SteleError as error:
            if self._segments.exists():
                family.refuse(Unavailable(f"log: {error.text}", "DISK_ERROR"))
            raise
        with suppress(Unavailable):
            family.clear()
        family.close()

    def get(self, key: bytes) -> bytes | None:
        return reads.get(self._data, key)

    def scan(
        self, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX
    ) -> list[tuple[bytes, bytes]]:
        return reads.scan(reads.walk(self._data, reads.until(end)), begin, end, limit, bytes_max)

    def last_key(self, begin: bytes, end: bytes) -> bytes | None:
        return reads.last_key(reads.walk(self._data), begin, end)

    def write_data(
        self, changes: Sequence[tuple[bytes, bytes | None]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        batch = reads.empty_batch(self._data_handle)
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
        return RocksView(reads.walk(self._data))

    def write_log(
        self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        self._log.write(puts, drops)

    def get_log(self, key: bytes) -> bytes | None:
        return self._log.get(key)

    def scan_log(self, begin: bytes, end: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        return self._log.scan(begin, end, bytes_max)

    def log_bounds(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        return self._log.bounds(begin, end)

    def sync_log(self) -> None:
        self._log.sync()

    def log_end(self) -> tuple[str, int] | None:
        return self._log.end

    def flush(self) -> None:
        self._writing(lambda: self._data.flush(True))

    def checkpoint(self, path: str) -> None:
        # A checkpoint flushes by itself, but would hold the GIL meanwhile.
        self._log.before_checkpoint()
        self.flush()
        database = self._open_database()
        try:
            Checkpoint(database).create_checkpoint(path)
        except Exception as error:  # rocksdict raises bare Exception
            raise reads.unavailable("checkpoint", error) from error

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
            raise reads.unavailable("SST file", error) from error
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def file_bounds(self, paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
        try:
            return self._bounds.read(paths)
        except (OSError, SubprocessError) as error:
            if any(sign in str(error) for sign in DAMAGE):
                raise Corrupt(f"SST files: {error}") from error
            raise reads.unavailable("SST files could not be read", error) from error

    def ingest(self, paths: Sequence[str]) -> None:
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        ingest = self._data.ingest_external_file
        try:
            ingest(list(paths), options)
        except Exception as error:  # rocksdict raises bare Exception
            raise reads.unavailable("SST files could not be ingested", error) from error

    def close(self) -> None:
        """Close the database.

        From the start of this call on, writes in any thread raise Unavailable (CLOSED).
        """
        log, data, database = self._log, self._data, self._db
        self._data = self._db = closed = _Closed()
        self._log = cast("SegmentedLog", closed)
        # Handles of families keep the directory locked while they exist.
        self._data_handle = None
        self._bounds.close()
        if isinstance(database, _Closed):
            return
        try:
            self._flush_last(data)
        finally:
            with ExitStack() as last:
                for part in (database, data, log):
                    last.callback(part.close)

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

    def _opened_log(self) -> FamilyLog | SegmentedLog:
        if self._segments.exists():
            return SegmentedLog(self._segments, read_only=True)
        return FamilyLog(self._db, self._writing)

    def _flush_last(self, data: Any) -> None:
        """Do nothing: nothing was written."""


class RocksView:
    """`data` as one iterator saw it at its creation.

    Not rocksdict's own Snapshot: in 0.3.29 its iterators read the newest state, only its lookups the old one.
    """

    def __init__(self, walk: Any) -> None:
        self._walk = walk

    def get(self, key: bytes) -> bytes | None:
        entries = reads.scan(self._walk, key, key + b"\0", 1)
        return entries[0][1] if entries else None

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return reads.scan(self._walk, begin, end, limit)

    def close(self) -> None:
        self._walk = None


class CheckpointReader:
    """A checkpoint, opened read-only; other processes may have it open too."""

    def __init__(self, path: Path) -> None:
        """Open the checkpoint. Raises Corrupt or Unavailable."""
        self._db = _guarded(path, lambda: _open_read_only(path))
        self._data: Any = self._db.get_column_family(DATA)

    def get(self, key: bytes) -> bytes | None:
        return reads.get(self._data, key)

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return reads.scan(reads.walk(self._data, reads.until(end)), begin, end, limit)

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
