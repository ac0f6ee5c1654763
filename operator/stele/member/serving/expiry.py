"""Removes expired entries in the background, through the log, a bounded number at a time.

Expired entries are invisible already; this reclaims their space. The owner's clock decides, and removals are
logged, so that all replicas remove the same entries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stele.errors import Corrupt
from stele.member import limits
from stele.member.replication import passes
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.replication.write_gate import PASSIVE, WriteGate
from stele.member.serving.executor import CommandExecutor
from stele.wire.storage.keys import tablet_range
from stele.wire.storage.log_record import Change

ENTRY_BYTES_MIN = 64


@dataclass(eq=False)
class Expiry:
    """Cycles through owned partitions, resuming each where it stopped. `_removed` hears of each operation."""

    _tablets: TabletStore
    _executor: CommandExecutor
    _delayed_replies: DelayedReplies
    _gate: WriteGate
    _removed: Callable[[Replica, Sequence[Change]], None]
    _partition: int = -1
    _after: bytes = b""

    def run_once(self) -> int:
        """Process some entries and return how many were removed; none while writes are refused or delayed.

        A tablet with damaged data is taken offline; the others are still processed.
        """
        if self._gate.refusal is PASSIVE or not self._delayed_replies.has_room:
            return 0
        replicas = self._tablets.replicas
        owned = sorted(each.partition for each in passes.with_entries(replicas) if not each.loading)
        entries_left, bytes_left, removed = limits.EXPIRY_ENTRIES, limits.EXPIRY_BYTES, 0
        for _ in owned:
            if entries_left <= 0 or bytes_left <= 0:
                break
            replica = replicas[self._current(owned)]
            try:
                page = self._page(replica, entries_left, bytes_left)
            except Corrupt as error:
                self._tablets.break_off(replica, error)
                self._after = b""
                continue
            removals = self._executor.remove_expired(replica, page)
            self._removed(replica, removals)
            removed += len(removals)
            entries_left -= max(1, len(page))
            bytes_left -= sum(len(key) + len(value) for key, value in page)
        return removed

    def _current(self, owned: list[int]) -> int:
        """Return the current partition until its end, then the next."""
        if not self._after or self._partition not in owned:
            self._partition = next((p for p in owned if p > self._partition), owned[0])
            self._after = b""
        return self._partition

    def _page(self, replica: Replica, entries_max: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Return the next entries, whose number follows from the tablet's mean entry size."""
        mean_bytes = max(ENTRY_BYTES_MIN, replica.size_bytes // max(1, replica.entries))
        limit = max(1, min(entries_max, bytes_max // mean_bytes))
        begin, end = tablet_range(replica.partition, replica.generation)
        page = self._tablets.engine.scan(max(begin, self._after), end, limit)
        self._after = page[-1][0] + b"\0" if len(page) == limit else b""
        return page
