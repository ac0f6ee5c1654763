"""A member's log of operations as a family of its RocksDB, with RocksDB's write-ahead log: format 1."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rocksdict import WriteBatch

from stele.adapters.rocksdb import reads
from stele.adapters.rocksdb.options import LOG
from stele.errors import Unavailable

PAGE_BYTES = 1024 * 1024
"""Bytes of records that are read at once where all are read."""

FIRST, AFTER_LAST = b"", b"\xff" * 16
"""Below and above each key of the log."""


class FamilyLog:
    """See the module. `writing` runs a write to the database and converts its errors."""

    def __init__(self, database: Any, writing: Callable[[Callable[[], None]], None]) -> None:
        self._db, self._writing = database, writing
        self._family: Any = database.get_column_family(LOG)
        self._handle: Any = database.get_column_family_handle(LOG)
        self._failed: Unavailable | None = None

    def write(self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            if len(puts) == 1 and not drops:
                # A batch takes half as long again, and most writes of an idle member are of one operation.
                self._writing(lambda: self._family.put(*puts[0]))
            else:
                self._writing(lambda: self._db.write(self._batch(puts, drops)))
        except Unavailable as error:
            # Records after a broken one in a log file are unreliable until the database is reopened.
            self._failed = error if ".log" in str(error) else None
            raise

    def refuse(self, error: Unavailable) -> None:
        """Raise this error at every later write."""
        self._failed = error

    def _batch(self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]]) -> WriteBatch:
        handle = self._handle
        batch = reads.empty_batch(handle)
        for begin, end in drops:
            batch.delete_range(begin, end, handle)
        for key, value in puts:
            batch[key] = value
        return batch

    def get(self, key: bytes) -> bytes | None:
        return reads.get(self._family, key)

    def scan(self, begin: bytes, end: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Return operations of [begin, end), up to the one that reaches `bytes_max`."""
        walk, entries, size = reads.walk(self._family, reads.until(end)), list[tuple[bytes, bytes]](), 0
        walk.seek(begin)
        while size < bytes_max and walk.valid():
            value = walk.value()
            entries.append((walk.key(), value))
            size += len(value)
            walk.next()
        reads.check(walk)
        return entries

    def bounds(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the first and last key in [begin, end); None where there is none."""
        walk = reads.walk(self._family)
        walk.seek(begin)
        if not walk.valid() or walk.key() >= end:
            reads.check(walk)
            return None
        first: bytes = walk.key()
        last = reads.last_key(walk, begin, end)
        return None if last is None else (first, last)

    def pages(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Iterate all operations in order of their keys."""
        begin = FIRST
        while page := self.scan(begin, AFTER_LAST, PAGE_BYTES):
            yield page
            begin = page[-1][0] + b"\0"

    @property
    def empty(self) -> bool:
        return not self.scan(FIRST, AFTER_LAST, 1)

    def clear(self) -> None:
        """Slow. Delete all operations, and the files that have them."""
        if not self.empty:
            self.write([], [(FIRST, AFTER_LAST)])
            self._writing(lambda: self._family.compact_range(None, None))

    def sync(self) -> None:
        """Slow. What was written before the call is on disk on return."""
        self._writing(lambda: self._db.flush_wal(True))

    def before_checkpoint(self) -> None:
        """Slow. Flush: a checkpoint does by itself, but would hold the GIL meanwhile."""
        self._writing(lambda: self._family.flush(True))

    @property
    def end(self) -> None:
        """The name and size of the newest file: those of RocksDB are its own."""
        return None

    def close(self) -> None:
        """Close the family. Handles keep the directory locked while they exist."""
        self._handle = None
        self._family.close()
