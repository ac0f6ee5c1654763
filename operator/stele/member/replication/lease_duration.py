"""How long the leases last that this member grants, across restarts and changes of the setting."""

import logging
from collections.abc import Awaitable, Callable

from stele.core.tablet.leases import LeaseGrantor
from stele.errors import Corrupt
from stele.member.settings import LEASE_MS_MAX
from stele.member.storage.disk_full import is_saved, raise_unless_disk_full
from stele.member.storage.volume import LEASE, Volume
from stele.wire.storage.volume import LeaseFile, encode_file

log = logging.getLogger("stele.leases")


def stored_lease(volume: Volume, settings_ms: int) -> LeaseFile | None:
    """Return what the volume has, after writing it for the first time; None while the volume is full.

    When it is damaged, the longest lease that there may be was granted.
    """
    try:
        if (stored := volume.load_lease()) is not None:
            return stored
    except Corrupt as error:
        log.error("the durations of leases are unknown, so fences wait for the longest: %s", error)
        return LeaseFile(settings_ms, LEASE_MS_MAX)
    first = LeaseFile(settings_ms, settings_ms)
    try:
        volume.write({LEASE: encode_file(first)})
    except OSError as error:
        raise_unless_disk_full(error)
        return None
    return first


class LeaseDuration:
    """Changes the duration of leases that the grantor grants.

    Invariant: `longest_ms` on the volume is at least the duration of each lease that may still be valid, so
    that a restarted process waits for it before a fence is in force. A longer duration is therefore written
    before it is granted; a shorter one is granted first, and the longest is lowered when earlier ones are
    over.
    """

    def __init__(
        self,
        stored: LeaseFile | None,
        settings_ms: int,
        save: Callable[[LeaseFile], Awaitable[None]],
        now: Callable[[], float],
    ) -> None:
        self._stored, self._save, self._now = stored, save, now
        current_ms = settings_ms if stored is None else stored.current_ms
        # An older build, which writes no such file, may have granted those of the settings in between.
        longest_ms = max(settings_ms, 0 if stored is None else stored.longest_ms)
        self._in_force = LeaseFile(current_ms, longest_ms)
        self._settled_at = now() + longest_ms / 1000
        self.grantor = LeaseGrantor(now(), current_ms / 1000, longest_ms / 1000)

    async def adopt(self, wanted_ms: int | None) -> None:
        """Grant leases of this duration from now on; None keeps it. Called for each exchange.

        On a full volume it stays as it is until the next call.
        """
        before, settled = self._in_force, self._now() >= self._settled_at
        current_ms = before.current_ms if wanted_ms is None else wanted_ms
        outstanding_ms = before.current_ms if settled else before.longest_ms
        wanted = LeaseFile(current_ms, max(current_ms, outstanding_ms))
        if wanted == self._stored:
            return
        if not await is_saved(self._save(wanted)):
            return
        self._stored = self._in_force = wanted
        self.grantor.change(current_ms / 1000)
        if current_ms < before.current_ms:
            self._settled_at = max(self._settled_at, self._now() + before.current_ms / 1000)
