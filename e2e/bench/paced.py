"""A member joins one that takes writes all the time, with a bandwidth limit: how long the copies take.

A real API server, operator and members on loopback. Copies of all tablets go to the new member at
`bandwidthPerMember`, while the owner keeps its log for those that are copied, at most `logSpacePerMember`. In
one wave the log of all tablets would be kept until the last one is copied, which is more than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from dataclasses import dataclass, field
from typing import Any

from e2e.bench.copy_rig import MemberRig, member_rig
from e2e.bench.errors import BenchError
from e2e.bench.report import Column, Goal, Report
from e2e.cluster.steps import say
from stele.core.kv.keyslot import partition_of

TITLE = "a member joins under writes, with a bandwidth limit"
VALUE_BYTES = 64 * 1024
WRITERS = 4
LOAD_BATCH = 8

UNANSWERED_MAX = 32
"""Writes of one client that are on their way at once: it waits for room, not for each answer."""

LATE_SECONDS_MAX = 1.0
"""What a client that fell behind makes up for at most."""

SLOWER_GOAL = 2.0
"""Most times that the join may take of what its bytes take at the limit."""

RATE_GOAL = 0.95
"""Least share of the writes asked for that are acknowledged meanwhile."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes in bytes; rates in bytes per second, of all tablets together."""

    tablets: int
    tablet_bytes: int
    written_per_second: int
    bandwidth: int
    log_space: int

    @property
    def least_seconds(self) -> float:
        """Seconds that the bytes alone take at the limit."""
        return self.tablets * self.tablet_bytes / self.bandwidth

    def spec(self, members: int) -> dict[str, Any]:
        return {
            "members": members,
            "partitions": self.tablets,
            "replicas": 2,
            "storage": {"size": "20Gi"},
            "migration": {
                "engine": "Direct",
                "bandwidthPerMember": str(self.bandwidth),
                "logSpacePerMember": str(self.log_space),
            },
        }


QUICK = Case(8, 20_000_000, 2_000_000, 4 << 20, 8_000_000)
FULL = Case(12, 200_000_000, 10_000_000, 20 << 20, 128_000_000)

_COLUMNS = [
    Column("tablets", "tablets"),
    Column("MB each", "tablet_bytes", lambda value: f"{value / 1e6:.0f}"),
    Column("written, MB/s", "written_per_second", lambda value: f"{value / 1e6:.1f}"),
    Column("limit, MB/s", "bandwidth", lambda value: f"{value / 1e6:.1f}"),
    Column("log space, MB", "log_space", lambda value: f"{value / 1e6:.0f}"),
    Column("at the limit, s", "least_seconds", lambda value: f"{value:.0f}"),
    Column("until safe, s", "safe_seconds", lambda value: f"{value:.0f}"),
    Column("copied, MB", "copied_bytes", lambda value: f"{value / 1e6:.0f}"),
    Column("failed", "failed"),
    Column("errors", "errors"),
]


@dataclass
class Writer:
    """Clients of one member: they write keys of all tablets in turn, at a rate."""

    host: str
    port: int
    keys: list[bytes]
    written_bytes: int = 0
    errors: int = 0
    _value: bytes = field(default_factory=lambda: os.urandom(VALUE_BYTES))

    async def load(self) -> None:
        """Write every key once, in batches."""
        parts = [self.keys[place::WRITERS] for place in range(WRITERS)]
        await asyncio.gather(*(self._batches(part) for part in parts))

    async def _batches(self, keys: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        for first in range(0, len(keys), LOAD_BATCH):
            batch = keys[first : first + LOAD_BATCH]
            writer.writelines(map(self._set, batch))
            for _ in batch:
                await self._answer(reader)
        writer.close()

    async def write(self, bytes_per_second: int) -> None:
        """Write at the rate until cancelled."""
        gap = WRITERS * VALUE_BYTES / bytes_per_second
        async with asyncio.TaskGroup() as group:
            for place in range(WRITERS):
                group.create_task(self._paced(self.keys[place::WRITERS], gap, place))

    async def _paced(self, keys: list[bytes], gap: float, place: int) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        room, due = asyncio.Semaphore(UNANSWERED_MAX), time.monotonic() + gap * place / WRITERS
        with contextlib.closing(writer):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._answers(reader, room))
                for key in itertools.cycle(keys):
                    due = max(due + gap, time.monotonic() - LATE_SECONDS_MAX)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    await room.acquire()
                    writer.write(self._set(key))
                    await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, room: asyncio.Semaphore) -> None:
        while True:
            await self._answer(reader)
            room.release()

    def _set(self, key: bytes) -> bytes:
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, VALUE_BYTES)
        return head + self._value + b"\r\n"

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        answer = await reader.readline()
        if answer == b"+OK\r\n":
            self.written_bytes += VALUE_BYTES
        elif answer:
            self.errors += 1
        else:
            raise BenchError(f"{self.host}:{self.port} closed the connection of a client")


def run(report: Report, quick: bool) -> None:
    """Add what was measured to the report."""
    section = report.section("A second member joins one", _COLUMNS, "Direct; writes to all tablets in turn")
    for case in (QUICK,) if quick else (QUICK, FULL):
        row = asyncio.run(measured(case))
        section.rows.append(row)
        slower = row["safe_seconds"] / row["least_seconds"]
        met = slower <= SLOWER_GOAL and not row["errors"]
        text = f"a join takes at most {SLOWER_GOAL:g} times what its bytes take at the limit"
        report.goals.append(Goal(text, f"{slower:.2f} times, {row['errors']} errors", met))
        report.goals.append(rate_goal(case, row["written_per_second"]))


def rate_goal(case: Case, written_per_second: float) -> Goal:
    """Say whether clients wrote as fast as they were to: a join under less would show less."""
    share, wanted = written_per_second / case.written_per_second, case.written_per_second / 1e6
    text = f"at least {RATE_GOAL:.0%} of {wanted:g} MB/s of writes are acknowledged meanwhile"
    return Goal(text, f"{share:.0%}", share >= RATE_GOAL)


async def measured(case: Case) -> dict[str, Any]:
    """One row."""
    say(f"a member joins under {case.written_per_second / 1e6:g} MB/s: at least {case.least_seconds:.0f} s")
    async with member_rig(MemberRig) as rig:
        await rig.start_operator()
        await rig.apply(case.spec(1))
        await rig.until_status("one member that serves", _serves)
        writer = Writer(*rig.hosts()[0], _keys(case))
        await writer.load()
        task = asyncio.create_task(writer.write(case.written_per_second))
        before, begun = writer.written_bytes, time.monotonic()
        await rig.apply(case.spec(2))
        await rig.until_whole(2)
        seconds = time.monotonic() - begun
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(ended, asyncio.CancelledError):
            raise BenchError(f"the clients ended before the join did: {ended!r}")
        plans = [each.get("status", {}) for each in await rig.rebalances()]
    return {
        "tablets": case.tablets,
        "tablet_bytes": case.tablet_bytes,
        "written_per_second": (writer.written_bytes - before) / seconds,
        "bandwidth": case.bandwidth,
        "log_space": case.log_space,
        "least_seconds": case.least_seconds,
        "safe_seconds": seconds,
        "copied_bytes": sum(plan.get("bytesCopied", 0) for plan in plans),
        "failed": sum(plan.get("failed", 0) for plan in plans),
        "errors": writer.errors,
    }


def _serves(status: dict[str, Any]) -> bool:
    return any((each["type"], each["status"]) == ("Available", "True") for each in status["conditions"])


def _keys(case: Case) -> list[bytes]:
    """Return as many keys of each tablet as make up its bytes, the tablets in turn."""
    each = case.tablet_bytes // VALUE_BYTES
    keys: list[list[bytes]] = [[] for _ in range(case.tablets)]
    number = 0
    while any(len(found) < each for found in keys):
        key = b"k%d" % number
        number += 1
        mine = keys[partition_of(key, case.tablets)]
        if len(mine) < each:
            mine.append(key)
    return [key for turn in zip(*keys, strict=True) for key in turn]
