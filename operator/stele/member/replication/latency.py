"""A histogram that costs one bisection per sample."""

from bisect import bisect_left

BOUNDS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)


class Histogram:
    """Counts per bound, and the sum."""

    __slots__ = ("_counts", "sum_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float, samples: int = 1) -> None:
        """Count `samples` samples of the same duration."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += samples
        self.sum_seconds += seconds * samples

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of samples up to it), in Prometheus' form."""
        found, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found
