"""Small tablets: a source serves streams without a checkpoint, and a destination keeps blocks."""

import asyncio
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from stele.core.control.commands import CopyItem, OpId, SessionTablet
from stele.errors import BadInput, Corrupt, Unavailable
from stele.transfer.client import fragment_writer
from stele.transfer.client.copy import copy_tablets
from stele.transfer.client.fragment_writer import EXPIRED_MARGIN_MS
from stele.transfer.server.checkpoint import StoredStreams, encode_planned
from stele.wire.copy.blocks import BlockReader, Entry
from stele.wire.copy.fragments import FIRST, whole
from stele.wire.copy.jobs import BLOCKS_SUFFIX, BLOCKS_TABLET_BYTES_MAX, CopyJob, Manifest, stream_file
from stele.wire.storage.keys import TABLET_PREFIX_BYTES, pack_value, tablet_prefix, user_key
from tests.transfer.checkpoints import TOKEN, transfer

TABLET = SessionTablet(7, 3, OpId(2, 17), 1000, (17, 16))
ITEM = CopyItem(7, 3, 9, 1000)
ENTRIES = [(user_key(7, 3, b"default", b"k%d" % number), pack_value(b"v" * number, 0)) for number in range(9)]


def store(volume: Path, entries: list[Entry]) -> Path:
    """What a member leaves when it opens a session of a small tablet."""
    folder = volume / "checkpoints" / "s-1"
    folder.mkdir(parents=True)
    blocks = encode_planned(TABLET, whole(7, 3, (b"default",)), entries, lambda: "")
    (folder / stream_file(7, 3)).write_bytes(b"".join(blocks))
    tablet = {"partition": 7, "generation": 3, "applied": [2, 17], "bytes": 1000, "versions": [17, 16]}
    (folder / "session.json").write_text(json.dumps({"session": "s-1", "token": TOKEN, "tablets": [tablet]}))
    return folder


def copied(url: str, staging: Path, item: CopyItem = ITEM, *, blocks: bool = True) -> Manifest:
    made: list[Manifest] = []
    job = CopyJob("s-1", "m", "", url, TOKEN, (item,), blocks=blocks)
    copy_tablets(job, job.items, staging=staging, progress=lambda more: None, finished=made.append)
    (manifest,) = made
    return manifest


def entries_of(content: bytes) -> list[Entry]:
    columns = BlockReader(io.BytesIO(content).read)
    return [entry for keys, values in columns for entry in zip(keys, values, strict=True)]


async def in_thread(*args: Any, **kwargs: Any) -> Manifest:
    return await asyncio.to_thread(copied, *args, **kwargs)


async def test_a_small_tablet_becomes_blocks_under_its_new_generation(volume: Path, staging: Path) -> None:
    store(volume, ENTRIES)
    async with transfer(volume) as url:
        manifest = await in_thread(url, staging)
    (fragment,) = manifest.fragments
    assert (manifest.applied, fragment.next) == (OpId(2, 17), "")
    assert fragment.file.endswith(BLOCKS_SUFFIX)
    content = (staging / "s-1" / fragment.file).read_bytes()
    assert len(content) == fragment.file_bytes
    renamed = [(tablet_prefix(7, 9) + key[TABLET_PREFIX_BYTES:], value) for key, value in ENTRIES]
    assert entries_of(content) == renamed
    assert manifest.bytes == sum(len(key) + len(value) for key, value in renamed)


@pytest.mark.parametrize(
    ("size", "blocks"),
    [(1000, False), (0, True), (BLOCKS_TABLET_BYTES_MAX + 1, True)],
    ids=["spark", "unknown", "large"],
)
async def test_other_copies_are_sst_files(volume: Path, staging: Path, size: int, blocks: bool) -> None:
    """Of those who do not ask for blocks, and of tablets that are not known to be small."""
    store(volume, ENTRIES)
    async with transfer(volume) as url:
        manifest = await in_thread(url, staging, CopyItem(7, 3, 9, size), blocks=blocks)
    assert [file.rpartition(".")[2] for file in manifest.files] == ["sst"]


async def test_blocks_leave_out_what_expired_long_ago(volume: Path, staging: Path) -> None:
    now_ms = int(time.time() * 1000)
    old, just = now_ms - EXPIRED_MARGIN_MS - 60_000, now_ms - 1000
    store(
        volume, [(user_key(7, 3, b"", key), pack_value(b"", at)) for key, at in ((b"a", old), (b"b", just))]
    )
    async with transfer(volume) as url:
        manifest = await in_thread(url, staging)
    (file,) = manifest.files
    assert entries_of((staging / "s-1" / file).read_bytes()) == [
        (user_key(7, 9, b"", b"b"), pack_value(b"", just))
    ]


async def test_a_tablet_of_which_everything_expired_has_no_file(volume: Path, staging: Path) -> None:
    store(volume, [(user_key(7, 3, b"", b"a"), pack_value(b"", 1))])
    async with transfer(volume) as url:
        manifest = await in_thread(url, staging)
    assert (manifest.files, manifest.entries) == ([], 0)


async def test_a_damaged_stream_is_not_copied(volume: Path, staging: Path) -> None:
    path = store(volume, ENTRIES) / stream_file(7, 3)
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    async with transfer(volume) as url:
        with pytest.raises(Corrupt, match="wrong crc32c"):
            await in_thread(url, staging)
    assert list((staging / "s-1").iterdir()) == []


async def test_a_source_that_sends_more_than_it_said_is_refused(
    volume: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_writer, "BLOCKS_BYTES_MAX", 300)
    store(volume, ENTRIES)
    async with transfer(volume) as url:
        with pytest.raises(Corrupt, match="the tablet was said to have 1000"):
            await in_thread(url, staging)
    assert list((staging / "s-1").iterdir()) == []


def test_a_stream_has_one_piece(volume: Path) -> None:
    streams = StoredStreams(store(volume, ENTRIES))
    for at in ("", FIRST):
        assert len(list(streams.blocks(TABLET, at))) == 1
    with pytest.raises(BadInput, match="at is '1', and partition 7 is one piece"):
        streams.blocks(TABLET, "1")
    with pytest.raises(Unavailable, match="partition 8 cannot be read"):
        next(streams.blocks(SessionTablet(8, 3, OpId(), 0)))
