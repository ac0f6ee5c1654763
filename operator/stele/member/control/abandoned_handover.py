"""Hand-overs that no master ends: a frozen owner asks the destination to refuse, and then resumes.

Only the destination can accept the row of a hand-over. Once its refusal is on its disk, no master can make it
the owner, so the old owner is the only one and may resume.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from stele.member import limits
from stele.member.background import Background
from stele.member.control.migrations import Migrations
from stele.member.replication.links import Inbound, Link
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.wire import peer
from stele.wire.storage.volume import Frozen

log = logging.getLogger("stele.abandoned_handover")


@dataclass(eq=False)
class AbandonedHandovers:
    """Both sides. `on_exchange` must be called for each exchange of a master."""

    _tablets: TabletStore
    _links: Mapping[int, Link]
    _metadata: MetadataStore
    _migrations: Migrations
    _background: Background

    def __post_init__(self) -> None:
        self._master_heard_at = self._background.now()

    def on_exchange(self) -> None:
        """Note that a master is present, which ends its own hand-overs."""
        self._master_heard_at = self._background.now()

    # -- at the owner

    def cancel_abandoned(self) -> None:
        """Ask the destinations of all frozen partitions to refuse, once no master has been present for
        long."""
        now = self._background.now()
        if now - self._master_heard_at < limits.MASTER_SILENT_SECONDS:
            return
        for replica in self._tablets.replicas.values():
            frozen, waited = replica.meta.frozen, replica.meta.waited
            if replica.owner is None or not replica.owner.frozen or frozen is None or waited is None:
                continue
            link = self._links.get(waited.member)
            if link is not None and frozen.id == waited.id:
                link.send(peer.CancelHandover(replica.partition, frozen.id, frozen.base))

    def on_cancel_result(self, link: Link, message: peer.CancelHandoverResult) -> None:
        replica = self._tablets.replicas.get(message.partition)
        waited = None if replica is None else replica.meta.waited
        if replica is not None and waited is not None and waited.member == link.member and message.cancelled:
            self._background.spawn(self._resume(replica, message.id))

    async def _resume(self, replica: Replica, id: str) -> None:
        async with replica.lock:
            if replica.meta.frozen is not None and replica.meta.frozen.id == id:
                log.warning(
                    "partition %d: no master ends migration %s; it is given up", replica.partition, id
                )
                await self._migrations.abort_learner(replica, id)

    # -- at the destination

    def on_cancel(self, sender: Inbound, message: peer.CancelHandover) -> None:
        if 0 <= message.partition < len(self._tablets.rows):
            self._background.spawn(self._cancel(sender, message))

    async def _cancel(self, sender: Inbound, request: peer.CancelHandover) -> None:
        """Persist the refusal and reply, unless the row was accepted or a newer one is known."""
        replica = self._tablets.replica_of(request.partition)
        async with replica.lock:
            accepted = replica.meta.accepted
            known = self._tablets.table.row_of(request.partition)
            newest = max(known.version, 0 if accepted is None else accepted.version)
            cancelled = newest <= request.base
            if cancelled:
                await self._metadata.save_meta(replica, refused=Frozen(request.id, request.base))
        sender.send(peer.CancelHandoverResult(request.partition, request.id, cancelled))
