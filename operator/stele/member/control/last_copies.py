"""Which partitions may have their last copy in quarantine: nothing of them is purged."""

from collections.abc import Callable

WORD_SECONDS = 60.0
"""Seconds for which a master's word counts."""


class LastCopies:
    """What the master last said of partitions that no reachable member of their row has a copy of.

    Without a recent word, every partition may be such a one.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._without_copy: frozenset[int] | None = frozenset()
        self._said_at = float("-inf")

    def on_exchange(self, without_copy: tuple[int, ...] | None) -> None:
        """Note what the master says; None is said by one that does not know of it."""
        self._without_copy = None if without_copy is None else frozenset(without_copy)
        self._said_at = self._now()

    def may_be_here(self, partition: int) -> bool:
        if self._now() - self._said_at > WORD_SECONDS:
            return True
        return self._without_copy is not None and partition in self._without_copy
