"""The master at work on a real kube-apiserver and etcd: migrations, repairs, take-over, memory, writes.

Members hold empty tablets and answer at once, so what is measured is the master and the API server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from e2e.bench import master_page
from e2e.bench.master_rig import Rig, rig, settings_of, spec_of
from e2e.bench.report import Column, Goal, Report, Section, factor, plain, whole
from e2e.cluster.steps import say
from stele.model.cluster import MigrationSpec

TITLE = "the master on a real API server: migrations, repairs, take-over, memory (minutes; quick: two)"
PARALLEL = MigrationSpec().max_parallel_per_member
STEP_SECONDS_MAX = 0.02
SCALE_DOWN_PER_SECOND = 14_000 / 60
REPAIRS_PER_SECOND = 26_150 / 51
TAKE_OVER_SECONDS_MAX = 5.0
MEMORY_BYTES_MAX = 300 << 20
PUTS_PER_MIGRATION_MAX = 0.1

_NOTE = """\
changes: migrations, first rows, rows that lost a member. step99: 99 of 100 decisions took at most so long.
puts: writes of ConfigMaps for each change. Memory is the operator's most so far."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of one run: a scale-down takes four of ten members away."""

    partitions: int
    members: int

    @property
    def left(self) -> int:
        return self.members - self.members * 4 // 10


EVENTS = ("form", "crash", "scale-down", "take-over")
FULL = (Size(1_024, 10), Size(4_096, 10), Size(16_384, 10), Size(4_096, 5), Size(4_096, 20))
QUICK = (Size(1_024, 10),)
LARGEST = Size(16_384, 10)


COLUMNS = (
    Column("partitions", "partitions"),
    Column("members", "members"),
    Column("event", "event"),
    Column("changes", "changes"),
    Column("s", "seconds", lambda value: f"{value:.1f}"),
    Column("changes/s", "per_second", whole),
    Column("operator s", "operator_seconds", lambda value: f"{value:.1f}"),
    Column("puts/change", "puts_per_change", factor),
    Column("step99 ms", "step_seconds", lambda value: f"{value * 1e3:,.0f}"),
    Column("memory MiB", "memory_bytes", lambda value: plain(value >> 20)),
)

write = master_page.write


def run(report: Report, quick: bool) -> None:
    """Fill the report; raises BenchError and ClusterError when something outside is not as it must be."""
    report.facts.update(settings_of(PARALLEL))
    section = report.section("One master, empty tablets", COLUMNS, _NOTE)
    for size in QUICK if quick else FULL:
        asyncio.run(_Measurement(section, size).run())
    if not quick:
        report.goals.extend(_goals(section))


class _Measurement:
    """One cluster, from its first member to a new master."""

    def __init__(self, section: Section, size: Size) -> None:
        self._section, self._size = section, size

    async def run(self) -> None:
        async with rig(Rig) as found:
            self._rig = found
            await found.start_operator()
            form, crash, scale_down, take_over = EVENTS
            await self._measure(form, self._form)
            await self._measure(crash, self._crash)
            await self._measure(scale_down, self._scale_down)
            await self._take_over(take_over)

    # Each returns the changes of rows that are no migrations.

    async def _form(self) -> int:
        size = self._size
        await self._rig.apply(spec_of(size.members, size.partitions, PARALLEL))
        await self._rig.until_status("a whole cluster", _whole(size.members))
        return size.partitions

    async def _crash(self) -> int:
        before, lost = int((await self._rig.status())["versionSum"]), await self._rig.replicas_of("bench-0")
        await self._rig.kill_member("bench-0")
        await self._rig.until_status("a repaired cluster", _repaired(self._size.members - 1, before))
        return lost

    async def _scale_down(self) -> int:
        size = self._size
        await self._rig.apply(spec_of(size.left, size.partitions, PARALLEL))
        await self._rig.until_status("a smaller cluster", _whole(size.left))
        return 0

    async def _measure(self, event: str, work: Callable[[], Awaitable[int]]) -> None:
        say(f"{self._size.partitions} partitions, {self._size.members} members: {event}")
        puts, steps = await self._rig.puts(), await self._steps()
        migrations = await self._rig.migrations()
        used, _ = self._rig.operator_usage()
        start = time.monotonic()
        others = await work()
        seconds = time.monotonic() - start
        used_after, memory = self._rig.operator_usage()
        changes = others + await self._rig.migrations() - migrations
        self._section.rows.append(
            {
                "partitions": self._size.partitions,
                "members": self._size.members,
                "event": event,
                "changes": changes,
                "seconds": seconds,
                "per_second": changes / seconds,
                "operator_seconds": used_after - used,
                "puts_per_change": (await self._rig.puts() - puts) / max(1, changes),
                "step_seconds": quantile(steps, await self._steps(), 0.99),
                "memory_bytes": memory,
            }
        )

    async def _steps(self) -> dict[float, int]:
        try:
            return await self._rig.decisions()
        except OSError:
            return {}

    async def _take_over(self, event: str) -> None:
        """Kill the master, start another, and wait until that leads over all members."""
        epoch = int((await self._rig.status())["epoch"])
        await self._rig.kill_operator()
        start = await self._rig.start_operator()
        await self._rig.until_status("a new leadership", lambda status: int(status["epoch"]) > epoch)
        _, memory = self._rig.operator_usage()
        self._section.rows.append(
            {
                "partitions": self._size.partitions,
                "members": self._size.members,
                "event": event,
                "seconds": time.monotonic() - start,
                "memory_bytes": memory,
            }
        )


def _whole(members: int) -> Callable[[dict[str, Any]], bool]:
    def check(status: dict[str, Any]) -> bool:
        parts, found = status["partitions"], status["members"]
        safe = parts["total"] > 0 and parts["safe"] == parts["total"]
        return safe and found["current"] == found["ready"] == members and _quiet(status)

    return check


def _repaired(members: int, version_sum: int) -> Callable[[dict[str, Any]], bool]:
    def check(status: dict[str, Any]) -> bool:
        parts = status["partitions"]
        changed = int(status["versionSum"]) > version_sum and status["members"]["ready"] == members
        return changed and parts["safe"] == parts["total"] and _quiet(status)

    return check


def _quiet(status: dict[str, Any]) -> bool:
    counts = status["migrations"]
    return not counts["active"] and not counts["waiting"]


def quantile(before: dict[float, int], after: dict[float, int], share: float) -> float | None:
    """The limit that `share` of what came between two readings of a histogram kept; None without any."""
    grown = {limit: number - before.get(limit, 0) for limit, number in sorted(after.items())}
    total = max(grown.values(), default=0)
    return (
        next((limit for limit, number in grown.items() if number >= share * total), None) if total else None
    )


def _goals(section: Section) -> list[Goal]:
    found = {
        row["event"]: row
        for row in section.rows
        if (row["partitions"], row["members"]) == (LARGEST.partitions, LARGEST.members)
    }
    down, crash, over = found["scale-down"], found["crash"], found["take-over"]
    memory = max(row["memory_bytes"] for row in found.values())
    step = down["step_seconds"]
    return [
        Goal(
            f"scale-down: at least {SCALE_DOWN_PER_SECOND:.0f} migrations/s (14,000 in 60 s)",
            f"{down['per_second']:.0f}",
            down["per_second"] >= SCALE_DOWN_PER_SECOND,
        ),
        Goal(
            f"crash: at least {REPAIRS_PER_SECOND:.0f} changes/s (26,150 in 51 s)",
            f"{crash['per_second']:.0f}",
            crash["per_second"] >= REPAIRS_PER_SECOND,
        ),
        Goal(
            f"take-over in {TAKE_OVER_SECONDS_MAX:g} s, the start of the process included",
            f"{over['seconds']:.1f}",
            over["seconds"] <= TAKE_OVER_SECONDS_MAX,
        ),
        Goal(
            f"99 of 100 decisions within {STEP_SECONDS_MAX * 1e3:g} ms while migrations run",
            f"{step}",
            step is not None and step <= STEP_SECONDS_MAX,
        ),
        Goal(
            f"at most {PUTS_PER_MIGRATION_MAX} writes of ConfigMaps for each migration",
            f"{down['puts_per_change']:.2f}",
            down["puts_per_change"] <= PUTS_PER_MIGRATION_MAX,
        ),
        Goal("operator below 300 MiB", f"{memory >> 20} MiB", memory <= MEMORY_BYTES_MAX),
    ]
