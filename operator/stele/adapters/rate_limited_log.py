"""Limits how often a line is logged, and counts suppressed lines."""

import time
from collections.abc import Callable


class RateLimitedLog:
    """Admits one line per `seconds`."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._next_at = 0.0
        self._suppressed = 0

    def admit(self) -> int | None:
        """Return how many lines were suppressed before this one; None when this one is suppressed."""
        if self._now() < self._next_at:
            self._suppressed += 1
            return None
        suppressed, self._suppressed = self._suppressed, 0
        self._next_at = self._now() + self._seconds
        return suppressed
