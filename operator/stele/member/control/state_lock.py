"""The member's side of a change of the cluster state: it agrees, and starts no migration until the end."""

from collections.abc import Callable
from dataclasses import dataclass

from stele.core.control import commands as m
from stele.member.replication.tablet_store import TabletStore

LOCK_SECONDS = 8.0
"""Seconds after which a lock that is not renewed expires, so that a failed master blocks nothing."""

BEGINS = (m.StartTabletCopy, m.AddLearner)
"""Commands that a locked member refuses: they would start a migration that the master does not count."""


@dataclass(eq=False)
class StateLock:
    """Kept in memory: a restarted member has a new incarnation, and the master locks it again.

    A lock for another change replaces the present one, and a higher epoch ends it: a master makes one change
    at a time, and a new master starts again.
    """

    _tablets: TabletStore
    _now: Callable[[], float]
    _id: str = ""
    _until: float = 0.0
    _epoch: int = 0

    @property
    def held(self) -> bool:
        return self._now() < self._until and self._epoch == self._tablets.table.epoch

    def refuses(self, command: m.Command) -> bool:
        begins = isinstance(command, BEGINS) or (isinstance(command, m.HandOver) and command.swaps)
        return begins and self.held

    async def lock(self, command: m.LockState) -> m.Result:
        table = self._tablets.table
        if table.stamp != command.stamp or table.member_list_version != command.member_list_version:
            text = f"stamp {table.stamp} and member list {table.member_list_version} are here"
            return m.Result("STALE_VERSION", text)
        active = self._active()
        if active:
            return m.Result("MIGRATION_ACTIVE", f"migration {active} is not over here")
        self._id, self._until = command.id, self._now() + LOCK_SECONDS
        self._epoch = table.epoch
        return m.Result()

    def _active(self) -> str:
        """Return a migration that this member takes part in; empty when there is none."""
        for replica in self._tablets.replicas.values():
            if replica.meta.copy is not None:
                return replica.meta.copy.id
            if replica.owner is not None and replica.owner.learner is not None:
                return replica.owner.learner.id
        return ""

    async def unlock(self, command: m.UnlockState) -> m.Result:
        if command.id == self._id:
            self._until = 0.0
        return m.Result()
