"""Write-back cache: keeps writes to `data` in memory until they are flushed or scanned.

After a crash, `data` is as it was last flushed and the log has the rest, so a write may stay in memory until
the next flush. A key that is written often costs one write per flush, and one that is read often costs no
lookup. Pending writes go to the engine tablet by tablet, each in one write, so that a tablet's entries and
its state stay consistent whatever the engine makes durable. Writes that a full volume rejects stay pending.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Final

from stele.errors import Unavailable
from stele.member.storage.disk_full import raise_unless_disk_full
from stele.ports.engine import SCAN_BYTES_MAX, Engine, View
from stele.wire.storage.keys import tablet_of

CACHED_BYTES_MAX = 64 * 1024 * 1024
"""Approximate memory of cached values."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Approximate memory of pending values; a flush usually comes long before they are written out here."""

TABLET_BYTES_MAX = 1024 * 1024
"""Pending bytes at which a tablet is written out at once: a single write holds the GIL."""

ENTRY_BYTES = 256
"""Python's overhead per entry."""

_MISSING: Final = b"missing"
Changes = Sequence[tuple[bytes, bytes | None]]
Entries = list[tuple[bytes, bytes]]
Tablet = dict[bytes, bytes | None]


class WriteBack:
    """Implements ports.Engine; see the module. Slow methods run in one thread beside the event loop's.

    Once `close` has begun, nothing is kept any more, and reads and writes raise Unavailable (CLOSED).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[bytes, Tablet] = {}
        self._sizes: dict[bytes, int] = {}
        self._leaving: dict[bytes, Tablet] = {}
        self._bytes = 0
        self.recent: Tablet = {}
        self._old: Tablet = {}
        self._young_bytes = 0
        self._closed = False
        # `_swap` guards pending values; `_order` keeps a tablet's writes to the engine in order.
        self._swap, self._order = Lock(), Lock()
        self.write_log, self.get_log, self.scan_log = engine.write_log, engine.get_log, engine.scan_log
        self.log_bounds, self.sync_log = engine.log_bounds, engine.sync_log
        self.log_end, self.use_format = engine.log_end, engine.use_format

    # -- entries

    def get(self, key: bytes) -> bytes | None:
        if self._closed:
            raise Unavailable.closed()
        value = self.recent.get(key, _MISSING)
        if value is not _MISSING:
            return value
        value = self._old.get(key, _MISSING)
        if value is _MISSING:
            value = self._look_up(key)
        self.recent[key] = value
        self._grow(ENTRY_BYTES + len(key) + (0 if value is None else len(value)))
        return value

    def _look_up(self, key: bytes) -> bytes | None:
        tablet = tablet_of(key)
        with self._swap:
            if self._closed:
                raise Unavailable.closed()
            for waiting in (self._waiting.get(tablet), self._leaving.get(tablet)):
                if waiting is not None and key in waiting:
                    return waiting[key]
        return self._engine.get(key)

    def write_data(self, changes: Changes, drops: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Apply changes atomically per tablet. With ranges to drop, they are all of one tablet."""
        if not changes:
            return
        tablet = tablet_of(changes[0][0])
        if drops:
            self._drop(tablet, changes, drops)
            return
        if tablet_of(changes[-1][0]) == tablet:
            self._write(tablet, changes)
            return
        tablets: dict[bytes, list[tuple[bytes, bytes | None]]] = {}
        for change in changes:
            tablets.setdefault(tablet_of(change[0]), []).append(change)
        for tablet, of_tablet in tablets.items():
            self._write(tablet, of_tablet)

    def _write(self, tablet: bytes, changes: Changes) -> None:
        size = sum([ENTRY_BYTES + len(key) + (0 if value is None else len(value)) for key, value in changes])
        with self._swap:
            if self._closed:
                raise Unavailable.closed()
            waiting = self._waiting.get(tablet)
            if waiting is None:
                waiting = self._waiting[tablet] = {}
            waiting.update(changes)
            self._sizes[tablet] = of_tablet = self._sizes.get(tablet, 0) + size
            self._bytes += size
        self.recent.update(changes)
        self._grow(size)
        try:
            if of_tablet >= TABLET_BYTES_MAX:
                self.write_out([tablet])
            elif self._bytes >= WAITING_BYTES_MAX:
                self.write_out()
        except Unavailable as error:
            raise_unless_disk_full(error)

    def _drop(self, tablet: bytes, changes: Changes, drops: Sequence[tuple[bytes, bytes]]) -> None:
        """Write through, after what is pending. On a full volume it raises, and nothing of it is done."""
        self.write_out([tablet])
        with self._order:
            self._engine.write_data(changes, drops)
        self._forget()

    def _grow(self, size: int) -> None:
        """Drop the older half of the cache when the younger half is full."""
        self._young_bytes += size
        if self._young_bytes > CACHED_BYTES_MAX // 2:
            self._old, self.recent, self._young_bytes = self.recent, {}, 0

    def _forget(self) -> None:
        self._old, self.recent, self._young_bytes = {}, {}, 0

    # -- handing over

    def write_out(self, tablets: Iterable[bytes] | None = None) -> None:
        """Write out pending values, of these tablets or of all."""
        for tablet in self._pending() if tablets is None else tablets:
            with self._order:
                self._hand_over(tablet)

    def _pending(self) -> list[bytes]:
        """Return the tablets with values that are not written, or that another thread is just writing."""
        with self._swap:
            return [*self._leaving, *self._waiting]

    def _hand_over(self, tablet: bytes) -> None:
        with self._swap:
            leaving = self._waiting.pop(tablet, None)
            if leaving is None:
                return
            self._leaving[tablet] = leaving
            size = self._sizes.pop(tablet)
            self._bytes -= size
        try:
            self._engine.write_data(list(leaving.items()))
        except Unavailable:
            with self._swap:
                self._waiting[tablet] = leaving | self._waiting.get(tablet, {})
                self._sizes[tablet] = self._sizes.get(tablet, 0) + size
                self._bytes += size
            raise
        finally:
            with self._swap:
                del self._leaving[tablet]

    def _write_out_range(self, begin: bytes, end: bytes) -> None:
        first, last = tablet_of(begin), tablet_of(end)
        if first == last:
            self.write_out([first])
        else:
            self.write_out([tablet for tablet in self._pending() if first <= tablet <= last])

    # -- what the engine does itself

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX) -> Entries:
        try:
            self._write_out_range(begin, end)
        except Unavailable as error:
            raise_unless_disk_full(error)
            return self._merged(begin, end, limit, bytes_max)
        return self._engine.scan(begin, end, limit, bytes_max)

    def _merged(self, begin: bytes, end: bytes, limit: int, bytes_max: int) -> Entries:
        """Return the engine's entries overlaid with pending values, page by page, since some may be
        deletions."""
        with self._swap:
            tablets = [*self._leaving.values(), *self._waiting.values()]
            pending = {
                key: value for tablet in tablets for key, value in tablet.items() if begin <= key < end
            }
        entries: Entries = []
        while True:
            page = self._engine.scan(begin, end, limit, bytes_max)
            until = end if len(page) < limit and _bytes(page) < bytes_max else page[-1][0] + b"\0"
            merged = {**dict(page), **{key: pending[key] for key in pending if begin <= key < until}}
            entries += sorted((key, value) for key, value in merged.items() if value is not None)
            if until == end or len(entries) >= limit or _bytes(entries) >= bytes_max:
                sizes = accumulate((_bytes([entry]) for entry in entries), initial=0)
                return [entry for entry, before in zip(entries, sizes, strict=False) if before < bytes_max][
                    :limit
                ]
            begin = until

    def last_key(self, begin: bytes, end: bytes) -> bytes | None:
        self._write_out_range(begin, end)
        return self._engine.last_key(begin, end)

    def view(self) -> View:
        self.write_out()
        return self._engine.view()

    def drop_data(self, begin: bytes, end: bytes) -> None:
        self._write_out_range(begin, end)
        self._engine.drop_data(begin, end)
        self._forget()

    def flush(self) -> None:
        self.write_out()
        self._engine.flush()

    def checkpoint(self, path: str) -> None:
        self.write_out()
        self._engine.checkpoint(path)

    def open_checkpoint(self, path: str) -> View:
        return self._engine.open_checkpoint(path)

    def make_file(self, path: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._engine.make_file(path, entries)

    def file_bounds(self, paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
        return self._engine.file_bounds(paths)

    def ingest(self, paths: Sequence[str]) -> None:
        self.write_out()
        self._engine.ingest(paths)
        self._forget()

    def close(self) -> None:
        with self._swap:
            leaving, self._waiting, self._closed = self._waiting, {}, True
            self._forget()
        try:
            for changes in leaving.values():
                with self._order:
                    self._engine.write_data(list(changes.items()))
        finally:
            self._engine.close()


def _bytes(entries: Entries) -> int:
    return sum(len(key) + len(value) for key, value in entries)
