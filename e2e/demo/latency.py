"""Latencies as a histogram of buckets that grow by 2 %: small, mergeable, exact enough for a p99."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

GROWTH = 1.02
_LOG_GROWTH = math.log(GROWTH)
_SMALLEST_SECONDS = 1e-6


@dataclass
class Histogram:
    """Counts by bucket; `percentile` is at most 2 % above the true value, `max_seconds` is exact."""

    counts: Counter[int] = field(default_factory=Counter)
    max_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one latency."""
        bucket = math.ceil(math.log(max(seconds, _SMALLEST_SECONDS) / _SMALLEST_SECONDS) / _LOG_GROWTH)
        self.counts[bucket] += 1
        self.max_seconds = max(self.max_seconds, seconds)

    def merge(self, other: Histogram) -> None:
        """Take the counts of another histogram in."""
        self.counts.update(other.counts)
        self.max_seconds = max(self.max_seconds, other.max_seconds)

    @property
    def total(self) -> int:
        """Number of latencies."""
        return self.counts.total()

    def percentile(self, percent: float) -> float:
        """Seconds that `percent` of the latencies do not exceed; 0 when there is none."""
        wanted = math.ceil(self.total * percent / 100)
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return float(min(_SMALLEST_SECONDS * GROWTH**bucket, self.max_seconds))
        return 0.0
