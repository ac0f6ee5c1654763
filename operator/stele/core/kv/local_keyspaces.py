"""All keyspaces with `mode: Invalidation` at one member: what it answers, tells others, and hears of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stele.core.kv.commands import Reply
from stele.core.kv.cover import Cover, Listing, Rounds
from stele.core.kv.local_cache import LocalCache, Misses
from stele.core.kv.local_commands import run


class Moment(NamedTuple):
    """One moment, in seconds of the monotonic clock and in Unix milliseconds."""

    seconds: float
    unix_ms: int


class Ran(NamedTuple):
    """Replies; the keys that changed here; those of them that all other members have to drop."""

    replies: list[Reply]
    changed: list[bytes]
    told: list[bytes]


class LocalKeyspaces:
    """The caches of one member by keyspace, and what it knows of the others.

    Whatever is told to others has changed here before. A session with another member begins with no entries:
    changes of which it told may have been lost.
    """

    def __init__(self, listing: Listing) -> None:
        self.cover, self.listing, self.rounds = Cover(), listing, Rounds()
        self.caches: dict[bytes, LocalCache] = {}
        self._clock = 0

    def covered(self, now: float) -> bool:
        """Return whether this member may answer hits."""
        return now < self.cover.until

    def use(self, bytes_max: Mapping[bytes, int]) -> None:
        """Have these keyspaces, each with so many bytes, and no others."""
        for keyspace in [each for each in self.caches if each not in bytes_max]:
            self._clock = max(self._clock, self.caches.pop(keyspace).clock + 1)
        for keyspace, most in bytes_max.items():
            if keyspace in self.caches:
                self.caches[keyspace].limit(most)
            else:
                self.caches[keyspace] = LocalCache(keyspace, most, self._clock)

    def list_changed(self, version: int, others: Iterable[int] | None, now: float) -> None:
        """Use a list of members; `others` is None while this member is on none.

        What a member that left had to tell is lost.
        """
        others = None if others is None else frozenset(others)
        if self.cover.list_changed(version, others):
            self._clear()
        if others is not None:
            self.listing.list_changed(others, now)

    def listing_changed(self, listing: Listing) -> None:
        """Forget who has this member on its list: it has another place there now."""
        self.listing = listing

    def takes_writes(self, now: float, lease_seconds: float) -> bool:
        """Return whether writes may be answered, where leases are this long."""
        return not self.cover.outdated and self.listing.takes_writes(now, lease_seconds)

    def session_began(self, member: int) -> None:
        """Begin a session with another member, which may have told of changes before."""
        self.cover.session_ended(member)
        self._clear()

    def _clear(self) -> None:
        for cache in self.caches.values():
            cache.clear()

    def run(
        self,
        cache: LocalCache,
        commands: Iterable[Sequence[bytes]],
        misses: Misses,
        now: Moment,
        ttl_ms: int = 0,
    ) -> Ran:
        """Run single-key commands in order; each sees the effects of those before it."""
        covered, ran = self.covered(now.seconds), Ran([], [], [])
        for args in commands:
            outcome = run(args, cache, misses, now.unix_ms, ttl_ms, covered=covered)
            ran.replies.append(outcome.reply)
            if outcome.changed:
                ran.changed.append(args[1])
            if outcome.told:
                ran.told.append(args[1])
        return ran

    def drop(self, keyspace: bytes, keys: Iterable[bytes] | None) -> None:
        """Drop keys that changed at another member; all of them for None."""
        cache = self.caches.get(keyspace)
        if cache is None:
            return
        if keys is None:
            cache.clear()
            return
        for key in keys:
            cache.change(key, None)
