"""Copies of small tablets, written into the database entry by entry."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stele.adapters.memory.engine import MemoryEngine
from stele.errors import Corrupt
from stele.member.background import Background
from stele.member.copy.copy_writer import WRITTEN_TOGETHER, CopyWriter
from stele.wire.copy.blocks import Entry
from stele.wire.storage.keys import tablet_range, user_key
from tests.fakes.transfer import pack_blocks


class SlowFlush(MemoryEngine):
    """Counts flushes, which end when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes, self.began, self.may_end = 0, threading.Event(), threading.Event()

    def flush(self) -> None:
        self.flushes += 1
        self.began.set()
        assert self.may_end.wait(10)
        super().flush()


def entries(partition: int, count: int = 3) -> list[Entry]:
    return [(user_key(partition, 1, b"default", b"%06d" % each), b"v" * 9) for each in range(count)]


def file(folder: Path, partition: int, count: int = 3) -> Path:
    path = folder / f"{partition}.blocks"
    path.write_bytes(pack_blocks(entries(partition, count))[0])
    return path


@asynccontextmanager
async def writer(engine: MemoryEngine) -> AsyncIterator[CopyWriter]:
    background = Background(lambda error: None)
    try:
        yield CopyWriter(engine, background)
    finally:
        background.slow.shutdown()


async def test_entries_are_on_disk_when_it_returns(tmp_path: Path) -> None:
    engine, count = MemoryEngine(), 2 * WRITTEN_TOGETHER + 1
    async with writer(engine) as made:
        await made.write([file(tmp_path, 7, count)], tablet_range(7, 1))
    restarted = engine.crashed(power_lost=True)
    assert restarted.scan(*tablet_range(7, 1), count + 1) == entries(7, count)


async def test_tablets_share_a_flush_that_began_after_they_were_written(tmp_path: Path) -> None:
    engine = SlowFlush()
    async with writer(engine) as made:
        first = asyncio.create_task(made.write([file(tmp_path, 1)], tablet_range(1, 1)))
        assert await asyncio.to_thread(engine.began.wait, 10)
        others = [made.write([file(tmp_path, each)], tablet_range(each, 1)) for each in range(2, 9)]
        asyncio.get_running_loop().call_later(0.05, engine.may_end.set)
        await asyncio.gather(first, *others)
    assert 2 <= engine.flushes < 8
    restarted = engine.crashed(power_lost=True)
    assert all(restarted.scan(*tablet_range(each, 1), 9) == entries(each) for each in range(1, 9))


async def test_keys_of_another_tablet_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    engine = MemoryEngine()
    async with writer(engine) as made:
        with pytest.raises(Corrupt, match="the file belongs to another tablet; copy the tablet again"):
            await made.write([file(tmp_path, 7)], tablet_range(8, 1))
    assert engine.scan(b"", b"\xff", 9) == []


async def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    engine, path = MemoryEngine(), file(tmp_path, 7)
    path.write_bytes(path.read_bytes()[:-1])
    async with writer(engine) as made:
        with pytest.raises(Corrupt, match="the stream stops"):
            await made.write([path], tablet_range(7, 1))
    assert engine.scan(b"", b"\xff", 9) == []
