"""Leases: who may answer reads, and for how long a former owner may (docs/reference/protocol.md, "Leases").

Invariant: while a member holds a lease of another one for a partition, that one follows it there. Once the
other one is fenced, it excludes the partition from all later leases, and reports for how long the last lease
without the exclusion is valid. Leases are granted to a process, by the incarnation in its greeting: the end
of an earlier process of the same member says nothing about them. Times are seconds of each process's own
monotonic clock; only durations are sent.
"""

from math import inf

REMEMBERED_SECONDS = 60.0
"""Seconds for which the duration of a lease counts after its end: the longest interval of heartbeats."""

UNKNOWN_INCARNATION = 1 << 62
"""Stands for the process of a build that does not name its incarnation, or for any process."""

DRIFT = 1 / 16
"""Fraction of a lease that the holder does not use, since clocks run at different speeds."""


def held_until(asked: float, lease_seconds: float) -> float:
    """Return the end of a lease for its holder: it counts from the request, less the drift."""
    return asked + lease_seconds * (1 - DRIFT)


class LeaseGrantor:
    """Leases that this member granted. After a restart every member counts as a holder for one lease.

    `earlier_seconds` is the longest lease that an earlier process of this member may have granted.
    """

    __slots__ = ("_excluded", "_fences", "_incarnations", "_until", "_until_at_start", "lease_seconds")

    def __init__(self, started: float, lease_seconds: float, earlier_seconds: float = 0.0) -> None:
        self.lease_seconds = lease_seconds
        self._until_at_start = started + max(lease_seconds, earlier_seconds)
        self._until: dict[int, float] = {}
        self._excluded: dict[int, set[int]] = {}
        self._incarnations: dict[int, int] = {}
        self._fences: dict[int, tuple[float, int]] = {}

    def renew(
        self, holder: int, now: float, incarnation: int = UNKNOWN_INCARNATION
    ) -> tuple[float, frozenset[int]]:
        """Grant a lease from now on to that process of a member.

        Returns its duration in seconds and the excluded partitions.
        """
        until = now + self.lease_seconds
        # A longer one that was granted before stays valid.
        self._until[holder] = max(until, self._until.get(holder, until))
        self._incarnations[holder] = max(incarnation, self._incarnations.get(holder, 0))
        return self.lease_seconds, frozenset(self._excluded.get(holder, ()))

    @property
    def until_at_start(self) -> float:
        """When the leases are over that earlier processes of this member granted."""
        return self._until_at_start

    def granted(self, now: float) -> dict[int, float]:
        """Return until when each member holds a lease that this process granted."""
        return {holder: until for holder, until in self._until.items() if until > now}

    def change(self, lease_seconds: float) -> None:
        """Grant leases of this duration from now on. A longer one must be on the volume already."""
        self.lease_seconds = lease_seconds

    def follow(self, partition: int, owner: int) -> None:
        """Follow `owner`, and no other member, for the partition from now on."""
        excluded = self._excluded.get(owner)
        if excluded is not None:
            excluded.discard(partition)
        self._fences.pop(partition, None)

    def leave(self, partition: int, holder: int | None, now: float) -> None:
        """Stop following `holder`; later leases exclude the partition."""
        until, incarnation = self._until_at_start, UNKNOWN_INCARNATION
        if holder is not None:
            self._excluded.setdefault(holder, set()).add(partition)
            until = max(until, self._until.get(holder, until))
            incarnation = self._incarnations.get(holder, 0)
        else:
            until = max([until, *self._until.values()])
        if until > now:
            before, process = self._fences.get(partition, (until, incarnation))
            self._fences[partition] = max(until, before), max(incarnation, process)

    def wait_seconds(self, partition: int, now: float, dead_incarnation: int = 0) -> float:
        """Return how long the former owner may still hold a lease for the partition; 0 when it cannot.

        Leases of its processes up to `dead_incarnation`, which have ended, do not count. To whom a process
        of this member before this one granted leases is not known, so those count always.
        """
        until, incarnation = self._fences.get(partition, (now, 0))
        if until <= now:
            self._fences.pop(partition, None)
            return 0.0
        if incarnation <= dead_incarnation:
            until = self._until_at_start
        return max(until - now, 0.0)


class LeaseHolder:
    """Leases that this member holds, one per other member, each valid within one session with it."""

    __slots__ = ("_excluded", "_followed", "_seconds", "_until")

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._excluded: dict[int, frozenset[int]] = {}
        self._followed: dict[int, dict[int, int]] = {}

    def begin_session(self, granter: int) -> None:
        """Begin a session; discard everything from earlier ones, as the granter may have restarted."""
        self._until.pop(granter, None)
        self._seconds.pop(granter, None)
        self._excluded.pop(granter, None)
        self._followed[granter] = {}

    def renewed(self, granter: int, asked: float, lease_seconds: float, excluded: frozenset[int]) -> None:
        """Record a lease: it counts from the time of the request, less the drift."""
        until = held_until(asked, lease_seconds)
        self._until[granter] = max(until, self._until.get(granter, until))
        self._excluded[granter] = excluded
        self._seconds[granter] = lease_seconds

    def shortest_seconds(self, now: float) -> float:
        """Return the duration of the shortest lease that another member grants; infinite without any.

        One that ended long ago is of a member that is gone.
        """
        since = now - REMEMBERED_SECONDS
        return min((self._seconds[each] for each in self._seconds if self._until[each] > since), default=inf)

    def followed(self, granter: int, partition: int, term: int) -> None:
        """Record that the granter accepted this member as the partition's owner, in this session and term.

        An exclusion in a lease still has precedence: this answer may have waited for a disk.
        """
        self._followed.setdefault(granter, {})[partition] = term

    def refused(self, granter: int, partition: int) -> None:
        """Record that the granter does not follow this member for the partition."""
        self._followed.get(granter, {}).pop(partition, None)

    def read_until(self, partition: int, term: int, others: tuple[int, ...]) -> float:
        """Return until when all other members of the row grant it; -inf when one follows another owner."""
        until = inf
        for granter in others:
            is_excluded = partition in self._excluded.get(granter, ())
            if is_excluded or self._followed.get(granter, {}).get(partition) != term:
                return -inf
            until = min(until, self._until.get(granter, -inf))
        return until

    def may_read(self, partition: int, term: int, others: tuple[int, ...], now: float) -> bool:
        """Return whether all other members of the row grant it; True for a row of one member."""
        for granter in others:
            if self._until.get(granter, now) <= now or partition in self._excluded[granter]:
                return False
            if self._followed[granter].get(partition) != term:
                return False
        return True
