"""Deletes what a volume no longer needs: generations that no superblock names, and logs of tombstones."""

import logging
from collections.abc import Callable

import msgspec

from stele.core.control.commands import OpId
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.log import Log
from stele.member import limits
from stele.member.replication.replica import Replica
from stele.member.replication.stored_log import log_range
from stele.member.storage import failpoints
from stele.ports.engine import Engine
from stele.wire.storage import keys
from stele.wire.storage.volume import CopyRecord, Quarantined, Superblock

log = logging.getLogger("stele.gc")

_GENERATION_MAX = 2**32 - 1
LOG_TAIL = b"log"


def kept_generations(block: Superblock) -> set[int]:
    """Return generations whose data stays: the serving one, one being received, and quarantined ones."""
    return {entry.generation for entry in block.quarantined} | _live_generations(block, None)


def _live_generations(block: Superblock, copy: CopyRecord | None) -> set[int]:
    """Return the serving generation and one being received to replace it, which are never deleted."""
    live = set() if block.state is TabletState.DELETED else {block.generation}
    return live | {copy.generation} if copy is not None and copy.kept else live


def owns_log(block: Superblock) -> bool:
    """Return whether the log under the partition's keys belongs to the superblock's generation or to none."""
    return block.state is TabletState.READY or block.generation in {
        entry.generation for entry in block.quarantined
    }


def log_tail_range(partition: int, generation: int) -> tuple[bytes, bytes]:
    """Return the keys of operations that are kept with a generation's data
    (`member.copy.quarantined_log`)."""
    begin = keys.meta_key(partition, generation, LOG_TAIL)
    return begin, keys.after_prefix(begin)


def drop_leftovers(engine: Engine, replica: Replica) -> bool:
    """Delete what no superblock names: data of an interrupted ingest, abort or sweep, or a tombstone's log.

    Returns whether there was any.
    """
    block = replica.block
    if block is None:
        return False
    logged = log_range(replica.partition)
    left = not owns_log(block) and engine.log_bounds(*logged) is not None
    if left:
        engine.write_log([], [logged])
    tail = log_tail_range(replica.partition, block.generation)
    if block.state is TabletState.READY and engine.scan(*tail, 1):
        engine.drop_data(*tail)
    kept = kept_generations(block) | _live_generations(block, replica.meta.copy)
    return _drop_generations(engine, replica.partition, kept) or left


def _drop_generations(engine: Engine, partition: int, kept: set[int]) -> bool:
    generation, found_any = 0, False
    while generation < _GENERATION_MAX:
        end = keys.tablet_prefix(partition, _GENERATION_MAX)
        found = engine.scan(keys.tablet_prefix(partition, generation), end, 1)
        if not found:
            break
        generation = keys.generation_of(found[0][0])
        if generation not in kept:
            engine.drop_data(*keys.tablet_range(partition, generation))
            found_any = True
        generation += 1
    return found_any


BEYOND_LIMIT_S = 0.0
"""When generations beyond QUARANTINED_MAX expire: at once."""


def quarantine(block: Superblock, until_s: float, last: OpId, *, unreported: bool = False) -> Superblock:
    """Return the superblock with its generation quarantined until then. `last` is where its log ends.

    `unreported`: its entries' departure is to be reported.

    Beyond QUARANTINED_MAX, the generations that expire first are deleted by the next sweep.
    """
    entries = (*block.quarantined, Quarantined(block.generation, until_s, last, unreported))
    kept = sorted(entries, key=lambda entry: entry.until_s)[-limits.QUARANTINED_MAX :]
    return msgspec.structs.replace(
        block,
        quarantined=tuple(
            e if e in kept else msgspec.structs.replace(e, until_s=BEYOND_LIMIT_S) for e in entries
        ),
    )


def drop_expired(engine: Engine, replica: Replica, now_s: float) -> Superblock | None:
    """Delete expired quarantined data. Returns the superblock to save; None when nothing had expired."""
    return drop_quarantined(engine, replica, lambda entry: entry.until_s <= now_s)


def drop_quarantined(
    engine: Engine, replica: Replica, due: Callable[[Quarantined], bool]
) -> Superblock | None:
    """Delete quarantined data that is due, and a tombstone's log with its data.

    Returns the superblock to save; None when nothing was due. Data is deleted before its entry in the
    superblock, so that after a crash in between it is due again.
    """
    block = replica.block
    if block is None or not any(map(due, block.quarantined)):
        return None
    gone = {entry.generation for entry in filter(due, block.quarantined)}
    for generation in sorted(gone - _live_generations(block, replica.meta.copy)):
        engine.drop_data(*keys.tablet_range(replica.partition, generation))
    failpoints.hit("quarantine.data_dropped")
    left = tuple(entry for entry in block.quarantined if not due(entry))
    made = msgspec.structs.replace(block, quarantined=left)
    if block.state is TabletState.DELETED and not owns_log(made):
        engine.write_log([], [log_range(replica.partition)])
        failpoints.hit("quarantine.log_dropped")
        replica.tablet.log = Log()
        replica.records.clear()
    return made
