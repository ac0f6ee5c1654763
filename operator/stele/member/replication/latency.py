"""Durations for the metrics: a histogram that costs one bisection for any number of samples."""

from bisect import bisect_left

from stele.core.control.commands import LATENCY_BOUNDS_SECONDS


class Histogram:
    """Counts per bound, and the sum."""

    __slots__ = ("_counts", "sum_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float, samples: int = 1) -> None:
        """Count `samples` samples of the same duration."""
        self._counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += samples
        self.sum_seconds += seconds * samples

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples up to each bound and above the one before, then those above the last one."""
        return tuple(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of samples up to it), in Prometheus' form."""
        found, total = [], 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS_SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class HandOverTimes:
    """How long partitions were frozen here, while clients waited. `seconds` has one sample for each."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self._frozen_at: dict[int, float] = {}

    def begin(self, partition: int, now: float) -> None:
        self._frozen_at[partition] = now

    def end(self, partition: int, now: float) -> None:
        """Count it, if the partition was frozen: a newer row says who owns it, or it was thawed."""
        began = self._frozen_at.pop(partition, None)
        if began is not None:
            self.seconds.add(now - began)
