"""How a copy job's tablets are divided among workers, and how fast their bytes are sent."""

from collections.abc import Sequence
from dataclasses import dataclass

EXECUTORS_MAX = 100
CORES_MAX = 64
IDLE_SECONDS_MAX = 86_400
"""Upper limits of what a user may request of Spark: executors, cores of each, and how long a driver idles."""

SLICES_PER_SLOT_MAX = 2

SPACE_MARGIN_BYTES = 256 << 20
"""Free bytes that a destination keeps beyond the copy: its logs and RocksDB need space meanwhile."""

STOP_FREE_BYTES = 128 << 20
"""A running copy stops below this many free bytes: at half of it members refuse clients' writes."""

BURST_SECONDS = 0.1
"""Length of a burst after a pause, as time at the rate."""

PIECE_SECONDS = 10.0
PIECE_BYTES_MIN = 1 << 20
PIECE_BYTES_MAX = 64 << 20
"""Seconds at its session's rate that one piece of a fragment takes, within these sizes: an attempt that fails
is repeated from the beginning of its piece."""


def lack_of_space(coming_bytes: int, free_bytes: int) -> str:
    """Return why a volume has no room for a copy that is about to start; empty when it has."""
    if coming_bytes + SPACE_MARGIN_BYTES <= free_bytes:
        return ""
    return (
        f"the copy needs {coming_bytes} bytes and {SPACE_MARGIN_BYTES} must stay free; {free_bytes} are free"
    )


def piece_bytes(bytes_per_second: int) -> int:
    """Return the size of a piece at this rate; 0 is no limit."""
    wanted = int(bytes_per_second * PIECE_SECONDS) if bytes_per_second else PIECE_BYTES_MAX
    return min(max(wanted, PIECE_BYTES_MIN), PIECE_BYTES_MAX)


@dataclass(slots=True)
class Pace:
    """A rate limit: returns how long to wait before bytes are sent, so that the rate holds in the long run.

    `due_seconds` is the time at which all bytes so far would have been sent at the rate. Senders may share a
    Pace: each waits behind those before it.
    """

    bytes_per_second: int
    due_seconds: float = float("-inf")

    def change_rate(self, bytes_per_second: int) -> None:
        """Send at another rate from now on; 0 for no limit."""
        self.bytes_per_second = bytes_per_second

    def wait_seconds(self, size_bytes: int, now: float) -> float:
        """Count bytes that are about to be sent; return the seconds to wait first, 0 without a rate."""
        if not self.bytes_per_second:
            return 0.0
        self.due_seconds = max(self.due_seconds, now - BURST_SECONDS) + size_bytes / self.bytes_per_second
        return max(0.0, self.due_seconds - now)


def slices(sizes: Sequence[int], slots: int) -> list[list[int]]:
    """Divide the indexes of `sizes` (bytes) into lists of nearly equal sums: none empty, two per slot.

    Every Spark task costs about 15 ms, so few slices with many items each are best; two per slot, so that a
    slow one does not hold up the end. Largest first onto the smallest slice; deterministic. Raises ValueError
    for less than one slot.
    """
    if slots < 1:
        raise ValueError(f"slots is {slots}; expected 1 or more")
    count = min(SLICES_PER_SLOT_MAX * slots, len(sizes))
    parts: list[list[int]] = [[] for _ in range(count)]
    sums = [(0, 0)] * count
    for item in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        least = min(range(count), key=lambda at: (sums[at], at))
        parts[least].append(item)
        sums[least] = (sums[least][0] + sizes[item], len(parts[least]))
    return parts
