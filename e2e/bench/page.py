"""What the operator's page costs a browser: frames of the map of a large cluster, in headless Chromium."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from e2e.bench.errors import BenchError
from e2e.bench.report import Column, Goal, Report, milliseconds, whole
from e2e.cluster.steps import say
from e2e.page.browser import Tab, chromium
from e2e.page.facts import Known, facts_of
from e2e.page.served import served
from stele.core.table.table import Partition
from stele.web.facts import Facts

TITLE = "frames of the page with 16,384 partitions and 100 members, in headless Chromium (a minute)"
PARTITIONS, MEMBERS = 16_384, 100
CHANGED_ROWS = 200
CHANGE_SECONDS = 1.0
CASE_SECONDS, QUICK_SECONDS = 10.0, 2.0
FRAME_SECONDS = 1 / 60
WINDOW = 1280, 900

READY = "Boolean(document.body?.dataset.version && window.steleMap?.frames)"
_TIMED = """(() => {
  const draw = steleMap._draw.bind(steleMap);
  window.drawn = [];
  steleMap._draw = () => { const begin = performance.now(); draw(); drawn.push(performance.now() - begin); };
})()"""
_FRAMES = """(async () => {
  const map = document.getElementById("map"), frames = [], end = performance.now() + %(milliseconds)d;
  let last = 0, step = 30;
  drawn.length = 0;
  await new Promise((done) => requestAnimationFrame(function frame(now) {
    if (last) frames.push(now - last);
    last = now;
    if (%(scrolls)s) {
      const before = map.scrollTop;
      map.scrollTop += step;
      if (map.scrollTop === before) step = -step;
    }
    if (now < end) requestAnimationFrame(frame); else done();
  }));
  return { frames, drawn };
})()"""


@dataclass(frozen=True)
class Case:
    """What happens while frames are counted."""

    name: str
    scrolls: bool = False
    changes: bool = False


CASES = (
    Case("at rest"),
    Case("scrolling", scrolls=True),
    Case(f"{CHANGED_ROWS} rows change each second", changes=True),
    Case("both", scrolls=True, changes=True),
)
_NOTE = """\
frame: from one to the next, 16.7 ms at 60 Hz. drawing: the page's own part of those in which the map changed.
processor: of the tab's process, in hundredths of a core; Chromium draws without a graphics card."""


def run(report: Report, quick: bool) -> None:
    """Count frames of each case; raises BenchError when there is no Chromium."""
    if shutil.which("chromium") is None:
        raise BenchError("chromium is not on the PATH: apt-get install chromium")
    columns = [
        Column("case", "case"),
        Column("frames", "frames"),
        Column("frame p50 ms", "frame_p50_seconds", milliseconds),
        Column("frame p99 ms", "frame_p99_seconds", milliseconds),
        Column("drawing p50 ms", "draw_p50_seconds", milliseconds),
        Column("drawing p99 ms", "draw_p99_seconds", milliseconds),
        Column("processor %", "processor_percent", whole),
    ]
    section = report.section(f"{PARTITIONS:,} partitions, {MEMBERS} members", columns, _NOTE)
    section.rows.extend(asyncio.run(measured(QUICK_SECONDS if quick else CASE_SECONDS)))
    report.goals.append(goal_of(section.rows))


def goal_of(rows: Sequence[Any]) -> Goal:
    """Half of the drawings leave the browser most of a frame's time."""
    most = max(row["draw_p50_seconds"] or 0.0 for row in rows)
    return Goal("half of the drawings within half a frame", f"{most * 1e3:.1f} ms", most <= FRAME_SECONDS / 2)


async def measured(seconds: float) -> list[dict[str, Any]]:
    """The row of each case."""
    facts = facts_of(members=MEMBERS, partitions=PARTITIONS)
    known = Known(facts)
    async with served(known) as url, chromium() as tab:
        await tab.window(*WINDOW)
        await tab.call("Performance.enable")
        await tab.open(f"{url}/", READY)
        await tab.run(_TIMED)
        return [await measure(tab, known, case, seconds) for case in CASES]


async def measure(tab: Tab, known: Known, case: Case, seconds: float) -> dict[str, Any]:
    """Count the frames of one case."""
    say(case.name)
    async with changing(known, case.changes):
        before = await processor_seconds(tab)
        given = {"milliseconds": seconds * 1e3, "scrolls": str(case.scrolls).lower()}
        found = await tab.run(_FRAMES % given)
        spent = await processor_seconds(tab) - before
    return {
        "case": case.name,
        "seconds": seconds,
        "frames": len(found["frames"]),
        **{f"frame_{name}_seconds": value for name, value in shares(found["frames"]).items()},
        **{f"draw_{name}_seconds": value for name, value in shares(found["drawn"]).items()},
        "processor_percent": 100 * spent / seconds,
    }


def shares(found: Sequence[float]) -> dict[str, float | None]:
    """The 50th and the 99th of 100, in seconds from milliseconds; None where nothing was measured."""
    ordered = sorted(found)
    return {
        f"p{share}": ordered[len(ordered) * share // 100] / 1e3 if ordered else None for share in (50, 99)
    }


async def processor_seconds(tab: Tab) -> float:
    """What the tab's process has used so far."""
    metrics = (await tab.call("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "ProcessTime"))


@asynccontextmanager
async def changing(known: Known, changes: bool) -> AsyncIterator[None]:
    """Let rows change within the block."""
    if not changes:
        yield
        return
    task = asyncio.create_task(_change(known))
    yield
    task.cancel()


async def _change(known: Known) -> None:
    choose = random.Random(1)
    while (facts := known.shown) is not None:
        table = facts.state.table
        table.store(
            dict(_exchanged(facts, number) for number in choose.sample(range(PARTITIONS), CHANGED_ROWS))
        )
        known.shown = replace(facts, now=facts.now + CHANGE_SECONDS)
        known.seconds += CHANGE_SECONDS
        await asyncio.sleep(CHANGE_SECONDS)


def _exchanged(facts: Facts, number: int) -> tuple[int, Partition]:
    row = facts.state.table.partitions[number]
    return number, Partition(row.version + 1, tuple(reversed(row.replicas)))
