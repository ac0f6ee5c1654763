"""Persisted state of tablets besides their data: promises, superblocks, and the table."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stele.core.control.commands import Row
from stele.core.tablet.lifecycle import TabletState
from stele.errors import Corrupt
from stele.member.replication.gc import drop_leftovers
from stele.member.replication.group_commit import GroupCommit
from stele.member.replication.replica import PROMISES_LOST, Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.storage import failpoints
from stele.member.storage.volume import CONSENSUS, TABLETS, MetaWriter, Volume
from stele.wire.storage.volume import TABLE_FILE, Consensus, Superblock, encode_file

log = logging.getLogger("stele.member")


@dataclass(eq=False)
class MetadataStore:
    """`overtaken` are partitions whose row may exceed their promises, which no exchange has tidied yet.

    `table_dirty` says that the volume lacks rows that owners sent, or what `table_changed` is about.
    """

    _volume: Volume
    _writer: MetaWriter
    _tablets: TabletStore
    _group_commit: GroupCommit
    table_dirty: bool = False
    overtaken: set[int] = field(default_factory=set)

    # -- start

    def load(self) -> None:
        """Read the volume's tablets; an error in one does not prevent the others from starting."""
        metas = self._load_metas()
        seen: set[int] = set()
        for partition, block in self._volume.load_all(TABLETS, Superblock):
            seen.add(partition)
            meta = metas.get(partition, PROMISES_LOST)
            if isinstance(block, Corrupt):
                log.error("partition %d stays offline: %s", partition, block)
                self._tablets.add(partition, None, meta, str(block))
            else:
                self._load_tablet(partition, block, meta)
        for partition in metas.keys() - seen:
            self._tablets.add(partition, None, metas[partition])
        for replica in self._tablets.replicas.values():
            if replica.meta is PROMISES_LOST and not replica.broken:
                replica.broken = (
                    f"what was promised for it is lost: {CONSENSUS}/{replica.partition} is damaged or missing"
                )
            if replica.meta != Consensus(replica.meta.promised):
                self.overtaken.add(replica.partition)
        self._find_missing()

    def _find_missing(self) -> None:
        for partition, row in enumerate(self._tablets.rows):
            if self._tablets.me >= 0 and self._tablets.me in row.replicas:
                replica = self._tablets.replica_of(partition)
                if replica.block is None and not replica.broken:
                    self._tablets.mark_missing(replica, row.version)

    def _load_metas(self) -> dict[int, Consensus]:
        metas: dict[int, Consensus] = {}
        for partition, meta in self._volume.load_all(CONSENSUS, Consensus):
            if isinstance(meta, Corrupt):
                # The promises are unknown: promise everything, so that no old term is accepted.
                log.error("partition %d: %s", partition, meta)
                metas[partition] = PROMISES_LOST
            else:
                metas[partition] = meta
        return metas

    def _load_tablet(self, partition: int, block: Superblock, meta: Consensus) -> None:
        """Load one tablet. COPYING reverts to DELETED; the sweep resumes an interrupted deletion."""
        if block.state is TabletState.COPYING:
            block = msgspec.structs.replace(block, state=TabletState.DELETED)
            self._volume.write({f"{TABLETS}/{partition}": encode_file(block)})
            failpoints.hit("start.rolled_back")
        replica = self._tablets.load(partition, block, meta)
        try:
            if not replica.broken and drop_leftovers(self._tablets.engine, replica):
                failpoints.hit("start.swept")
        except Corrupt as error:
            self._tablets.break_off(replica, error)

    # -- changes

    async def save_meta(self, replica: Replica, **changes: Any) -> None:
        """Change a partition's promises, durably and in memory. Requires the partition's lock."""
        meta = msgspec.structs.replace(replica.meta, **changes)
        if meta != replica.meta:
            await self._writer.save(f"{CONSENSUS}/{replica.partition}", meta)
            replica.meta = meta
            for name, value in changes.items():
                failpoints.hit(f"{name}.{'saved' if value else 'cleared'}")

    async def save_block(self, replica: Replica, block: Superblock) -> None:
        """Replace a superblock, durably and in memory. Requires the partition's lock."""
        await self._writer.save(f"{TABLETS}/{replica.partition}", block)
        replica.block = block
        replica.prefixes.clear()
        failpoints.hit(f"block.{block.state.lower()}")

    async def save_first_block(self, replica: Replica, block: Superblock) -> None:
        """Like `save_block`, but creates the consensus metadata first if there is none.

        A superblock without it means, at the next start, that promises were lost.
        """
        await self._writer.save(f"{CONSENSUS}/{replica.partition}", replica.meta)
        failpoints.hit("create.consensus")
        await self.save_block(replica, block)

    async def sync_log(self) -> None:
        """Make everything written to the logs durable."""
        await self._group_commit.sync()

    def row_from_owner(self, partition: int) -> None:
        """Note that an owner sent a row that the volume lacks and that may overtake promises."""
        self.overtaken.add(partition)
        self.table_dirty = True

    def table_changed(self) -> None:
        """Note that the volume lacks something of the table."""
        self.table_dirty = True

    def tidy_again(self, overtaken: set[int], *, table_dirty: bool) -> None:
        """Note that tidying failed because the volume is full."""
        self.overtaken |= overtaken
        self.table_dirty = self.table_dirty or table_dirty

    async def save_table(self, coming: Sequence[Row] | None = None) -> None:
        """Save the table with the rows of a request, and make rows sent by owners durable."""
        self.table_dirty = False
        try:
            await self._writer.save(TABLE_FILE, self._tablets.table.to_file(coming))
        except OSError:
            # The master resends its rows; owners send theirs once.
            self.table_dirty = self.table_dirty or coming is None
            raise
