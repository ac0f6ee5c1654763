"""Bounds the clients' work in one turn of the event loop, so that nothing else waits for long."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from stele.member import limits

FREE_ENTRIES, FREE_BYTES = limits.TURN_ENTRIES_MAX // 8, limits.TURN_BYTES_MAX // 8
"""Work up to which no new turn is begun, which costs as much as a read: it counts for later turns, too."""

Work = Callable[[], object]
Result = TypeVar("Result")


class TurnBudget:
    """The work done in this turn, and work queued for later turns. `call_soon` is that of the loop.

    A little work of turns before may be counted as that of this one, never the other way round.
    `entries_max` and `bytes_max` are the maxima of all turns.
    """

    def __init__(self, call_soon: Callable[[Work], Any]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[tuple[int, Work]] = deque()
        self._called = False
        self.entries = self.bytes = 0
        self.entries_max = self.bytes_max = 0

    def fits(self, entries: int) -> bool:
        """Return whether so many entries fit into this turn; the first work of a turn always does."""
        if not self.entries:
            return True
        few = self.entries + entries <= limits.TURN_ENTRIES_MAX
        return few and self.bytes <= limits.TURN_BYTES_MAX - limits.REPLY_BYTES - limits.REQUEST_BYTES

    def spend(self, entries: int, size: int) -> None:
        """Count work that was done."""
        self.entries += entries
        self.bytes += size
        if not self._called and (self.entries > FREE_ENTRIES or self.bytes > FREE_BYTES):
            self._schedule()

    def later(self, entries: int, work: Work) -> None:
        """Queue work for a later turn with room for it."""
        self._waiting.append((entries, work))
        self._schedule()

    def run(self, entries: int, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run work in the first turn with room for it, and count it."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self.fits(entries):
            self._resolve(future, entries, work)
        else:
            self.later(entries, partial(self._resolve, future, entries, work))
        return future

    def _resolve(self, future: "asyncio.Future[Result]", entries: int, work: Callable[[], Result]) -> None:
        """Run queued work; its error goes to the waiter, as raising it here would end the process."""
        if future.done():
            return
        self.spend(entries, 0)
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001  passed on to the waiter
            future.set_exception(error)

    def _schedule(self) -> None:
        if not self._called:
            self._called = True
            self._call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn."""
        self.entries_max = max(self.entries_max, self.entries)
        self.bytes_max = max(self.bytes_max, self.bytes)
        self._called = False
        self.entries = self.bytes = 0
        waiting = len(self._waiting)
        if waiting:
            self._schedule()
        while waiting and self.fits(self._waiting[0][0]):
            waiting -= 1
            self._waiting.popleft()[1]()
