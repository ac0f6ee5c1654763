"""Operations that a quarantined generation has in its log but not in its data, saved beside the data.

The keys of a partition's log belong to the generation of its superblock. Before another generation uses them,
operations that the data lacks are saved aside: each quarantined generation is complete by itself, and is
deleted as a whole.
"""

import asyncio
import logging

from stele.core.control.commands import OpId
from stele.errors import Corrupt, Unavailable
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.gc import log_tail_range, owns_log
from stele.member.replication.replica import Replica
from stele.member.replication.stored_log import log_range
from stele.member.replication.tablet_store import TabletStore
from stele.member.storage import failpoints
from stele.wire.storage import keys
from stele.wire.storage.log_record import term_of

log = logging.getLogger("stele.quarantined_log")

PAGE_OPERATIONS = 1000


async def keep_log_tail(tablets: TabletStore, background: Background, replica: Replica) -> None:
    """Save the unapplied operations; they are on disk on return. Does nothing when no generation owns the
    log.

    Hold the partition's lock, with no operations being logged.
    """
    block = replica.block
    if block is None or not owns_log(block):
        return
    tablets.writer.write_all()
    try:
        if await _copy(tablets, replica, block.generation):
            await background.in_thread(tablets.engine.flush)
    except Corrupt as error:
        log.warning("partition %d: damaged, so its log cannot be kept: %s", replica.partition, error)
    failpoints.hit("quarantine.log_aside")


async def _copy(tablets: TabletStore, replica: Replica, generation: int) -> bool:
    """Copy the operations; return whether a crash could lose any data of the generation."""
    engine, partition = tablets.engine, replica.partition
    drop_log_tail(tablets, partition, generation)
    bounds = engine.log_bounds(*log_range(partition))
    if bounds is None:
        return False
    begin = keys.log_key(partition, tablets.read_state(partition, generation).applied.index + 1)
    end = keys.next_log_key(bounds[1])
    while page := engine.scan_log(begin, end, limits.ENGINE_WRITE_BYTES_MAX):
        engine.write_data([(_log_tail_key(partition, generation, key), record) for key, record in page])
        begin = keys.next_log_key(page[-1][0])
        await asyncio.sleep(0)
    return _index(bounds[1]) > replica.flushed


async def restore_log_tail(tablets: TabletStore, partition: int, generation: int) -> None:
    """Copy saved operations back into the log, which must be empty. On disk after the next sync."""
    begin, end = log_tail_range(partition, generation)
    while page := tablets.engine.scan(begin, end, PAGE_OPERATIONS, limits.ENGINE_WRITE_BYTES_MAX):
        if not tablets.writer.has_room(sum(len(record) for _, record in page)):
            raise Unavailable("the volume is full", "NO_SPACE")
        tablets.engine.write_log([(keys.log_key(partition, _index(key)), record) for key, record in page])
        begin = page[-1][0] + b"\0"
        await asyncio.sleep(0)


def last_quarantined(tablets: TabletStore, partition: int, generation: int) -> OpId:
    """Return the last operation of a quarantined generation, from its data and the saved operations."""
    key = tablets.engine.last_key(*log_tail_range(partition, generation))
    if key is None:
        return tablets.read_state(partition, generation).applied
    record = tablets.engine.get(key)
    assert record is not None
    return OpId(int(term_of(record)[0]), _index(key))


def drop_log_tail(tablets: TabletStore, partition: int, generation: int) -> None:
    """Delete saved operations: those of an interrupted attempt, or those that are in the log again."""
    span = log_tail_range(partition, generation)
    if tablets.engine.scan(*span, 1):
        tablets.engine.drop_data(*span)


def _log_tail_key(partition: int, generation: int, log_key: bytes) -> bytes:
    return log_tail_range(partition, generation)[0] + log_key[-8:]


def _index(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")
