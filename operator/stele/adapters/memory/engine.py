"""The engine port in memory, with the same rules about what survives a crash."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from threading import Lock

from stele.errors import Corrupt, Unavailable
from stele.ports.engine import SCAN_BYTES_MAX
from stele.wire.storage.keys import log_key, split_log_key

Entries = list[tuple[bytes, bytes]]


class _Sorted:
    """A map that keeps its keys sorted."""

    def __init__(self, values: dict[bytes, bytes] | None = None) -> None:
        self.values = {} if values is None else dict(values)
        self.keys = sorted(self.values)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def between(self, begin: bytes, end: bytes) -> list[bytes]:
        return self.keys[bisect_left(self.keys, begin) : bisect_left(self.keys, end)]

    def drop(self, begin: bytes, end: bytes) -> None:
        for key in self.between(begin, end):
            del self.values[key]
        del self.keys[bisect_left(self.keys, begin) : bisect_left(self.keys, end)]

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX) -> Entries:
        entries: Entries = []
        size = 0
        for key in self.between(begin, end)[: max(0, limit)]:
            if size >= bytes_max:
                break
            entries.append((key, self.values[key]))
            size += len(key) + len(self.values[key])
        return entries


class MemoryView:
    """A copy of `data`."""

    def __init__(self, data: _Sorted) -> None:
        self._data = _Sorted(data.values)

    def get(self, key: bytes) -> bytes | None:
        return self._data.values.get(key)

    def scan(self, begin: bytes, end: bytes, limit: int) -> Entries:
        return self._data.scan(begin, end, limit)

    def close(self) -> None:
        self._data = _Sorted()


def _bounds(entries: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    if not entries:
        raise Corrupt("SST files: one is empty or missing")
    return entries[0][0], entries[-1][0]


class MemoryEngine:
    """Implements ports.Engine. `crashed(power_lost)` returns the engine that a restart would find."""

    def __init__(self) -> None:
        self._closed = False
        self._writing = Lock()
        self._log, self._data = _Sorted(), _Sorted()
        self._synced, self._flushed = _Sorted(), _Sorted()
        self.checkpoints: dict[str, _Sorted] = {}
        self.files: dict[str, Entries] = {}

    def crashed(self, *, power_lost: bool) -> "MemoryEngine":
        engine = MemoryEngine()
        engine._log = _Sorted((self._synced if power_lost else self._log).values)
        engine._data = _Sorted(self._flushed.values)
        engine._synced, engine._flushed = _Sorted(engine._log.values), _Sorted(engine._data.values)
        engine.checkpoints, engine.files = self.checkpoints, self.files
        return engine

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable.closed()

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._data.values.get(key)

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX) -> Entries:
        self._check_open()
        return self._data.scan(begin, end, limit, bytes_max)

    def last_key(self, begin: bytes, end: bytes) -> bytes | None:
        self._check_open()
        keys = self._data.between(begin, end)
        return keys[-1] if keys else None

    def write_data(
        self, changes: Sequence[tuple[bytes, bytes | None]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        with self._writing:
            self._check_open()
            for begin, end in drops:
                self._data.drop(begin, end)
            for key, value in changes:
                if value is None:
                    self._data.delete(key)
                else:
                    self._data.put(key, value)

    def drop_data(self, begin: bytes, end: bytes) -> None:
        self._check_open()
        self._data.drop(begin, end)

    def view(self) -> MemoryView:
        self._check_open()
        return MemoryView(self._data)

    def write_log(
        self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        with self._writing:
            self._check_open()
            for begin, end in drops:
                self._log.drop(begin, end)
            for key, value in puts:
                self._check_follows(key)
                self._log.put(key, value)

    def _check_follows(self, key: bytes) -> None:
        partition, index = split_log_key(key)
        at = bisect_left(self._log.keys, log_key(partition, 2**64 - 1))
        last = self._log.keys[at - 1] if at else b""
        if last.startswith(key[:2]) and last != log_key(partition, index - 1):
            raise Corrupt(f"log of partition {partition}: operation {index} follows {last.hex()}")

    def log_end(self) -> None:
        """Return nothing: there are no files."""

    def use_format(self, number: int) -> None:
        """Do nothing: there are no formats in memory."""

    def get_log(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._log.values.get(key)

    def scan_log(self, begin: bytes, end: bytes, bytes_max: int) -> Entries:
        self._check_open()
        entries: Entries = []
        size = 0
        for key in self._log.between(begin, end):
            entries.append((key, self._log.values[key]))
            size += len(self._log.values[key])
            if size >= bytes_max:
                break
        return entries

    def log_bounds(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        self._check_open()
        keys = self._log.between(begin, end)
        return (keys[0], keys[-1]) if keys else None

    def sync_log(self) -> None:
        self._check_open()
        self._synced = _Sorted(self._log.values)

    def flush(self) -> None:
        self._check_open()
        self._flushed = _Sorted(self._data.values)

    def checkpoint(self, path: str) -> None:
        self._check_open()
        self.flush()
        self.checkpoints[path] = _Sorted(self._data.values)

    def open_checkpoint(self, path: str) -> MemoryView:
        self._check_open()
        return MemoryView(self.checkpoints[path])

    def make_file(self, path: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._check_open()
        self.files[path] = list(entries)

    def file_bounds(self, paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
        return [_bounds(self.files.get(path, ())) for path in paths]

    def ingest(self, paths: Sequence[str]) -> None:
        self._check_open()
        missing = [path for path in paths if path not in self.files]
        if missing:
            raise Unavailable(f"SST files could not be ingested: {missing[0]} is missing")
        for path in paths:
            self.write_data(self.files.pop(path))
        self.flush()

    def close(self) -> None:
        with self._writing:
            if not self._closed:
                self.flush()
            self._closed = True
