"""Leases: who may answer reads, and how long an old owner may (docs/reference/protocol.md, "Leases").

The rule: while a member holds a lease of another for a partition, that other follows it there; once the other
was fenced, it names the partition in every later lease, and says for how long the last one without it runs.
Times are seconds of each process's own monotonic clock; only durations travel.
"""

DRIFT = 1 / 16
"""Part of a lease that the holder does not use, for clocks that run at different speeds."""


class LeaseGrantor:
    """Leases that this member gave. One per process: a new one counts as if everybody held one."""

    __slots__ = ("_excluded", "_fences", "_lease_seconds", "_until", "_until_at_start")

    def __init__(self, started: float, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._until_at_start = started + lease_seconds
        self._until: dict[int, float] = {}
        self._excluded: dict[int, set[int]] = {}
        self._fences: dict[int, float] = {}

    def renew(self, holder: int, now: float) -> tuple[float, frozenset[int]]:
        """Grant from now on: (duration in seconds, partitions that the lease is not for)."""
        self._until[holder] = now + self._lease_seconds
        return self._lease_seconds, frozenset(self._excluded.get(holder, ()))

    def follow(self, partition: int, owner: int) -> None:
        """This member follows `owner` for the partition from now on, and nobody else."""
        excluded = self._excluded.get(owner)
        if excluded is not None:
            excluded.discard(partition)
        self._fences.pop(partition, None)

    def leave(self, partition: int, holder: int | None, now: float) -> None:
        """This member follows `holder` no more; its next leases say so."""
        until = self._until_at_start
        if holder is not None:
            self._excluded.setdefault(holder, set()).add(partition)
            until = max(until, self._until.get(holder, until))
        else:
            until = max([until, *self._until.values()])
        if until > now:
            self._fences[partition] = max(until, self._fences.get(partition, until))

    def wait_seconds(self, partition: int, now: float) -> float:
        """How long the left owner may still hold a lease for the partition; 0 for not any more."""
        until = self._fences.get(partition, now)
        if until <= now:
            self._fences.pop(partition, None)
            return 0.0
        return until - now


class LeaseHolder:
    """Leases that this member holds, one per other member, each of one session with it."""

    __slots__ = ("_excluded", "_followed", "_until")

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self._excluded: dict[int, frozenset[int]] = {}
        self._followed: dict[int, dict[int, int]] = {}

    def begin_session(self, granter: int) -> None:
        """Nothing that another session told counts in this one: the granter may have restarted."""
        self._until.pop(granter, None)
        self._excluded.pop(granter, None)
        self._followed[granter] = {}

    def renewed(self, granter: int, asked: float, lease_seconds: float, excluded: frozenset[int]) -> None:
        """The answer to what was asked at `asked`: counted from there, less the drift."""
        until = asked + lease_seconds * (1 - DRIFT)
        self._until[granter] = max(until, self._until.get(granter, until))
        self._excluded[granter] = excluded

    def followed(self, granter: int, partition: int, term: int) -> None:
        """The granter accepted this member as the owner of the partition, in this session and term.

        A lease that excludes the partition still does: this answer may have waited for a disk meanwhile.
        """
        self._followed.setdefault(granter, {})[partition] = term

    def refused(self, granter: int, partition: int) -> None:
        """The granter does not follow this member for the partition."""
        self._followed.get(granter, {}).pop(partition, None)

    def may_read(self, partition: int, term: int, others: tuple[int, ...], now: float) -> bool:
        """Whether every other member of the row grants it. True for a row of one."""
        for granter in others:
            if self._until.get(granter, now) <= now or partition in self._excluded[granter]:
                return False
            if self._followed[granter].get(partition) != term:
                return False
        return True
