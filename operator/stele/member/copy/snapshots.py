"""What a session serves: a checkpoint of the database, or the streams of small tablets.

A checkpoint costs two flushes, and syncs of files during which RocksDB's Python binding holds the GIL. Small
tablets are read in less.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stele.core.control import commands as m
from stele.core.copy.fragments import versions
from stele.core.table.table import Replicas
from stele.core.tablet.owner import Flow
from stele.errors import Corrupt
from stele.member import limits
from stele.member.replication.replica import Replica
from stele.member.storage import failpoints
from stele.ports.engine import Engine, View
from stele.transfer.server.checkpoint import encode_planned
from stele.wire.copy.blocks import Entry
from stele.wire.copy.fragments import GATHERED_BYTES, whole
from stele.wire.copy.jobs import damage_note, stream_file
from stele.wire.storage import keys
from stele.wire.storage.volume import APPLIED, DataState, decode_state

PAGE_ENTRIES = 256

InThread = Callable[..., Awaitable[Any]]
Tablets = tuple[m.SessionTablet, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A tablet when its session opens: its row, and the last operation that each member is known to hold."""

    partition: int
    generation: int
    row: Replicas
    held: dict[int, int]


def held(replica: Replica) -> Held:
    """Return what is known of a tablet now."""
    progress = {} if replica.owner is None else replica.owner.progress
    known = {member: each.match for member, each in progress.items() if each.flow is Flow.STREAM}
    return Held(replica.partition, replica.generation, replica.tablet.row.replicas, known)


def are_small(replicas: Sequence[Replica]) -> bool:
    """Return whether streams of these tablets are written, each of which is one fragment."""
    sizes = [replica.size_bytes for replica in replicas]
    return sum(sizes) <= limits.SESSION_STREAMS_BYTES_MAX and max(sizes, default=0) <= GATHERED_BYTES


# -- streams


def write_streams(engine: Engine, folder: Path, tablets: Sequence[Held], me: int) -> Tablets:
    """Write the streams of tablets into a session's directory, in a thread, and describe them.

    Raises Corrupt for a damaged tablet, of which a note is left in the directory.
    """
    view = engine.view()
    try:
        described = tuple(_write_stream(view, folder, each, me) for each in tablets)
    finally:
        view.close()
    # After a loss of power, no copy may have operations that this member has forgotten.
    engine.sync_log()
    failpoints.hit("session.written")
    return described


def _write_stream(view: View, folder: Path, tablet: Held, me: int) -> m.SessionTablet:
    number, generation = tablet.partition, tablet.generation
    try:
        state = _state_in(view, tablet)
        described = _described(tablet, state, me)
        planned = whole(number, generation, state.keyspaces)
        with (folder / stream_file(number, generation)).open("wb") as file:
            entries = _entries(view, *keys.tablet_range(number, generation))
            for block in encode_planned(described, planned, entries, lambda: ""):
                file.write(block)
    except Corrupt as error:
        (folder / damage_note(number, generation)).write_text(str(error))
        raise
    return described


def _entries(view: View, begin: bytes, end: bytes) -> Iterator[Entry]:
    while page := view.scan(begin, end, PAGE_ENTRIES):
        yield from page
        begin = page[-1][0] + b"\0"


# -- checkpoints


async def checkpoint(
    engine: Engine, in_thread: InThread, folder: Path, replicas: Sequence[Replica], me: int
) -> Tablets:
    """Create a checkpoint, and describe it by what tablets are at, if that is so before and after it.

    Otherwise the checkpoint itself says it, although opening one takes the GIL for milliseconds.
    """
    tablets, before = [*map(held, replicas)], [*map(_data, replicas)]
    await in_thread(engine.checkpoint, str(folder / "db"))
    failpoints.hit("session.checkpointed")
    states = [state for _, state in before]
    if before != [*map(_data, replicas)] or any(each.ingesting for each in replicas):
        states = await in_thread(_read_states, engine, folder, tablets)
    return tuple(_described(*each, me) for each in zip(tablets, states, strict=True))


def _data(replica: Replica) -> tuple[int, DataState]:
    """Return the generation of the tablet's data and what it is at, unless a bulk load is being ingested."""
    return replica.generation, DataState(m.OpId(*replica.tablet.log.applied), replica.keyspaces)


def _read_states(engine: Engine, folder: Path, tablets: Sequence[Held]) -> list[DataState]:
    """Read what tablets are at in the checkpoint, in a thread."""
    reader = engine.open_checkpoint(str(folder / "db"))
    try:
        return [_state_in(reader, each) for each in tablets]
    finally:
        reader.close()


def _state_in(view: View, tablet: Held) -> DataState:
    stored = view.get(keys.meta_key(tablet.partition, tablet.generation, APPLIED))
    return DataState(m.OpId(), {}) if stored is None else decode_state(stored)


def _described(tablet: Held, state: DataState, me: int) -> m.SessionTablet:
    size = sum(size for _, size in state.keyspaces.values())
    vector = versions(tablet.row, state.applied.index, me, tablet.held)
    return m.SessionTablet(tablet.partition, tablet.generation, state.applied, size, vector)
