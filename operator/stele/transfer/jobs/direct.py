"""The Direct engine: runs jobs in child processes of the destination's transfer process."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from stele.errors import Refused, SteleError
from stele.transfer.jobs.board import Report
from stele.transfer.jobs.child import CopyEnded, CopyProgress
from stele.wire.copy.jobs import CopyJob

LINE_BYTES_MAX = 16 * 1024 * 1024
IDLE_SECONDS = 30.0
_decode = msgspec.json.Decoder(CopyProgress | CopyEnded).decode


class DirectRunner:
    """A `CopyRunner`. `data` is this member's volume, `tls_dir` has its certificate, empty for none.

    A child that ended its job well waits `IDLE_SECONDS` for another: starting Python costs more than a small
    copy, and a rebalance has many.
    """

    def __init__(self, data: Path, tls_dir: str = "") -> None:
        self._data, self._tls_dir = data, tls_dir
        self._idle: list[_Child] = []

    async def run(self, job: CopyJob, starting: Callable[[], None], report: Callable[[Report], None]) -> None:
        """Part of `CopyRunner`. Being cancelled ends the child at once; its half files are swept."""
        starting()
        ended = await self._in_child(job, report)
        if ended is None:
            raise Refused("the copy process ended before its job did", "INTERNAL")
        if ended.code:
            raise SteleError(ended.text, ended.code)

    async def _in_child(self, job: CopyJob, report: Callable[[Report], None]) -> CopyEnded | None:
        child = await self._take()
        ended: CopyEnded | None = None
        try:
            ended = await child.copy(job, report)
        finally:
            if ended is not None and not ended.code:
                self._keep(child)
            else:
                await child.end()
        return ended

    async def _take(self) -> "_Child":
        """Return an idle child, or start one."""
        while self._idle:
            child = self._idle.pop()
            if child.is_alive():
                return child
            await child.end()
        return await _Child.start(self._data, self._tls_dir)

    def _keep(self, child: "_Child") -> None:
        self._idle.append(child)
        self._expire(child, child.jobs)

    def _expire(self, child: "_Child", jobs: int) -> None:
        async def end() -> None:
            await asyncio.sleep(IDLE_SECONDS)
            if child in self._idle and child.jobs == jobs:
                self._idle.remove(child)
                await child.end()

        child.expiry = asyncio.get_running_loop().create_task(end())

    async def close(self) -> None:
        """End all idle children."""
        for child in self._idle:
            await child.end()
        self._idle.clear()


class _Child:
    """A process that copies, job after job."""

    def __init__(
        self, process: asyncio.subprocess.Process, lines: asyncio.StreamReader, pipe: asyncio.BaseTransport
    ) -> None:
        self._process, self._lines, self._pipe = process, lines, pipe
        self.expiry: asyncio.Task[None] | None = None
        self.jobs = 0

    @classmethod
    async def start(cls, data: Path, tls_dir: str) -> "_Child":
        reading, writing = os.pipe()
        reports = os.fdopen(reading, "rb", buffering=0)
        command = (sys.executable, "-m", "stele.transfer.jobs.child", str(data), tls_dir, str(writing))
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, pass_fds=(writing,)
            )
        except BaseException:
            reports.close()
            raise
        finally:
            os.close(writing)
        return cls(process, *await lines_of(reports))

    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def copy(self, job: CopyJob, report: Callable[[Report], None]) -> CopyEnded | None:
        """Run a job and return its end; None when the process died."""
        self.jobs += 1
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        return await _follow(self._lines, report)

    async def end(self) -> None:
        """Kill the process."""
        if self.expiry is not None and self.expiry is not asyncio.current_task():
            self.expiry.cancel()
        self._pipe.close()
        if self.is_alive():
            _kill(self._process)
        await self._process.wait()


async def lines_of(reports: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Return a pipe's reading end as a stream of lines; close the transport after use."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX, loop=loop)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reports)
    return reader, transport


async def _follow(lines: asyncio.StreamReader, report: Callable[[Report], None]) -> CopyEnded | None:
    while line := await lines.readline():
        message = _decode(line)
        if isinstance(message, CopyEnded):
            return message
        report(message.report)
    return None


def _kill(child: asyncio.subprocess.Process) -> None:
    try:
        child.kill()
    except ProcessLookupError:
        return
