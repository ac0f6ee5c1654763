"""How the tablets of one copy job are shared out among workers, and how fast their bytes may go."""

from collections.abc import Sequence
from dataclasses import dataclass

EXECUTORS_MAX = 100
CORES_MAX = 64
IDLE_SECONDS_MAX = 86_400
"""What a user may ask of Spark, and a copier takes: executors, cores of each, and how long a driver waits."""

SLICES_PER_SLOT_MAX = 2

SPACE_MARGIN_BYTES = 256 << 20
"""Free bytes that a destination must keep beyond what comes: its logs and RocksDB need room meanwhile."""

STOP_FREE_BYTES = 128 << 20
"""A copy under way stops when less is free: at half of it members refuse the writes of clients."""

BURST_SECONDS = 0.1
"""What may be sent at once after a pause, as time at the rate."""


def lack_of_space(coming_bytes: int, free_bytes: int) -> str:
    """Why a volume has no room for a copy that is about to begin; empty when it has."""
    if coming_bytes + SPACE_MARGIN_BYTES <= free_bytes:
        return ""
    return f"{coming_bytes} bytes are to come, {SPACE_MARGIN_BYTES} must stay free, {free_bytes} are free"


@dataclass(slots=True)
class Pace:
    """Says how long to wait before bytes are sent, so that no more than the rate goes in the long run.

    `due_seconds` is when all that was sent so far would have gone at the rate. Any number of senders may
    share it: each waits behind those before.
    """

    bytes_per_second: int
    due_seconds: float = float("-inf")

    def wait_seconds(self, size_bytes: int, now: float) -> float:
        """Count bytes that are about to be sent; how long to wait before that. 0 without a rate."""
        if not self.bytes_per_second:
            return 0.0
        self.due_seconds = max(self.due_seconds, now - BURST_SECONDS) + size_bytes / self.bytes_per_second
        return max(0.0, self.due_seconds - now)


def slices(sizes: Sequence[int], slots: int) -> list[list[int]]:
    """Places of `sizes` (bytes) in lists of nearly equal sums, none empty, a few per slot at most.

    Few slices with many items each, because every Spark task costs about 15 ms; two per slot, so that a
    slow one does not hold up the end. Largest first onto the smallest slice; the same input gives the same
    slices. ValueError for less than one slot.
    """
    if slots < 1:
        raise ValueError(f"slots: {slots}, expected 1 or more")
    count = min(SLICES_PER_SLOT_MAX * slots, len(sizes))
    made: list[list[int]] = [[] for _ in range(count)]
    sums = [(0, 0)] * count
    for place in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        least = min(range(count), key=lambda at: (sums[at], at))
        made[least].append(place)
        sums[least] = (sums[least][0] + sizes[place], len(made[least]))
    return made
