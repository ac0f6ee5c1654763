"""What the master costs with many partitions and members: `python -m tests.simulation.scale_bench`.

See docs/internals/benchmarks.md, "Scale".
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console

from e2e.bench import machine
from e2e.bench.master import PARALLEL, PUTS_PER_MIGRATION_MAX
from e2e.bench.master_page import lines
from e2e.bench.master_rig import settings_of
from e2e.bench.report import Column, Goal, Report, Section, draw, factor, milliseconds
from e2e.cluster.steps import say
from stele.model.cluster import MEMBERS_LIMIT
from tests.simulation.scale_rig import Counts, ScaleRig

BEGIN, END = "<!-- make bench-scale: begin -->", "<!-- make bench-scale: end -->"
PLAN_SECONDS_MAX = 1.0
TAKE_OVER_SECONDS_MAX = 30.0
REST_SECONDS = 30.0
"""Virtual seconds of a cluster in which nothing happens."""


class Size(NamedTuple):
    """Of one run."""

    partitions: int
    members: int

    def __str__(self) -> str:
        return f"{self.partitions:,} x {self.members:,}"


QUICK = (Size(1_024, 10), Size(4_096, 30))
FULL = (*QUICK, Size(16_384, 100))
ALL = (*FULL, Size(65_536, 1_000))
EVENTS = ("form", "at rest", "leave", "join", "crash", "take-over")

COLUMNS = (
    Column("partitions", "partitions"),
    Column("members", "members"),
    Column("event", "event"),
    Column("changes", "changes"),
    Column("s", "seconds", lambda value: f"{value:,.1f}"),
    Column("processor s", "cpu_seconds", lambda value: f"{value:,.2f}"),
    Column("ms/change", "per_change", milliseconds),
    Column("longest step ms", "step_seconds", milliseconds),
    Column("plan ms", "plan_seconds", milliseconds),
    Column("messages", "messages"),
    Column("rows", "rows"),
    Column("puts/change", "puts_per_change", factor),
)
GROWTH = (
    Column("event", "event"),
    *(
        Column(title, key, factor)
        for title, key in (
            ("processor s", "cpu_seconds"),
            ("ms/change", "per_change"),
            ("longest step", "step_seconds"),
            ("plan", "plan_seconds"),
            ("messages", "messages"),
            ("rows", "rows"),
        )
    ),
)
_NOTE = """\
changes: migrations, first rows, rows that lost a member. s: of the virtual clock; at rest: so many seconds.
processor s, step and plan: of the master alone. rows: in messages, both ways. puts: writes of ConfigMaps."""
_GROWTH_NOTE = "The power of the partitions that a figure grows with: 1 is linear, 0 does not grow."


def run(report: Report, sizes: Sequence[Size]) -> None:
    """Fill the report. Raises BenchError when a cluster does not settle."""
    report.facts.update(settings_of(PARALLEL))
    section = report.section("One master, empty tablets", COLUMNS, _NOTE)
    for size in sizes:
        _Measurement(section, size).run()
        report.facts["memory_bytes_used"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    growth = report.section("Growth", GROWTH, _GROWTH_NOTE)
    growth.rows += [_growth(section, event) for event in EVENTS]
    report.goals += _goals(section)


class _Measurement:
    """One cluster through all events."""

    def __init__(self, section: Section, size: Size) -> None:
        self._section, self._size = section, size
        self._rig = ScaleRig(size.partitions, size.members, PARALLEL)

    def run(self) -> None:
        rig, members = self._rig, self._size.members
        self._measure("form", rig.create, members, lambda: self._size.partitions)
        self._measure("at rest", lambda: rig.clock.run(rig.clock.now + REST_SECONDS), members)
        self._measure("leave", lambda: rig.scale(members - 1), members - 1)
        self._measure("join", lambda: rig.scale(members), members)
        lost = rig.state.table.replica_index.number(0)
        self._measure("crash", lambda: rig.crash(0), members - 1, lambda: lost)
        self._measure("take-over", rig.replace_master, members - 1)

    def _measure(
        self, event: str, begin: Callable[[], object], members: int, others: Callable[[], int] = lambda: 0
    ) -> None:
        """Let it happen until the cluster has settled; `others` are changes that are no migrations."""
        say(f"{self._size}: {event}")
        rig = self._rig
        before, start = self._migrations(), rig.clock.now
        with rig.measured() as counts:
            begin()
            rig.until(event, lambda: rig.settled(members))
            found = replace(counts)
        changes = others() + (0 if event == "take-over" else self._migrations() - before)
        self._section.rows.append(self._row(event, found, changes, rig.clock.now - start))

    def _migrations(self) -> int:
        state = self._rig.master.state
        ended = {} if state is None else state.rebalance.migrations_ended
        return sum(number for (_, stored), number in ended.items() if stored)

    def _row(self, event: str, counts: Counts, changes: int, seconds: float) -> dict[str, Any]:
        each = changes or None
        return {
            "partitions": self._size.partitions,
            "members": self._size.members,
            "event": event,
            "changes": each,
            "seconds": round(seconds, 1),
            "cpu_seconds": counts.cpu_seconds,
            "per_change": each and counts.cpu_seconds / each,
            "step_seconds": counts.step_seconds,
            "plan_seconds": counts.plan_seconds or None,
            "messages": counts.messages,
            "rows": counts.rows,
            "bytes_sent": counts.bytes_sent,
            "puts_per_change": each and counts.puts / each,
        }


def power(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the power of the first that the second grows with, by least squares of their logarithms.

    None for fewer than two sizes.
    """
    logs = [(log(size), log(value)) for size, value in points if value > 0]
    if len({size for size, _ in logs}) < 2:
        return None
    middle, level = (fmean(each) for each in zip(*logs, strict=True))
    spread = sum((size - middle) ** 2 for size, _ in logs)
    return sum((size - middle) * (value - level) for size, value in logs) / spread


def _growth(section: Section, event: str) -> dict[str, Any]:
    rows = [row for row in section.rows if row["event"] == event]
    found: dict[str, Any] = {"event": event}
    for column in GROWTH[1:]:
        measured = [(row["partitions"], row[column.key]) for row in rows if row[column.key]]
        found[column.key] = power(measured)
    return found


def _goals(section: Section) -> list[Goal]:
    """What issue and page promise, of all sizes that were measured."""
    plans = max((row["plan_seconds"] or 0.0 for row in section.rows), default=0.0)
    over = max((row["cpu_seconds"] for row in section.rows if row["event"] == "take-over"), default=0.0)
    moves = [row for row in section.rows if row["event"] in ("join", "leave")]
    puts = max((row["puts_per_change"] or 0.0 for row in moves), default=0.0)
    return [
        Goal("a plan in less than 1 s", f"{plans:.2f} s", plans < PLAN_SECONDS_MAX),
        Goal("a take-over in less than 30 s of the processor", f"{over:.2f} s", over < TAKE_OVER_SECONDS_MAX),
        Goal(
            "fewer than 0.1 writes of ConfigMaps for each migration",
            f"{puts:.3f}",
            puts < PUTS_PER_MIGRATION_MAX,
        ),
    ]


def _size(text: str) -> Size:
    partitions, _, members = text.partition("x")
    try:
        size = Size(int(partitions), int(members))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 4096x30") from error
    if size.partitions < 1 or not 3 <= size.members <= MEMBERS_LIMIT:
        needed = f"at least 1 partition, and 3 to {MEMBERS_LIMIT:,} members"
        raise argparse.ArgumentTypeError(f"{text!r}: a cluster here has {needed}")
    return size


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("scale_bench", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=_size, help="PARTITIONSxMEMBERS, such as 4096x30")
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes")
    parser.add_argument("--all", action="store_true", help="65,536 partitions and 1,000 members, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON, too")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write scale.md for the page, too")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print what was found; 0 when every goal was met."""
    arguments = _arguments(words)
    logging.getLogger("stele").setLevel(logging.ERROR)
    report = Report("scale", quick=arguments.quick, facts=machine.facts())
    start = time.monotonic()
    sizes = arguments.sizes or (ALL if arguments.all else QUICK if arguments.quick else FULL)
    run(report, sizes)
    report.complete, report.seconds = not arguments.sizes, time.monotonic() - start
    draw(report, Console(width=160))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    if arguments.report is not None:
        write(report, arguments.report)
    return 1 if report.missed else 0


def write(report: Report, folder: Path) -> None:
    """Write what the page has between its marks."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join([BEGIN, *lines(report), END, ""])
    folder.joinpath("scale.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
