"""The Direct engine: each job is a child process of the destination's own transfer process."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from stele.adapters.transfer.child import Ended, Progress
from stele.adapters.transfer.jobs import Report
from stele.core.errors import Refused, SteleError
from stele.wire.copyjobs import CopyJob

LINE_BYTES_MAX = 16 * 1024 * 1024
_decode = msgspec.json.Decoder(Progress | Ended).decode


class DirectRunner:
    """A `jobs.Runner`. `staging` is the folder of this member's volume that copies are written below."""

    def __init__(self, staging: Path) -> None:
        self._staging = staging

    async def run(self, job: CopyJob, report: Callable[[Report], None]) -> None:
        """Part of `jobs.Runner`. Being cancelled ends the child at once; its half files are swept."""
        ended = await self._in_child(job, report)
        if ended is None:
            raise Refused("the copying process ended before its job", "INTERNAL")
        if ended.code:
            raise SteleError(ended.text, ended.code)

    async def _in_child(self, job: CopyJob, report: Callable[[Report], None]) -> Ended | None:
        reading, writing = os.pipe()
        reports = os.fdopen(reading, "rb", buffering=0)
        try:
            child = await self._start(writing)
        except BaseException:
            reports.close()
            raise
        finally:
            os.close(writing)
        lines, transport = await lines_of(reports)
        try:
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(job))
            child.stdin.close()
            return await _follow(lines, report)
        finally:
            transport.close()
            if child.returncode is None:
                _kill(child)
            await child.wait()

    async def _start(self, writing: int) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "stele.adapters.transfer.child", str(self._staging), str(writing))
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, pass_fds=(writing,)
        )


async def lines_of(reports: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """A pipe's reading end as a stream of lines; close the transport when done with it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX, loop=loop)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reports)
    return reader, transport


async def _follow(lines: asyncio.StreamReader, report: Callable[[Report], None]) -> Ended | None:
    while line := await lines.readline():
        message = _decode(line)
        if isinstance(message, Ended):
            return message
        report(message.report)
    return None


def _kill(child: asyncio.subprocess.Process) -> None:
    try:
        child.kill()
    except ProcessLookupError:
        return
