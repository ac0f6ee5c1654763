"""What a loss of power may take with `fsync: Interval` or `Never`: see docs/reference/resources.md.

That is: the last writes, of partitions whose other copies lose power too or are away. The disk tells which
operations it dropped, and since when they had been written. Of acknowledged operations only those may be
lost, and only when nobody else of the row was well meanwhile; with `Interval` they are none older than that.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stele.member.limits import SYNC_INTERVAL_SECONDS
from stele.member.settings import Fsync
from tests.fakes.disk import Dropped
from tests.simulation.history import Loss, Violation
from tests.simulation.kubelet import Machine
from tests.simulation.profile import CLUSTER
from tests.simulation.world import World

WITHIN = "lost within the interval"
AWAY_SECONDS = 30.0
"""So long after a loss its member has caught up, when anybody was there who had more."""
SYNCS = 4
"""Syncs that an operation may have to wait for: of itself, and others that came before it."""


@dataclass
class _Taken:
    """What one member lost of one partition, and whether nobody was there who had it."""

    index: int
    partition: int
    at: float
    dropped: Dropped
    alone: bool = False


class Power:
    """All losses of a run. `away` says whether a place may not have been there."""

    def __init__(self, world: World, away: Callable[[str], bool]) -> None:
        self._world, self._away = world, away
        self._taken: list[_Taken] = []
        world.kubelet.lost = self._lost

    def _lost(self, machine: Machine) -> None:
        profile, now = self._world.profile, self._world.clock.now
        if profile.fsync is Fsync.ALWAYS:
            return
        for partition, dropped in machine.disk.engine.dropped.items():
            index = int(machine.place.rpartition("-")[2])
            self._taken.append(_Taken(index, partition, now, dropped))
            self._world.trace.fault("unsynced writes lost", machine.place)
            if profile.fsync is Fsync.INTERVAL:
                self._check_age(machine, now - dropped.since)
        self.look()

    def _check_age(self, machine: Machine, seconds: float) -> None:
        assert machine.process is not None
        loop = machine.process.loop
        self._world.trace.checked[WITHIN] += 1
        most = SYNC_INTERVAL_SECONDS / loop.rate + SYNCS * loop.disk_seconds[1] + loop.paused_seconds
        if seconds > most:
            text = f"{machine.place}: a write of {seconds:.3f} s ago was lost, {most:.3f} s are the most"
            self._world.clock.fail(Violation(WITHIN, text))

    def look(self) -> None:
        """Note the losses of members without whom nobody of the row is well."""
        rows, now = self._world.rows(), self._world.clock.now
        for each in self._taken:
            if each.alone or now > each.at + AWAY_SECONDS or not rows:
                continue
            members = rows[each.partition].members
            others = [f"{CLUSTER}-{index}" for index in members - {each.index}]
            each.alone = each.index in members and all(self._away(place) for place in others)

    def of(self, partition: int) -> list[Loss]:
        """The losses that a client may see."""
        self.look()
        return [Loss(t.at, t.dropped.since) for t in self._taken if t.alone and t.partition == partition]

    def explains(self, partition: int, index: int) -> bool:
        """Whether a committed operation may be another one now."""
        self.look()
        same = [t for t in self._taken if t.alone and t.partition == partition]
        return any(index >= t.dropped.first for t in same)
