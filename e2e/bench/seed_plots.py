"""The report of `seed` as a page with pictures: `--report FOLDER` writes index.md, seed.md and PNG files.

seed.md is what docs/internals/benchmarks.md has between its marks; a test compares both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.bench.master_page import lines
from e2e.bench.plots import SYSTEM_COLOURS, WIDTH_INCHES, bars, figure_of, page_of, save, subplots
from e2e.bench.report import Report, Row
from e2e.bench.seed_cases import Event

BEGIN, END = "<!-- make bench-seed: begin -->", "<!-- make bench-seed: end -->"
COURSE_HEIGHT_INCHES = 6.5
MEASURES = {"p99": 2, "longest": 3}
"""Places in a point of a course: answered, failed, p99, longest."""


def write(report: Report, folder: Path) -> list[Path]:
    """The files written. What was not measured has no picture."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {section.title: section.rows for section in report.sections}
    made = [_times(rows["Until safe"], folder / "safe.png")] if rows.get("Until safe") else []
    made += _courses([row for row in rows.get("Values", ()) if "course" in row], folder)
    page, figures = folder / "index.md", folder / "seed.md"
    page.write_text(page_of(report, made), encoding="utf-8")
    figures.write_text(pasted(report), encoding="utf-8")
    return [*made, page, figures]


def pasted(report: Report) -> str:
    """What the documentation has of a run."""
    return "\n".join([BEGIN, *lines(report), END, ""])


def _times(rows: Sequence[Row], path: Path) -> Path:
    """One bar for each system and series, grouped by event."""
    figure, axes = figure_of("Seconds until safe", "s (logarithmic)")
    series: dict[str, list[float]] = {}
    colours: dict[str, str] = {}
    events = list(Event)
    for row in rows:
        name = f"{row['system']}, {row['series']}"
        series.setdefault(name, [0.0] * len(events))[events.index(row["event"])] = row["safe_seconds"]
        colours[name] = SYSTEM_COLOURS[row["system"].lower()]
    axes.set_yscale("log")
    bars(axes, [str(each).replace(", ", "\n") for each in events], series, colours)
    return save(figure, path)


def _courses(rows: Sequence[Row], folder: Path) -> list[Path]:
    all_series = dict.fromkeys(row["series"] for row in rows)
    return [
        _course(each, [row for row in rows if row["series"] == each], folder / file_of(each))
        for each in all_series
    ]


def file_of(series: str) -> str:
    """The picture of a course."""
    return f"course-{re.sub('[^0-9a-z]+', '-', series.replace(',', ''))}.png"


def _course(title: str, rows: Sequence[Row], path: Path) -> Path:
    """Latencies of GET above those of SET, each system in a column; events are shaded."""
    size = (WIDTH_INCHES, COURSE_HEIGHT_INCHES)
    figure, axes = subplots(nrows=2, ncols=len(rows), figsize=size, sharey=True, squeeze=False)
    figure.suptitle(f"Latencies in ms, events shaded until all is safe: {title}")
    for column, row in enumerate(rows):
        for place, kind in enumerate(("get", "set")):
            _draw(axes[place][column], row, kind)
    return save(figure, path)


def _draw(axes: Any, row: Row, kind: str) -> None:
    course = row["course"]
    points = course[kind]
    at = [number * course["window_seconds"] for number in range(len(points))]
    for (name, place), style in zip(MEASURES.items(), ("-", ":"), strict=True):
        values = [1e3 * point[place] or None for point in points]
        axes.plot(at, values, style, label=name, linewidth=1, color=SYSTEM_COLOURS[row["system"].lower()])
    for mark in row["marks"]:
        axes.axvspan(mark["begin_seconds"], mark["end_seconds"], alpha=0.15, color="black")
        name = mark["event"].partition(",")[0]
        axes.annotate(name, (mark["begin_seconds"], 1), xycoords=("data", "axes fraction"), fontsize=6)
    axes.set_yscale("log")
    axes.set_title(f"{row['system']}: {kind.upper()}", fontsize=9)
    axes.set_xlabel("s", fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
