"""Which role each tablet has here: what changes with a row, and what follows from it.

Rows change in two ways: by the master's exchange (persisted before they take effect) and by an owner that
knows a published row earlier (in memory; the master sends it again). Both end in `adopt`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from stele.core.table.table import Partition, row_fault
from stele.core.tablet.lifecycle import TabletState
from stele.errors import Corrupt
from stele.member.background import Background
from stele.member.replication import passes
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.participant import rebuild_locks
from stele.member.serving.router import RequestRouter
from stele.wire.storage.volume import CopyRecord, Waited

log = logging.getLogger("stele.member")


@dataclass(eq=False)
class Roles:
    """Owner, backup, learner or none: as the row says, as far as the tablet can.

    `_row_changed` hears of each newer row, with the one before it, and `_announce` of an empty tablet that
    has become READY.
    """

    _tablets: TabletStore
    _metadata: MetadataStore
    _replicator: Replicator
    _delayed_replies: DelayedReplies
    _router: RequestRouter
    _background: Background
    _row_changed: Callable[[int, Partition, Partition], None]
    _announce: Callable[[Replica], None]
    _began_serving: int = 0

    # -- rows

    def adopt_from_owner(self, partition: int, row: Partition) -> None:
        """A published row that an owner knows and this member may not."""
        rows = self._tablets.rows
        known = rows[partition] if partition < len(rows) else None
        if known is None or row.version <= known.version or row_fault(row.replicas) is not None:
            return
        if text := self._tablets.table.version_jump(partition, row.version):
            log.error("a member told a row that is not taken: %s", text)
            return
        self.adopt(partition, row)
        self._metadata.row_from_owner(partition)

    def adopt(self, partition: int, row: Partition) -> None:
        """A newer published row takes effect."""
        before = self._tablets.rows[partition]
        self._tablets.table.set(partition, row)
        # Before it owns by the row: a service serves nothing that it has not heard of.
        self._row_changed(partition, before, row)
        replica = self._tablets.replicas.get(partition)
        if replica is not None and replica.tablet.adopt(row):
            self.take_role(replica)
        self._router.drain(partition)

    # -- owners

    def take_role(self, replica: Replica) -> None:
        """Own, go on owning, or stop, as the row says."""
        row, me = replica.tablet.row, self._tablets.me
        if row.owner == me and me >= 0 and replica.ready:
            replica.own()
            self._replicator.resume(replica)
        elif replica.owner is not None:
            self.step_down(replica)

    def step_down(self, replica: Replica) -> None:
        """Serve the tablet no more. What was logged and not committed may or may not survive."""
        replica.owner = None
        follows = replica.ready and replica.tablet.named
        self._router.send_again(self._delayed_replies.give_up(replica, follows=follows))

    def retire(self, replica: Replica) -> None:
        """Its data is given up: serve it no more, also not what would be committed later."""
        if replica.owner is not None:
            self.step_down(replica)
        self._delayed_replies.cut(replica, 0)

    def serving(self, replica: Replica) -> None:
        """It has established itself as the owner."""
        owner = replica.owner
        assert owner is not None
        self._began_serving += 1
        replica.forget_ahead()
        try:
            rebuild_locks(self._tablets.engine, replica, self._background.now())
        except Corrupt as error:
            self._tablets.break_off(replica, error)
            return
        self._router.drain(replica.partition)
        if owner.wants_waiting:
            self.wants_promise(replica)

    def unserved(self) -> list[int]:
        """Partitions that this member owns by its table and does not serve."""
        return passes.unserved(self._tablets.table.owned, self._tablets.replicas)

    def log_served(self) -> None:
        """Log how many began to be served since the last call."""
        if self._began_serving:
            log.info("%d partitions serve now, %d do not yet", self._began_serving, len(self.unserved()))
            self._began_serving = 0

    # -- learners, at the owner

    def wants_promise(self, replica: Replica) -> None:
        """Persist that every write waits for the learner, then wait for it; in this order."""
        owner = replica.owner
        if owner is None or owner.learner is None or replica.promising:
            return
        replica.promising = True
        learner = owner.learner
        self._background.spawn(self._promise(replica, Waited(learner.id, learner.member, learner.base)))

    async def _promise(self, replica: Replica, waited: Waited) -> None:
        try:
            async with replica.lock:
                owner = replica.owner
                if owner is None or owner.learner is None or owner.learner.id != waited.id:
                    return
                await self._metadata.save_meta(replica, waited=waited)
                if replica.owner is not None:
                    replica.owner.wait_for_learner(waited.id)
        finally:
            replica.promising = False

    # -- learners, at the destination

    def fill(self, replica: Replica) -> None:
        """An empty copy whose owner's log holds everything: READY without a copy."""
        copy = replica.meta.copy
        if copy is None or replica.busy or replica.state is not TabletState.COPYING:
            return
        replica.busy = True
        self._background.spawn(self._fill(replica, copy))

    async def _fill(self, replica: Replica, copy: CopyRecord) -> None:
        try:
            async with replica.lock:
                block = replica.block
                if replica.meta.copy != copy or block is None or block.state is not TabletState.COPYING:
                    return
                self._tablets.clear_log(replica)
                await self._metadata.sync_log()
                ready = msgspec.structs.replace(block, state=TabletState.READY)
                await self._metadata.save_block(replica, ready)
                self._tablets.reset(replica, (0, 0), {})
        finally:
            replica.busy = False
        self._announce(replica)
