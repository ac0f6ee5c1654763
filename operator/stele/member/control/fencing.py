"""Fence and accept: a member's promises before the master stores a row."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from stele.core.control import commands as m
from stele.core.table.table import Partition
from stele.core.tablet.leases import LeaseGrantor
from stele.core.tablet.lifecycle import state_name
from stele.errors import Conflict, Refused, Stale
from stele.member.background import Background
from stele.member.control.parts import in_parts
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.settings import Fsync, Settings

log = logging.getLogger("stele.fencing")


@dataclass(eq=False)
class Fencing:
    """Makes promises durable before they are reported."""

    _settings: Settings
    _tablets: TabletStore
    _metadata: MetadataStore
    _lease_grantor: LeaseGrantor
    _background: Background

    async def fence(self, command: m.Fence) -> m.Result:
        """Refuse lower terms.

        Returns OK with the last operation, or WAIT while the old owner may hold a lease.
        """
        self._check_step(command.partition, command.term)
        replica = self._tablets.replica_of(command.partition)
        async with replica.lock:
            if command.term < replica.tablet.promised:
                raise Stale(f"term {replica.tablet.promised} was promised", "STALE_TERM")
            self._leave_owner(replica, command.term)
            await self._metadata.save_meta(replica, promised=max(command.term, replica.meta.promised))
        wait = self._wait_seconds(command)
        if wait > 0:
            return m.Result(m.WAIT, "the old owner may hold a lease", int(wait * 1000) + 1, replica.last)
        return m.Result(last=replica.last)

    def _wait_seconds(self, command: m.Fence) -> float:
        """Return how long the old owner may hold a lease.

        The owner's process that the master knows to be dead need not be the last one that holds a lease.
        """
        if command.owner_dead and not command.dead_incarnation:
            return 0.0
        now = self._background.now()
        return self._lease_grantor.wait_seconds(command.partition, now, command.dead_incarnation)

    def _check_step(self, partition: int, version: int) -> None:
        if text := self._tablets.table.version_jump(partition, version):
            raise Refused(text, "BAD_REQUEST")

    def _leave_owner(self, replica: Replica, term: int) -> None:
        """Grant the old owner no lease from now on, even before the promise is on disk."""
        tablet = replica.tablet
        holder = tablet.leader if tablet.leader is not None else tablet.row.owner
        if not tablet.fence(term):
            return
        if replica.owner is not None:
            replica.owner.depose()
        elif holder is not None and holder != self._tablets.me:
            self._lease_grantor.leave(replica.partition, holder, self._background.now())
        log.info("partition %d: fenced below term %d", replica.partition, term)

    async def accept(self, command: m.Accept) -> m.Result:
        """Accept a row that is not published yet."""
        row = command.row
        if not 0 <= row.partition < len(self._tablets.rows):
            raise Refused(f"partition {row.partition} is not in this member's table", "BAD_REQUEST")
        self._check_step(row.partition, row.version)
        replica = self._tablets.replica_of(row.partition)
        async with replica.lock:
            known = self._tablets.rows[row.partition]
            if known.version >= row.version:
                if (known.version, known.replicas) == (row.version, row.replicas):
                    return m.Result(last=replica.last)
                raise Stale(f"the row of version {known.version} was published", "STALE_VERSION")
            self._check_accept(replica, command)
            if self._settings.fsync is not Fsync.ALWAYS:
                # A copy that counts from now on is on disk: a power loss may only lose later writes.
                await self._metadata.sync_log()
            await self._metadata.save_meta(replica, accepted=row, accepted_id=command.id)
        return m.Result(last=replica.last)

    def _check_accept(self, replica: Replica, command: m.Accept) -> None:
        row, before, refused = command.row, replica.meta.accepted, replica.meta.refused
        if refused is not None and refused.id == command.id:
            raise Refused(f"the owner was told that migration {command.id} is refused", "ILLEGAL_STATE")
        if before is not None and before.version >= row.version and before != row:
            raise Conflict(f"version {before.version} was accepted as {before.replicas}", "STALE_VERSION")
        if self._tablets.me not in row.replicas:
            raise Refused(f"{row.replicas} does not name this member ({self._tablets.me})", "ILLEGAL_STATE")
        if not replica.ready:
            raise Refused(
                f"the tablet is {state_name(replica.state)} {replica.broken}".strip(), "ILLEGAL_STATE"
            )
        wanted = command.last
        if wanted is not None and not replica.tablet.log.holds((wanted.term, wanted.index)):
            raise Refused(f"{wanted} is not in the log, which ends at {replica.last}", "ILLEGAL_STATE")

    async def tidy(self) -> None:
        """Forget promises that rows overtook, from any source, once the rows are on disk."""
        metadata = self._metadata
        overtaken, dirty = metadata.overtaken.copy(), metadata.table_dirty
        metadata.overtaken.clear()
        # Of now: rows that owners send from here on are not on disk, and are in the next set.
        rows = {p: self._tablets.rows[p] for p in sorted(overtaken) if p in self._tablets.replicas}
        try:
            if overtaken and dirty:
                await metadata.save_table()
            async for some in in_parts([*rows.items()]):
                await asyncio.gather(*(self._tidy(*each) for each in some))
        except OSError:
            metadata.tidy_again(overtaken, table_dirty=dirty)
            raise

    async def _tidy(self, partition: int, row: Partition) -> None:
        replica = self._tablets.replicas.get(partition)
        if replica is None:
            return
        async with replica.lock:
            meta = replica.meta
            changes: dict[str, Any] = {}
            if meta.accepted is not None and meta.accepted.version <= row.version:
                changes.update(accepted=None, accepted_id="")
            if meta.waited is not None and meta.waited.base < row.version:
                changes["waited"] = None
            if meta.frozen is not None and meta.frozen.base < row.version:
                changes["frozen"] = None
            if meta.refused is not None and meta.refused.base < row.version:
                changes["refused"] = None
            arrived = replica.ready and self._tablets.me in row.replicas
            if meta.copy is not None and meta.copy.base < row.version and arrived:
                changes["copy"] = None
            if lost := replica.promises_lost and row.version and self._tablets.me not in row.replicas:
                changes["promised"] = row.version
            await self._metadata.save_meta(replica, **changes)
            if lost:
                replica.tablet.restore_promise(row.version)
