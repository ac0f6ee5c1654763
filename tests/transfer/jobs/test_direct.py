"""Copying processes: used again, and ended."""

import asyncio
import socket
import time

import pytest

from stele.errors import SteleError
from stele.transfer.jobs import direct
from stele.transfer.jobs.board import JobBoard
from stele.wire.copy.jobs import CopyJob
from tests.transfer.checkpoints import ENTRIES, ITEM, TOKEN, make_checkpoint, transfer


async def test_cancelling_ends_the_copying_process(volume, staging):
    listener = socket.create_server(("127.0.0.1", 0))
    job = CopyJob("s-1", "m", "c", f"http://127.0.0.1:{listener.getsockname()[1]}", "t", (ITEM,))
    board = JobBoard(direct.DirectRunner(staging.parent), 1)
    board.submit(job)
    for _ in range(500):
        await asyncio.sleep(0.02)
        if board.status("s-1").state == "RUNNING":
            break
    begin = time.monotonic()
    assert await board.cancel("s-1")
    assert time.monotonic() - begin < 5
    assert board.status("s-1") is None
    listener.close()


async def test_a_copying_process_takes_jobs_one_after_the_other_until_one_fails(volume, staging, monkeypatch):
    for session in ("s-1", "s-2"):
        make_checkpoint(volume, session, {7: (3, ENTRIES)})
    pids = []
    monkeypatch.setattr(direct, "IDLE_SECONDS", 0.3)
    runner = direct.DirectRunner(staging.parent)

    async def run(url, session):
        job = CopyJob(session, "m", "c", url, TOKEN, (ITEM,))
        try:
            await runner.run(job, lambda: None, lambda report: None)
        finally:
            pids.append(runner._idle[0]._process.pid if runner._idle else 0)

    async with transfer(volume) as url:
        await run(url, "s-1")
        await run(url, "s-2")
        assert len(set(pids)) == 1
        with pytest.raises(SteleError, match="404"):
            await run(url, "s-3")
        assert pids[-1] == 0, "a process whose job failed is not used again"
        await run(url, "s-2")
    assert pids[-1] not in (0, pids[0])
    await asyncio.sleep(0.6)
    assert not runner._idle, "a process that waited long enough ends"
    await runner.close()
