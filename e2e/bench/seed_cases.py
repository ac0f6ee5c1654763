"""What `seed` measures: series of events, and what is found of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIB = 1 << 20
VALUE_BYTES = 16_384
RATE = 500
"""Reads per second of all clients together, and as many writes."""
CLIENT_THREADS = 8
FEW, MANY = 3, 4
"""Members with the one that comes and goes, and without it."""
EVENT_SECONDS_MAX = 3_600
"""Of one event: at 20x two cores move 17 partitions a second under this load, of more than 8,000."""


class Event(StrEnum):
    """What happens to four members with two copies, in this order."""

    SCALE_DOWN = "scale-down, 4 to 3"
    SCALE_UP = "scale-up, 3 to 4"
    SHUTDOWN = "shutdown and return"
    LOSS = "permanent loss, 4 to 3"


@dataclass(frozen=True, slots=True)
class Series:
    """All events, one after the other, on a cluster of its own.

    `parallel`: migrations that a member takes part in at once. `maps`: keyspaces (elsewhere maps) that the
    entries are in.
    """

    partitions: int
    data_bytes: int
    parallel: int
    maps: int

    def __str__(self) -> str:
        maps = "1 map" if self.maps == 1 else f"{self.maps} maps"
        return f"{self.partitions:,} partitions, {self.parallel}x, {maps}"


FEWER, MOST = 271, 16_384
"""Partitions. The published benchmark has 20,000, more than there can be here: each needs a slot of its own.

One migration at a time takes so long for each that fewer have to show what 1x, 5x and 20x change.
"""
FULL = (
    Series(MOST, 256 * MIB, 20, 1),
    *(Series(FEWER, 1024 * MIB, parallel, 1) for parallel in (1, 5, 20)),
    Series(MOST, 256 * MIB, 20, 10),
)
"""First what the published benchmark has, so that a run that is ended early has it, too.

Each of many partitions has one value: with 1 GiB two cores take an hour for the events of one series.
"""
QUICK = tuple(Series(271, 64 * MIB, *each) for each in ((1, 1), (20, 1), (20, 10)))


@dataclass(frozen=True, slots=True)
class Measured:
    """Moments (seconds of the monotonic clock): it began, all was safe; replicas on a member that had none.

    `member_seconds` is how long the member took that stops in order, until its process had ended.
    """

    begin: float
    safe: float
    replicas_moved: int
    member_seconds: float | None = None
