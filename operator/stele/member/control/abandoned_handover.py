"""Hand-overs that no master ends: a frozen owner asks the destination to refuse, and resumes when it did.

Only the destination can accept the row that a hand-over is for. Once it has refused that on its disk, no
master can make it the owner, so the old owner is the only one, and may go on.
"""

import logging

from stele.member import limits
from stele.member.control.migrations import Migrations
from stele.member.node import Node
from stele.member.replication.links import Inbound
from stele.member.replication.replica import Replica
from stele.wire import peer
from stele.wire.storage.volume import Frozen

log = logging.getLogger("stele.abandoned_handover")


class AbandonedHandovers:
    """Both sides: who asks, and who refuses. `on_exchange` is to be called with each exchange of a master."""

    def __init__(self, node: Node, migrations: Migrations) -> None:
        self._node = node
        self._migrations = migrations
        self._master_heard_at = node.loop.time()
        node.abandoned_handovers = self

    def on_exchange(self) -> None:
        """A master spoke: it ends what it began."""
        self._master_heard_at = self._node.loop.time()

    # -- at the owner

    def cancel_abandoned(self) -> None:
        """Ask the destinations of all frozen partitions, when no master was heard for long."""
        now = self._node.loop.time()
        if now - self._master_heard_at < limits.MASTER_SILENT_SECONDS:
            return
        for replica in self._node.replicas.values():
            frozen, waited = replica.meta.frozen, replica.meta.waited
            if replica.owner is None or not replica.owner.frozen or frozen is None or waited is None:
                continue
            link = self._node.links.get(waited.member)
            if link is not None and frozen.id == waited.id:
                link.send(peer.CancelHandover(replica.partition, frozen.id, frozen.base))

    def on_cancel_result(self, member: int, message: peer.CancelHandoverResult) -> None:
        replica = self._node.replicas.get(message.partition)
        waited = None if replica is None else replica.meta.waited
        if replica is not None and waited is not None and waited.member == member and message.cancelled:
            self._node.spawn(self._resume(replica, message.id))

    async def _resume(self, replica: Replica, id: str) -> None:
        async with replica.lock:
            if replica.meta.frozen is not None and replica.meta.frozen.id == id:
                log.warning(
                    "partition %d: no master ends migration %s; it is given up", replica.partition, id
                )
                await self._migrations.abort_learner(replica, id)

    # -- at the destination

    def on_cancel(self, sender: Inbound, message: peer.CancelHandover) -> None:
        if 0 <= message.partition < len(self._node.rows):
            self._node.spawn(self._cancel(sender, message))

    async def _cancel(self, sender: Inbound, request: peer.CancelHandover) -> None:
        """On the disk before it is told. Not when the row was accepted, or a newer one is known."""
        node, replica = self._node, self._node.replica_of(request.partition)
        async with replica.lock:
            accepted = replica.meta.accepted
            newest = max(node.rows[request.partition].version, 0 if accepted is None else accepted.version)
            cancelled = newest <= request.base
            if cancelled:
                await node.save_meta(replica, refused=Frozen(request.id, request.base))
        sender.send(peer.CancelHandoverResult(request.partition, request.id, cancelled))
