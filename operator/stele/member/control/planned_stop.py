"""A planned stop: the member asks the master to move everything off it before its process ends.

It serves in full meanwhile. Nothing depends on this: a process that ends without it, or too early, is lost
like any other.
"""

import logging
from typing import Annotated

import msgspec

from stele.core.control.commands import ExchangeRequest
from stele.core.tablet.leases import LeaseGrantor
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.table_cache import TableCache

log = logging.getLogger("stele.planned_stop")


class StoppingRequest(msgspec.Struct, frozen=True):
    """Body of `POST /v1/stopping`: for how long the stop is announced from now on; 0 takes it back."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=limits.STOPPING_SECONDS_MAX)]


class StopStatus(msgspec.Struct, frozen=True):
    """Its answer: whether waiting longer may make the stop cheaper, and why."""

    waiting: bool
    text: str


class PlannedStop:
    """The announcement ends by itself, because the process may outlive it.

    A member that no row names waits only until the announcement is as old as a lease: when it was drained
    to be removed, no master calls it any more.
    """

    def __init__(self, grantor: LeaseGrantor, table: TableCache, background: Background) -> None:
        self._grantor, self._table, self._now = grantor, table, background.now
        self._since = self._until = self._heard_at = float("-inf")
        self._may_stop = False
        self._waiting = True

    @property
    def announced(self) -> bool:
        return self._now() < self._until

    def on_exchange(self, request: ExchangeRequest) -> None:
        """Note an exchange of the present master, whose rows are in effect."""
        self._heard_at = self._now()
        self._may_stop = self.announced and request.may_stop

    def announce(self, seconds: float) -> StopStatus:
        """Report `stopping` for so long from now on, and return how far it is."""
        now = self._now()
        if not self.announced:
            self._since, self._may_stop, self._waiting = now, False, True
            log.info("a planned stop is announced for %g s", seconds)
        self._until = now + seconds
        status = self._status(now)
        if self._waiting and not status.waiting:
            log.info("planned stop: %s", status.text)
        self._waiting = status.waiting
        return status

    def _status(self, now: float) -> StopStatus:
        rows = sum(self._table.me in row.replicas for row in self._table.rows)
        if self._may_stop:
            return StopStatus(waiting=False, text="the master has nothing more to move off this member")
        if not rows and now - self._since >= self._grantor.lease_seconds:
            return StopStatus(waiting=False, text="no row names this member")
        silent_seconds = now - max(self._since, self._heard_at)
        if silent_seconds >= limits.MASTER_AWAY_SECONDS_MAX:
            text = f"{rows} rows name this member, and no master has called for {silent_seconds:.0f} s"
            return StopStatus(waiting=False, text=text)
        return StopStatus(waiting=True, text=f"{rows} rows name this member")
