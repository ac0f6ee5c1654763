"""What is no longer needed on a volume goes: generations that no superblock names, logs of tombstones."""

import logging

import msgspec

from stele.core.log import Log
from stele.member.replica import Replica
from stele.member.tablets import log_range
from stele.ports import Engine
from stele.wire import keys
from stele.wire.volume import Quarantined, Superblock

log = logging.getLogger("stele.sweep")

_GENERATION_MAX = 2**32 - 1


def kept_generations(block: Superblock) -> set[int]:
    """Generations whose data stays: the one that serves, one that is being received, quarantined ones."""
    kept = {entry.generation for entry in block.quarantined}
    return kept | {block.generation} if block.state != "DELETED" else kept


def drop_unknown_generations(engine: Engine, replica: Replica) -> None:
    """Delete data that no superblock names: what an interrupted ingest, abort or sweep left."""
    if replica.block is None:
        return
    kept = kept_generations(replica.block)
    if replica.meta.copy is not None and replica.meta.copy.kept:
        kept.add(replica.meta.copy.generation)
    partition, generation = replica.partition, 0
    while generation < _GENERATION_MAX:
        end = keys.tablet_prefix(partition, _GENERATION_MAX)
        found = engine.scan(keys.tablet_prefix(partition, generation), end, 1)
        if not found:
            return
        generation = int.from_bytes(found[0][0][2 : keys.TABLET_PREFIX_BYTES], "big")
        if generation not in kept:
            engine.drop_data(*keys.tablet_range(partition, generation))
        generation += 1


def quarantine(block: Superblock, until_s: float) -> Superblock:
    """The same superblock, with its generation given up until then."""
    entry = Quarantined(block.generation, until_s)
    return msgspec.structs.replace(block, quarantined=(*block.quarantined, entry))


def drop_expired(engine: Engine, replica: Replica, now_s: float) -> Superblock | None:
    """Delete quarantined data whose time is over; the superblock to save then, None when nothing was due."""
    block = replica.block
    if block is None or not any(entry.until_s <= now_s for entry in block.quarantined):
        return None
    for entry in block.quarantined:
        if entry.until_s <= now_s:
            engine.drop_data(*keys.tablet_range(replica.partition, entry.generation))
    if block.state == "DELETED":
        engine.write_log([], [log_range(replica.partition)])
        replica.tablet.log = Log()
        replica.records.clear()
    left = tuple(entry for entry in block.quarantined if entry.until_s > now_s)
    return msgspec.structs.replace(block, quarantined=left)
