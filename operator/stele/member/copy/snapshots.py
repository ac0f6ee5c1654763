"""What a session serves: a checkpoint of the database, or the streams of small tablets.

A checkpoint costs two flushes, and syncs of files during which RocksDB's Python binding holds the GIL. Small
tablets are read in less.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stele.core.control import commands as m
from stele.core.copy.fragments import versions
from stele.core.table.table import Replicas
from stele.core.tablet.owner import Flow
from stele.errors import Corrupt
from stele.member import limits
from stele.member.replication.operations import Totals
from stele.member.replication.replica import Replica
from stele.member.storage import failpoints
from stele.ports.engine import Engine, View
from stele.transfer.server.checkpoint import encode_planned
from stele.wire.copy.blocks import Entry
from stele.wire.copy.fragments import GATHERED_BYTES, whole
from stele.wire.copy.jobs import stream_file
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


def are_small(tablets: Sequence[Totals]) -> bool:
    """Return whether streams of tablets with these totals are written, each of which is one fragment."""
    sizes = [sum(size for _, size in totals.values()) for totals in tablets]
    entries = sum(count for totals in tablets for count, _ in totals.values())
    few = entries <= limits.SESSION_STREAMS_ENTRIES_MAX and sum(sizes) <= limits.SESSION_STREAMS_BYTES_MAX
    return few and max(sizes, default=0) <= GATHERED_BYTES


class Damaged(Corrupt):
    """A tablet's data cannot be read."""

    def __init__(self, tablet: Held, error: Corrupt) -> None:
        super().__init__(error.text, error.code)
        self.partition, self.generation = tablet.partition, tablet.generation


@contextmanager
def _reading(tablet: Held) -> Iterator[None]:
    try:
        yield
    except Corrupt as error:
        raise Damaged(tablet, error) from error


# -- streams


def write_streams(engine: Engine, folder: Path, tablets: Sequence[Held], me: int) -> Tablets | None:
    """Write the streams of tablets into a session's directory, in a thread, and describe them.

    Returns None when they are not small any more. Raises Damaged.
    """
    view = engine.view()
    try:
        states = [_state_in(view, each) for each in tablets]
        if not are_small([each.keyspaces for each in states]):
            return None
        described = tuple(_described(*each, me) for each in zip(tablets, states, strict=True))
        for tablet, state, each in zip(tablets, states, described, strict=True):
            with _reading(tablet):
                _write_stream(view, folder, each, state)
    finally:
        view.close()
    # After a loss of power, no copy may have operations that this member has forgotten.
    engine.sync_log()
    failpoints.hit("session.written")
    return described


def _write_stream(view: View, folder: Path, tablet: m.SessionTablet, state: DataState) -> None:
    where = tablet.partition, tablet.generation
    entries = _entries(view, *keys.tablet_range(*where))
    with (folder / stream_file(*where)).open("wb") as file:
        for block in encode_planned(tablet, whole(*where, state.keyspaces), entries, lambda: ""):
            file.write(block)


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
    with _reading(tablet):
        stored = view.get(keys.meta_key(tablet.partition, tablet.generation, APPLIED))
        return DataState(m.OpId(), {}) if stored is None else decode_state(stored)


def _described(tablet: Held, state: DataState, me: int) -> m.SessionTablet:
    size = sum(size for _, size in state.keyspaces.values())
    vector = versions(tablet.row, state.applied.index, me, tablet.held)
    return m.SessionTablet(tablet.partition, tablet.generation, state.applied, size, vector)
