"""Writes to the logs of all tablets, gathered into one call of the engine."""

import logging
from collections.abc import Callable

from stele.errors import Unavailable
from stele.member import limits
from stele.member.replication.stored_log import log_range
from stele.member.storage import failpoints
from stele.member.storage.disk_full import raise_unless_disk_full
from stele.ports.engine import Engine
from stele.wire.storage import keys

log = logging.getLogger("stele.tablets")


class LogWriter:
    """Keeps what is gathered until the engine takes it: nothing is lost while the volume is full.

    `has_room` returns whether the volume has room for that many bytes. Without room the engine is not called:
    a log in RocksDB never recovers from a failed write. Where `look` has found plenty, no write asks until
    the next look. `stalled` is why nothing can be written now, if so, and `refused` whether that is the
    engine's error.
    """

    def __init__(self, engine: Engine, has_room: Callable[[int], bool]) -> None:
        self.has_room = has_room
        self.stalled = ""
        self.refused = False
        self._plenty = False
        self._engine = engine
        self._puts: list[tuple[bytes, bytes]] = []
        self._puts_bytes = 0
        self._cuts: list[tuple[bytes, bytes]] = []

    def look(self) -> None:
        """Look whether there is more room than can be filled before the next look; called at every tick."""
        self._plenty = self.has_room(limits.PLENTY_BYTES)

    def put(self, partition: int, first: int, records: list[bytes], size: int) -> None:
        """Gather operations of `size` bytes from index `first` on; they are written when enough of all
        tablets are gathered."""
        log_key = keys.log_key
        self._puts += [(log_key(partition, index), record) for index, record in enumerate(records, first)]
        self._puts_bytes += size
        if self._puts_bytes >= limits.ENGINE_WRITE_BYTES_MAX:
            self.write()

    def cut(self, partition: int, first: int) -> None:
        """Delete operations from index `first` on, gathered or written; on the volume with the next
        `write`."""
        begin, end = log_range(partition, first)
        self._puts = [(key, record) for key, record in self._puts if not begin <= key < end]
        self._cuts.append((begin, end))
        if self.write():
            failpoints.hit("write.cut")

    def write(self) -> bool:
        """Write everything gathered to the operating system.

        Returns False, and keeps it, while the volume is full.
        """
        if not self._puts and not self._cuts:
            return True
        refusal = self._write()
        if bool(refusal) != bool(self.stalled):
            log.warning("writing the log: %s", refusal or "space is free again, writing continues")
        self.stalled = refusal
        if refusal:
            return False
        puts, self._puts, self._cuts, self._puts_bytes = self._puts, [], [], 0
        if puts:
            failpoints.hit("write.logged")
        return True

    def write_all(self) -> None:
        """Write everything gathered. Raises Unavailable (NO_SPACE) while the volume is full."""
        if not self.write():
            raise Unavailable(self.stalled, "NO_SPACE")

    def _write(self) -> str:
        """Write, or return why it is impossible now."""
        if not (self._plenty or self.has_room(self._puts_bytes)):
            return "the volume is full"
        try:
            self._engine.write_log(self._puts, self._cuts)
        except Unavailable as error:
            raise_unless_disk_full(error)
            self.refused = True
            return str(error)
        self.refused = False
        return ""
