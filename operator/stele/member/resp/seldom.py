"""What would fill the log is said seldom, with how often it was not said."""

import time
from collections.abc import Callable


class Seldom:
    """One turn in `seconds`."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._next_at = 0.0
        self._missed = 0

    def turn(self) -> int | None:
        """How many turns were missed before this one; None: this one is missed, too."""
        if self._now() < self._next_at:
            self._missed += 1
            return None
        missed, self._missed = self._missed, 0
        self._next_at = self._now() + self._seconds
        return missed
