"""Which partitions may have their last copy in quarantine: nothing of them is purged."""

from collections.abc import Callable, Mapping

from stele.member.replication.links import Link
from stele.member.replication.table_cache import TableCache

WORD_SECONDS = 60.0
"""Seconds for which a master's word counts."""


class LastCopies:
    """What the master last said of partitions that no reachable member of their row has a copy of.

    Without a recent word, every partition may be such a one; so may one of whose row no member is connected,
    because the master learns of that later.
    """

    def __init__(self, table: TableCache, links: Mapping[int, Link], now: Callable[[], float]) -> None:
        self._table, self._links, self._now = table, links, now
        self._without_copy: frozenset[int] | None = frozenset()
        self._said_at = float("-inf")

    def on_exchange(self, without_copy: tuple[int, ...] | None) -> None:
        """Note what the master says; None is said by one that does not know of it."""
        self._without_copy = None if without_copy is None else frozenset(without_copy)
        self._said_at = self._now()

    def may_be_here(self, partition: int) -> bool:
        if self._now() - self._said_at > WORD_SECONDS or not self._near(partition):
            return True
        return self._without_copy is not None and partition in self._without_copy

    def _near(self, partition: int) -> bool:
        members = self._table.rows[partition].members
        return self._table.me in members or any(
            member in self._links and self._links[member].ready for member in members
        )
