"""How long requests wait while a member hands everything that it owns over to its backups.

A real API server, operator and members on loopback; clients write to some of the partitions all the time. A
write is due every INTERVAL_SECONDS whatever the last one took, so the longest latency of a partition's writes
is how long it was frozen, until the new owner served, to within that interval.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from e2e.bench.copy_rig import MemberRig, member_rig, spec_of
from e2e.bench.master_rig import FINAL_PHASES, NAMESPACE
from e2e.bench.report import Column, Goal, Report, milliseconds
from e2e.cluster.steps import say
from stele.adapters.kubernetes.api import REBALANCES
from stele.core.kv.keyslot import partition_of
from stele.model import API_VERSION

TITLE = "a member hands all that it owns over to its backups"
OWNED = 271
MEMBERS = 3
WATCHED = 20
INTERVAL_SECONDS = 0.05
QUIET_SECONDS = 3.0
LONGEST_GOAL_SECONDS = 1.0

_COLUMNS = [
    Column("partitions", "partitions"),
    Column("all, s", "all_seconds", lambda value: f"{value:.2f}"),
    Column("quiet write, median ms", "quiet_median_seconds", milliseconds),
    Column("longest wait, median ms", "wait_median_seconds", milliseconds),
    Column("longest wait, most ms", "wait_max_seconds", milliseconds),
    Column("errors", "errors"),
]


@dataclass
class Watch:
    """Writes to one partition: (due, seconds) of each, and errors."""

    key: bytes
    writes: list[tuple[float, float]] = field(default_factory=list)
    errors: int = 0

    async def run(self, host: str, port: int) -> None:
        """Write until cancelled, over a connection of its own."""
        reader, writer = await asyncio.open_connection(host, port)
        due = time.monotonic()
        while True:
            due = max(due + INTERVAL_SECONDS, time.monotonic() - 10.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$1\r\nx\r\n" % (len(self.key), self.key))
            self.errors += await reader.readline() != b"+OK\r\n"
            self.writes.append((due, time.monotonic() - due))

    def longest(self, begin: float, end: float) -> float:
        return max((seconds for due, seconds in self.writes if begin <= due <= end), default=0.0)


def run(report: Report, quick: bool) -> None:
    """Add what was measured to the report."""
    section = report.section(
        f"One of {MEMBERS} members hands over",
        _COLUMNS,
        f"{WATCHED} of the partitions are written to, each every {INTERVAL_SECONDS * 1e3:.0f} ms",
    )
    for owned in (OWNED // 10,) if quick else (OWNED // 10, OWNED):
        section.rows.append(asyncio.run(_measured(owned)))
    text = f"no write waits longer than {LONGEST_GOAL_SECONDS:g} s, and none fails"
    worst = max(row["wait_max_seconds"] for row in section.rows)
    errors = sum(row["errors"] + row["left"] for row in section.rows)
    met = worst <= LONGEST_GOAL_SECONDS and not errors
    report.goals.append(Goal(text, f"{milliseconds(worst)} ms, {errors} errors", met))


async def _measured(owned: int) -> dict[str, Any]:
    partitions = owned * MEMBERS
    say(f"a member of {MEMBERS} hands over {owned} of {partitions} partitions")
    async with member_rig(MemberRig) as rig:
        await rig.start_operator()
        await rig.apply(spec_of(MEMBERS, partitions))
        await rig.until_whole(MEMBERS)
        rows = await rig.rows(partitions)
        mine = [number for number, row in enumerate(rows) if row.owner == 0]
        some = mine[:: -(-len(mine) // WATCHED)]
        watches = [Watch(_key_in(number, partitions)) for number in some]
        hosts = rig.hosts()[1:]
        tasks = [
            asyncio.create_task(watch.run(*hosts[place % len(hosts)])) for place, watch in enumerate(watches)
        ]
        await asyncio.sleep(QUIET_SECONDS)
        begin = time.monotonic()
        await _handed_over(rig)
        end = time.monotonic()
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = Counter(row.owner for row in await rig.rows(partitions))[0]
    return _row(watches, begin, end, len(mine)) | {"left": left}


def _row(watches: list[Watch], begin: float, end: float, partitions: int) -> dict[str, Any]:
    quiet = [seconds for watch in watches for due, seconds in watch.writes if due < begin]
    waits = [watch.longest(begin, end) for watch in watches]
    return {
        "partitions": partitions,
        "all_seconds": end - begin,
        "quiet_median_seconds": median(quiet),
        "wait_median_seconds": median(waits),
        "wait_max_seconds": max(waits),
        "errors": sum(watch.errors for watch in watches),
    }


def _key_in(partition: int, partitions: int) -> bytes:
    return next(key for n in range(1_000_000) if partition_of(key := b"k%d" % n, partitions) == partition)


async def _handed_over(rig: MemberRig) -> None:
    """Ask for it, and wait until the status says that it is done."""
    body = {
        "apiVersion": API_VERSION,
        "kind": "TabletRebalance",
        "metadata": {"name": "hand-over"},
        "spec": {"cluster": "bench", "handover": {"member": "bench-0"}},
    }
    await rig.api.create(REBALANCES, NAMESPACE, body)
    while True:
        stored = await rig.api.get(REBALANCES, NAMESPACE, "hand-over")
        if stored.get("status", {}).get("phase") in FINAL_PHASES:
            return
        await asyncio.sleep(0.05)
