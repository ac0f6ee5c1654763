"""Flushes applied data, and then trims the logs."""

from collections.abc import Callable
from dataclasses import dataclass

from stele.member import limits
from stele.member.background import Background
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.tablet_store import TabletStore
from stele.member.storage import failpoints
from stele.member.storage.volume import Volume


@dataclass(eq=False)
class Flusher:
    """Runs one flush at a time.

    `pin` returns the last operation of a partition that no copy session needs.
    """

    _volume: Volume
    _tablets: TabletStore
    _metadata: MetadataStore
    _pin: Callable[[int], int]
    _background: Background
    _flushing: bool = False

    def __post_init__(self) -> None:
        self._flushed_at = self._background.now()

    def flush_if_due(self) -> None:
        """Flush when the interval or the amount of unflushed data is exceeded."""
        applied, now = self._tablets.applied_bytes, self._background.now()
        due = now - self._flushed_at >= limits.FLUSH_SECONDS and applied > 0
        if (due or applied >= limits.FLUSH_BYTES) and not self._flushing:
            self._background.spawn(self.flush())

    async def flush(self) -> None:
        """Sync the log, flush the data, trim the logs and sync them, in this order."""
        self._flushing = True
        try:
            self._flushed_at = self._background.now()
            ends = self._tablets.begin_flush()
            files, segments = self._volume.log_files(), self._tablets.engine.log_end()
            await self._metadata.sync_log()
            failpoints.hit("flush.synced")
            await self._background.in_thread(self._tablets.engine.flush)
            await self._background.in_thread(self._volume.note_log_end, files, segments)
            failpoints.hit("flush.flushed")
            self._tablets.end_flush(ends, self._pin)
            # A sync deletes the files of what was trimmed; on a full volume no write would bring one.
            await self._metadata.sync_log()
        finally:
            self._flushing = False
