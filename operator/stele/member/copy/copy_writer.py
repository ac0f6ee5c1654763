"""Writes copies of small tablets into the database, which ingests files of larger ones.

RocksDB's Python binding holds the GIL while the database ingests a file, also during its syncs. Entries that
are written take a flush, which several tablets share.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from stele.errors import Corrupt
from stele.member.background import Background
from stele.ports.engine import Engine
from stele.wire.copy.blocks import BlockReader, Entry
from stele.wire.storage import keys

WRITTEN_TOGETHER = 256
"""Entries that are written in one turn of the event loop."""


class CopyWriter:
    """Writes files of blocks. Each call returns when their entries are on disk."""

    def __init__(self, engine: Engine, background: Background) -> None:
        self._engine, self._background = engine, background
        self._flushing = asyncio.Lock()
        self._asked = self._flushed = 0

    async def write(self, paths: Sequence[Path], within: tuple[bytes, bytes]) -> None:
        """Write the entries of these files. Raises Corrupt for damage, or keys outside of [begin, end)."""
        for path in paths:
            entries = await self._background.in_thread(_read, path, within)
            for first in range(0, len(entries), WRITTEN_TOGETHER):
                self._engine.write_data(entries[first : first + WRITTEN_TOGETHER])
                await asyncio.sleep(0)
        await self._flush()

    async def _flush(self) -> None:
        """Wait for a flush that began after this call: its own, or that of another call."""
        self._asked = number = self._asked + 1
        async with self._flushing:
            if self._flushed < number:
                self._flushed = await self._background.in_thread(self._flush_all)

    def _flush_all(self) -> int:
        """Flush in a thread. Returns the last call that it is for."""
        covered = self._asked
        self._engine.flush()
        return covered


def _read(path: Path, within: tuple[bytes, bytes]) -> list[Entry]:
    entries: list[Entry] = []
    with path.open("rb") as file:
        for found, values in BlockReader(file.read):
            if not within[0] <= found[0] <= found[-1] < within[1]:
                raise foreign(str(path), within, (found[0], found[-1]))
            entries += zip(found, values, strict=True)
    return entries


def foreign(path: str, within: tuple[bytes, bytes], found: tuple[bytes, bytes]) -> Corrupt:
    """Return the error of a file whose first and last key are not within a tablet's range."""
    shown = [key[: keys.TABLET_PREFIX_BYTES].hex() for key in (*found, within[0])]
    return Corrupt(
        f"{Path(path).name}: its keys begin with {shown[0]} to {shown[1]}, but those of this tablet and "
        f"generation with {shown[2]}; the file belongs to another tablet; copy the tablet again"
    )
