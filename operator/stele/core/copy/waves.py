"""How many tablets may be copied at once, so that all of them catch up from the log afterwards.

Tablets that are copied at the same time share the bandwidth, so each takes as long as all of them. Meanwhile
the owner of each keeps the log from its snapshot on: W bytes per second for T seconds. What is copied to a
member at once is a *wave*. It is cut so that the logs that it needs stay within half of the space that a
member gives them; a tablet is always copied when no other is, whatever it needs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from stele.core.table.ids import MemberIndex

UNLIMITED_BYTES_PER_SECOND = 64 << 20
"""Assumed rate of copies without a limit. Where disks are slower, copies fail and are tried smaller."""

LOG_SPACE_PERCENT = 20
SNAPSHOT_SPACE_PERCENT = 50
"""Default space of the logs that copies need, and of one session's snapshot, as shares of a volume."""

TABLET_SHARE = 0.5
"""Most of the log's space that one tablet's log may take."""

SPACE_SHARE = 0.5
"""Share of the log's space that waves may need: estimates are wrong, and tablets have to catch up."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One tablet on its way: bytes left to copy, and the log that its owner keeps for it.

    `parallel_max` is the largest wave that it takes part in.
    """

    owner: MemberIndex
    destination: MemberIndex
    bytes_left: int
    written_bytes_per_second: int = 0
    log_bytes: int = 0
    parallel_max: int = 1 << 30


class Waves:
    """Tablets that are being copied, by owner and by destination."""

    def __init__(self, bytes_per_second: int, log_space_bytes: int, flows: Iterable[Flow] = ()) -> None:
        self._rate = bytes_per_second or UNLIMITED_BYTES_PER_SECOND
        self._log_bytes_max = log_space_bytes * SPACE_SHARE
        self._left = Counter[MemberIndex]()
        self._of_owner: dict[MemberIndex, list[Flow]] = defaultdict(list)
        self._to: dict[MemberIndex, list[Flow]] = defaultdict(list)
        self._kept_free: set[MemberIndex] = set()
        for flow in flows:
            self._add(flow)

    def _add(self, flow: Flow) -> None:
        for member in (flow.owner, flow.destination):
            self._left[member] += flow.bytes_left
        self._of_owner[flow.owner].append(flow)
        self._to[flow.destination].append(flow)

    def admit(self, flow: Flow) -> bool:
        """Add a tablet, unless it or another one would not end in time with it.

        After a refusal nothing else is added for that destination: otherwise a large tablet would wait until
        all small ones are copied, however urgent it is.
        """
        if flow.destination in self._kept_free:
            return False
        alone = not self._to[flow.destination] and not self._of_owner[flow.owner]
        self._add(flow)
        if alone or self._ends(flow):
            return True
        self._remove(flow)
        self._kept_free.add(flow.destination)
        return False

    def _remove(self, flow: Flow) -> None:
        for member in (flow.owner, flow.destination):
            self._left[member] -= flow.bytes_left
        self._of_owner[flow.owner].pop()
        self._to[flow.destination].pop()

    def _ends(self, flow: Flow) -> bool:
        wave = self._to[flow.destination]
        if len(wave) > min(each.parallel_max for each in wave):
            return False
        owners = {flow.owner} | {each.owner for each in wave}
        return all(self._log_bytes(owner) <= self._log_bytes_max for owner in owners)

    def _log_bytes(self, owner: MemberIndex) -> float:
        """Return the log that the owner will have kept when its tablets are copied."""
        return sum(
            each.log_bytes
            + each.written_bytes_per_second
            * max(self._left[each.owner], self._left[each.destination])
            / self._rate
            for each in self._of_owner[owner]
        )


def needed_log_bytes(size_bytes: int, written_bytes_per_second: int, bytes_per_second: int) -> int:
    """Return the log that the copy of one tablet needs when nothing else is copied."""
    return size_bytes * written_bytes_per_second // (bytes_per_second or UNLIMITED_BYTES_PER_SECOND)
