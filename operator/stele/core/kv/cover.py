"""Who answers what in keyspaces with `mode: Invalidation`: cover of readers, and writers that wait.

Each member has entries of its own. A write changes them at the member of its client and is told to all
others; it is answered when each of them has dropped what it had, or answers no hits any more. A member
answers hits while it is *covered*: each other member of its list granted it a lease. It counts a lease from
when it asked (`core.tablet.leases`), the granter counts it from when it answered. What a granter tells
travels in one order with the leases that it grants: a lease that was granted after a change arrives after it.
So the writer waits for the leases before the change alone.

A member that does not know the writer does not miss its leases. So a member takes writes once every other
member of its list was seen to have it on its own list, on its volume, and a lease later: until then a member
that left the list may be covered by those that knew it. For the same reason the lease of a member with a
later list than the reader's own does not cover it, and a member that knows of a later list than its own takes
no writes. The process of a member that left the list has ended, or hears of the list from others: one that
goes on, cut off from all of them, could acknowledge a write of which they do not hear. Times are seconds of
each process's own monotonic clock.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from math import inf


class Cover:
    """Until when this member may answer hits, by the leases that it holds."""

    def __init__(self) -> None:
        self.until = -inf
        self._list_version = 0
        self._others: frozenset[int] | None = None
        self._leases: dict[int, tuple[float, int]] = {}

    @property
    def outdated(self) -> bool:
        """Return whether another member has a later list, on which this one may not be any more."""
        return any(version > self._list_version for _, version in self._leases.values())

    def list_changed(self, version: int, others: Iterable[int] | None) -> frozenset[int]:
        """Use a list of members; None while this member is on none. Returns the members that left."""
        before, self._list_version = self._others or frozenset(), version
        self._others = None if others is None else frozenset(others)
        left = before - (self._others or frozenset())
        for member in left:
            self._leases.pop(member, None)
        self._update()
        return left

    def renewed(self, granter: int, until: float, list_version: int) -> None:
        """Record a lease of a member that has this version of the list; 0 when it does not say.

        `until` counts from when this member asked (`core.tablet.leases.held_until`).
        """
        self._leases[granter] = until, list_version
        self._update()

    def session_ended(self, granter: int) -> None:
        """Forget the lease of a member: what it tells may be lost."""
        self._leases.pop(granter, None)
        self._update()

    def _update(self) -> None:
        others = self._others
        self.until = -inf if others is None else min(map(self._until, others), default=inf)

    def _until(self, granter: int) -> float:
        until, list_version = self._leases.get(granter, (-inf, 0))
        return until if 0 < list_version <= self._list_version else -inf


class Listing:
    """Whether this member may take writes: every other member has it on its list.

    `known_before` says that an earlier process of this member saw that, in the same place of the list. Leases
    that such a process granted are over at `granted_until`.
    """

    def __init__(self, granted_until: float, *, known_before: bool = False) -> None:
        self._from = granted_until
        self._known = known_before
        self._others: frozenset[int] = frozenset()
        self._heard: set[int] = set()
        self._complete_at: float | None = None

    @property
    def known(self) -> bool:
        """Return whether every member has this one on its list: that stays so for as long as it is on it."""
        return self._known

    def list_changed(self, others: Iterable[int], now: float) -> None:
        """Use a list of members."""
        self._others = frozenset(others)
        self._look(now)

    def heard(self, member: int, now: float) -> None:
        """Note that a member asked for a lease: it asks those on the list that it has on its volume."""
        if not self._known and member not in self._heard:
            self._heard.add(member)
            self._look(now)

    def missing(self) -> frozenset[int]:
        """Return the members that may not have this one on their lists."""
        return frozenset() if self._known else self._others - self._heard

    def takes_writes(self, now: float, lease_seconds: float) -> bool:
        """Return whether writes may be answered, where leases are this long."""
        if not self._known and self._complete_at is not None:
            self._known = now >= self._complete_at + lease_seconds
        return self._known and now >= self._from

    def _look(self, now: float) -> None:
        if self.missing():
            self._complete_at = None
        elif self._complete_at is None:
            self._complete_at = now


class Rounds:
    """Which writes wait for which members. Writes are numbered; an answer is about all up to its number."""

    def __init__(self) -> None:
        self._last = 0
        self._missing: dict[int, int] = {}
        self._waits: dict[int, deque[tuple[int, float]]] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def begin(self, leases: Mapping[int, float]) -> int:
        """Return the number of a write that waits for these members, at most until their leases end."""
        self._last += 1
        for member, until in leases.items():
            self._waits.setdefault(member, deque()).append((self._last, until))
        if leases:
            self._missing[self._last] = len(leases)
        return self._last

    def waits(self, number: int) -> bool:
        """Return whether a write is not complete."""
        return number in self._missing

    def answered(self, member: int, number: int) -> list[int]:
        """Return the writes that are complete because a member has dropped what they changed."""
        waits, done = self._waits.get(member), list[int]()
        while waits and waits[0][0] <= number:
            self._arrived(waits.popleft()[0], done)
        return done

    def expired(self, now: float) -> list[int]:
        """Return the writes that are complete because leases have ended."""
        done: list[int] = []
        for waits in self._waits.values():
            while waits and waits[0][1] <= now:
                self._arrived(waits.popleft()[0], done)
        return done

    def _arrived(self, number: int, done: list[int]) -> None:
        self._missing[number] -= 1
        if not self._missing[number]:
            del self._missing[number]
            done.append(number)
