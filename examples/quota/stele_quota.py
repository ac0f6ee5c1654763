"""Rate limits: how often something may be done within so many seconds, counted at one member per name.

A name belongs to the partition that its bytes hash to, and the owner of that partition counts it, in memory.
When the partition moves the counts go along. When the owner is lost, the new one knows the counts as they
were when the partition last moved: a limit may then be used again before its window ends.
"""

import os
import socketserver
import struct
import threading
import time

from stele.core.kv.keyslot import partition_of
from stele.errors import SteleError
from stele.services import Changes, Context, PartitionMigrationEvent

PORT = 7020
NAME_BYTES_MAX = 200
NAMES_MAX = 10_000
"""Names that are counted at once in one partition."""

_COUNT = struct.Struct(">Qd")
"""How often it was used, and when the window ends (Unix seconds)."""

Counts = dict[bytes, tuple[int, float]]


class Quota:
    """A `stele.services.MigrationAwareService`. The lock is held while it counts and while it hands over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, Counts] = {}

    # -- what the member calls

    def start(self, context: Context) -> None:
        self._context = context
        place = (os.environ.get("STELE_BIND", "0.0.0.0"), int(os.environ.get("QUOTA_PORT", PORT)))
        self._server = _Server(place, _Lines)
        self._server.quota = self
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def before_migration(self, event: PartitionMigrationEvent) -> None:
        return

    def prepare_replication(self, event: PartitionMigrationEvent, namespace: str = "") -> Changes:
        with self._lock:
            counts = self._live(event.partition)
            stored = self._context.entries(event.partition, limit=NAMES_MAX)
            gone: dict[bytes, bytes | None] = {name: None for name, _ in stored if name not in counts}
            return gone | {name: _COUNT.pack(*count) for name, count in counts.items()}

    def commit_migration(self, event: PartitionMigrationEvent) -> None:
        """Who owns it now reads what was handed over, at the next request."""
        if (event.current_replica_index == 0) is not (event.new_replica_index == 0):
            with self._lock:
                self._counts.pop(event.partition, None)

    def rollback_migration(self, event: PartitionMigrationEvent) -> None:
        return

    # -- counting

    def take(self, name: bytes, limit: int, seconds: float) -> str:
        """`OK n` (n are left), `WAIT s` (for so long), `ASK m` (of member m), or `ERR why`."""
        if not self._context.partitions:
            return "ERR this member does not know its cluster yet"
        partition = partition_of(name, self._context.partitions)
        with self._lock:
            if not self._context.serves(partition):
                return f"ASK {self._context.owner(partition)}"
            counts = self._live(partition)
            if name not in counts and len(counts) >= NAMES_MAX:
                return f"ERR {NAMES_MAX} names are counted in this partition: wait until a window ends"
            used, until = counts.get(name, (0, time.time() + seconds))
            if used >= limit:
                return f"WAIT {max(0.0, until - time.time()):.3f}"
            counts[name] = (used + 1, until)
            return f"OK {limit - used - 1}"

    def _live(self, partition: int) -> Counts:
        """The counts whose window is not over; those that were handed over when nothing is known yet."""
        if partition not in self._counts:
            stored = self._context.entries(partition, limit=NAMES_MAX)
            self._counts[partition] = {name: _COUNT.unpack(count) for name, count in stored}
        now = time.time()
        live = {name: count for name, count in self._counts[partition].items() if count[1] > now}
        self._counts[partition] = live
        return live


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    quota: Quota


class _Lines(socketserver.StreamRequestHandler):
    """`TAKE name limit seconds`, one request a line."""

    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline(NAME_BYTES_MAX + 100):
            self.wfile.write(self._answer(line).encode() + b"\n")

    def _answer(self, line: bytes) -> str:
        try:
            command, name, limit, seconds = line.split()
            if command != b"TAKE" or len(name) > NAME_BYTES_MAX or not 0 < float(seconds) < 1e9:
                raise ValueError
            return self.server.quota.take(name, int(limit), float(seconds))
        except ValueError:
            return f"ERR expected TAKE name limit seconds, with a name of at most {NAME_BYTES_MAX} bytes"
        except (SteleError, TimeoutError) as error:
            return f"ERR {error}"
