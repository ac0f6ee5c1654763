"""Quarantine of deleted tablets and damaged volumes: list, read, restore, purge (docs/internals/member.md).

A restored tablet gets no right to serve: the table does not name it, as with that of a member which was away.
The master takes it into a row, by COPY from the log, or has it deleted again.
"""

import base64
import logging
from collections.abc import AsyncGenerator

import msgspec

from stele.core.tablet.lifecycle import Event, step
from stele.errors import BadInput, Conflict, Corrupt, Refused
from stele.member.admin.tablet_info import quarantined_tablets
from stele.member.copy.quarantined_log import drop_log_tail, keep_log_tail, last_quarantined, restore_log_tail
from stele.member.node import Node
from stele.member.replication.gc import drop_quarantined
from stele.member.replication.replica import Replica
from stele.member.storage import failpoints
from stele.wire import admin
from stele.wire.storage import keys
from stele.wire.storage.volume import Quarantined

log = logging.getLogger("stele.quarantine")

ENTRIES_PAGE = 1000


class Quarantine:
    """Operations on the quarantine. Each is idempotent and holds the partition's lock."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def listing(self) -> admin.QuarantineList:
        node = self._node
        volumes = await node.background.in_thread(node.volume.quarantined_volumes)
        return admin.QuarantineList(
            retention_seconds=node.live_settings.retention_seconds,
            tablets=tuple(
                each
                for partition in sorted(node.replicas)
                for each in quarantined_tablets(node.tablets, node.replicas[partition])
            ),
            volumes=tuple(volumes),
        )

    # -- tablets

    def _entry(self, partition: int, generation: int) -> tuple[Replica, Quarantined]:
        replica = self._node.replicas.get(partition)
        for entry in () if replica is None or replica.block is None else replica.block.quarantined:
            if entry.generation == generation:
                assert replica is not None
                return replica, entry
        raise BadInput(f"partition {partition}: generation {generation} is not in quarantine", "NOT_FOUND")

    async def restore(self, partition: int, generation: int) -> None:
        """Restore a tombstone to READY with all its data; does nothing if it was restored before.

        Raises BadInput (NOT_FOUND), Conflict (MIGRATION_ACTIVE), or Refused: ILLEGAL_STATE, NOT_NEEDED (the
        row has all its copies), INCOMPLETE (some of its operations are gone).
        """
        node = self._node
        replica = node.replicas.get(partition)
        if replica is not None and replica.ready and replica.generation == generation:
            return
        replica, _ = self._entry(partition, generation)
        async with replica.lock:
            replica, entry = self._entry(partition, generation)
            self._check_restore(replica)
            state = step(replica.state, Event.RESTORE)
            await keep_log_tail(node.tablets, node.background, replica)
            await node.background.in_thread(node.engine.flush)
            self._check_whole(replica, entry)
            await self._bring_back(replica, entry)
            restored, data = node.tablets.load_data(partition, generation)
            block = replica.block
            assert block is not None
            quarantined = tuple(each for each in block.quarantined if each != entry)
            restored_block = msgspec.structs.replace(
                block, state=state, generation=generation, quarantined=quarantined
            )
            await node.metadata.save_block(replica, restored_block)
            drop_log_tail(node.tablets, partition, generation)
            replica.tablet.log, replica.keyspaces = restored, dict(data.keyspaces)
            replica.flushed, replica.broken = restored.applied[1], ""
        log.warning("partition %d: generation %d was restored, up to %s", partition, generation, replica.last)

    def _check_restore(self, replica: Replica) -> None:
        node, row = self._node, replica.tablet.row
        if replica.meta.copy is not None:
            raise Conflict(f"migration {replica.meta.copy.id} is active", "MIGRATION_ACTIVE")
        if node.me in row.replicas:
            raise Refused(
                f"row {row.version} {row.replicas} names this member: the master repairs it", "ILLEGAL_STATE"
            )
        full = len(row.members) >= max(1, node.table.replicas_of(replica.partition))
        near = any(link.ready for member, link in node.links.items() if member in row.members)
        if full and near:
            raise Refused(
                f"row {row.version} {row.replicas} has all its copies, so a restored one would be deleted "
                "again; to see its content, read its entries",
                "NOT_NEEDED",
            )

    def _check_whole(self, replica: Replica, entry: Quarantined) -> None:
        try:
            last = last_quarantined(self._node.tablets, replica.partition, entry.generation)
        except Corrupt as error:
            raise Refused(f"{error}; read its entries instead", "INCOMPLETE") from error
        if last < entry.last:
            raise Refused(
                f"it had operations up to {entry.last}, but only those up to {last} are here; "
                "read its entries instead",
                "INCOMPLETE",
            )

    async def _bring_back(self, replica: Replica, entry: Quarantined) -> None:
        """Rebuild the log, which has no owner until a superblock assigns it to this generation."""
        node, block = self._node, replica.block
        assert block is not None
        await node.metadata.save_block(replica, msgspec.structs.replace(block, generation=0))
        node.tablets.clear_log(replica)
        await restore_log_tail(node.tablets, replica.partition, entry.generation)
        await node.metadata.sync_log()
        failpoints.hit("restore.read")

    async def purge(self, partition: int, generation: int) -> bool:
        """Delete quarantined data now; return whether there was any.

        Raises Refused (NO_LIVE_COPY) while it may be the last copy.
        """
        node = self._node
        replica = node.replicas.get(partition)
        if replica is None:
            return False
        if node.last_copies.may_be_here(partition):
            raise Refused(
                f"no member is known to have a live copy of partition {partition}: this may be the last one; "
                "bring a member of its row back, or make this copy its owner: "
                "kubectl stele quarantine restore --as-owner",
                "NO_LIVE_COPY",
            )
        async with replica.lock:
            block = drop_quarantined(node.engine, replica, lambda entry: entry.generation == generation)
            if block is None:
                return False
            await node.metadata.save_block(replica, block)
        log.warning("partition %d: generation %d was purged", partition, generation)
        return True

    async def entries(self, partition: int, generation: int) -> AsyncGenerator[bytes]:
        """Iterate entries as JSON lines, [keyspace, key, value, expire_at_ms], key and value in base64.

        All are from one view. Operations that a deleted tablet had only in its log are not included.
        """
        self._entry(partition, generation)
        node, (begin, end) = self._node, keys.tablet_range(partition, generation)
        view = node.engine.view()
        try:
            while page := await node.background.in_thread(view.scan, begin, end, ENTRIES_PAGE):
                yield b"".join(map(_entry_line, page))
                begin = page[-1][0] + b"\0"
        finally:
            view.close()

    # -- volumes

    async def purge_volume(self, name: str) -> bool:
        """Delete a quarantined volume; return whether it existed."""
        node = self._node
        deleted = await node.background.in_thread(node.volume.purge_volume, name)
        if deleted:
            log.warning("volume %s was purged", name)
        return deleted


def _entry_line(entry: tuple[bytes, bytes]) -> bytes:
    split = keys.split_user(entry[0])
    if split is None or split[0] == keys.SERVICE:
        return b""
    value, expire_at_ms = keys.unpack_value(entry[1])
    shown = [split[0].decode(errors="replace"), *(base64.b64encode(b).decode() for b in (split[1], value))]
    return msgspec.json.encode([*shown, expire_at_ms]) + b"\n"
