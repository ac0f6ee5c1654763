"""What a source sends is held to the rate of its session, whoever reads, and counted."""

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import pytest

from stele.core.control.commands import CopyItem
from stele.core.copy.pacing import BURST_SECONDS
from stele.errors import SteleError
from stele.transfer.client.copy import copy_tablets
from stele.transfer.jobs.board import Report
from stele.transfer.jobs.direct import DirectRunner
from stele.transfer.server import open_checkpoints
from stele.wire.copy.jobs import CopyJob
from tests.transfer.checkpoints import TOKEN, make_checkpoint, own_headers, transfer

SIZE = 2_000_000
RATE = 1_000_000
LARGE = {(b"default", b"k%d" % number): (bytes(1000), 0) for number in range(SIZE // 1000)}


def set_rate(volume: Path, rate: int) -> None:
    path = volume / "checkpoints" / "s-1" / "session.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bytes_per_second": rate}))


async def copied(url: str, staging: Path, *partitions: int) -> tuple[int, float]:
    """Copies the partitions side by side; bytes and seconds."""
    sizes: list[int] = []

    def work(partition: int) -> None:
        items = (CopyItem(partition, 3, 9),)
        job = CopyJob("s-1", "demo-1", "", url, TOKEN, items)
        copy_tablets(job, items, staging=staging, progress=sizes.append, finished=lambda manifest: None)

    begun = time.monotonic()
    await asyncio.gather(*(asyncio.to_thread(work, each) for each in partitions))
    return sum(sizes), time.monotonic() - begun


@pytest.mark.parametrize("streams", [1, 2])
async def test_streams_of_a_session_share_its_rate(volume: Path, staging: Path, streams: int) -> None:
    parts = list(LARGE.items())
    each = len(parts) // streams
    tablets = {n: (3, dict(parts[n * each : (n + 1) * each])) for n in range(streams)}
    make_checkpoint(volume, "s-1", tablets)
    set_rate(volume, RATE)
    async with transfer(volume) as url:
        size, seconds = await copied(url, staging, *range(streams))
    assert size > SIZE
    assert size <= RATE * (seconds + BURST_SECONDS) * 1.01
    # Other work on the machine may make it slower; the limit itself does not, by much.
    assert seconds < 3 * size / RATE


async def test_the_engine_direct_is_held_to_the_rate(volume: Path, staging: Path) -> None:
    """The job runs in the destination's own copying process, two threads of it."""
    make_checkpoint(volume, "s-1", dict.fromkeys(range(2), (3, LARGE)))
    set_rate(volume, 2 * RATE)
    reports: list[Report] = []
    runner = DirectRunner(staging.parent)
    async with transfer(volume) as url:
        items = tuple(CopyItem(n, 3, 9, SIZE) for n in range(2))
        begun = time.monotonic()
        await runner.run(CopyJob("s-1", "demo-1", "", url, TOKEN, items), lambda: None, reports.append)
        seconds = time.monotonic() - begun
    await runner.close()
    assert (reports[-1].tasks, reports[-1].retries) == (2, 0)
    assert 2 * SIZE < reports[-1].copied_bytes <= 2 * RATE * (seconds + BURST_SECONDS) * 1.01


async def test_small_tablets_are_held_to_the_rate_as_well(volume: Path, staging: Path) -> None:
    some = dict(list(LARGE.items())[:100])
    make_checkpoint(volume, "s-1", dict.fromkeys(range(20), (3, some)))
    set_rate(volume, RATE)
    async with transfer(volume) as url:
        size, seconds = await copied(url, staging, *range(20))
    assert size > 20 * 100_000
    assert size <= RATE * (seconds + BURST_SECONDS) * 1.01


async def test_without_a_rate_nothing_is_held_back(volume: Path, staging: Path) -> None:
    make_checkpoint(volume, "s-1", {7: (3, LARGE)})
    async with transfer(volume) as url:
        size, seconds = await copied(url, staging, 7)
    assert size / seconds > 2 * RATE


async def test_a_rate_that_is_raised_counts_at_once(volume: Path, staging: Path) -> None:
    make_checkpoint(volume, "s-1", {7: (3, LARGE)})
    set_rate(volume, RATE // 20)
    async with transfer(volume) as url:
        copying = asyncio.create_task(copied(url, staging, 7))
        await asyncio.sleep(0.5)
        set_rate(volume, 0)
        _, seconds = await copying
    assert seconds < SIZE / (RATE // 20) / 4


async def test_what_was_sent_is_told_to_the_member_of_the_pod(volume: Path, staging: Path) -> None:
    make_checkpoint(volume, "s-1", {7: (3, LARGE)})
    async with transfer(volume) as url, aiohttp.ClientSession() as http:

        async def sent() -> list[dict[str, object]]:
            async with http.get(url + "/v1/sessions", headers=own_headers(volume)) as answer:
                assert answer.status == 200
                return (await answer.json())["sessions"]  # type: ignore[no-any-return]

        assert await sent() == []
        size, _ = await copied(url, staging, 7)
        (one,) = await sent()
        assert (one["session"], one["streams"]) == ("s-1", 0)
        assert int(str(one["sent_bytes"])) >= size


async def test_a_stream_stops_when_its_session_is_closed(
    volume: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_checkpoints, "RATE_SECONDS", 0.05)
    make_checkpoint(volume, "s-1", {7: (3, LARGE)})
    set_rate(volume, RATE // 4)
    async with transfer(volume) as url:
        copying = asyncio.create_task(copied(url, staging, 7))
        await asyncio.sleep(0.3)
        (volume / "checkpoints" / "s-1" / "session.json").unlink()
        with pytest.raises(SteleError) as refused:
            await copying
    assert refused.value.code == "SOURCE"
    assert "does not exist" in str(refused.value)
