"""How much of clients' work one turn of the event loop does, so that nothing else waits for long."""

from collections import deque
from collections.abc import Callable
from typing import Any

from stele.member import limits

Work = Callable[[], object]


class Turn:
    """What was done in this turn, and what waits for the next ones, in order. `call_soon` is the loop's.

    `entries_max` and `bytes_max` are the most that a turn did so far.
    """

    def __init__(self, call_soon: Callable[[Work], Any]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[tuple[int, Work]] = deque()
        self._called = False
        self.entries = self.bytes = 0
        self.entries_max = self.bytes_max = 0

    def fits(self, entries: int) -> bool:
        """Whether so many can be done now. Whatever comes first in a turn is."""
        if not self.entries:
            return True
        few = self.entries + entries <= limits.TURN_ENTRIES_MAX
        return few and self.bytes <= limits.TURN_BYTES_MAX - limits.REPLY_BYTES - limits.REQUEST_BYTES

    def spend(self, entries: int, size: int) -> None:
        """So much was done."""
        self.entries += entries
        self.bytes += size
        self._call()

    def later(self, entries: int, work: Work) -> None:
        """Do it in one of the next turns, when so many entries fit."""
        self._waiting.append((entries, work))
        self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._call_soon(self._begin)

    def _begin(self) -> None:
        """The next turn."""
        self.entries_max = max(self.entries_max, self.entries)
        self.bytes_max = max(self.bytes_max, self.bytes)
        self._called = False
        self.entries = self.bytes = 0
        waiting = len(self._waiting)
        if waiting:
            self._call()
        while waiting and self.fits(self._waiting[0][0]):
            waiting -= 1
            self._waiting.popleft()[1]()
