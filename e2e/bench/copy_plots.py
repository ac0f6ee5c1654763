"""The report of copying as a page with pictures: `--report FOLDER` writes index.md and PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.bench.copy_join import SECURED
from e2e.bench.plots import SYSTEM_COLOURS, bars, figure_of, page_of, save
from e2e.bench.report import Report, Row

MIB = 1 << 20
_COLOURS = {"stele": SYSTEM_COLOURS["stele"], SECURED: "#7fb2d9", **SYSTEM_COLOURS}


def write(report: Report, folder: Path) -> list[Path]:
    """The files written. What was not measured has no picture."""
    folder.mkdir(parents=True, exist_ok=True)
    ways = [
        row
        for section in report.sections
        for row in section.rows
        if "bytes_per_second" in row and "way" in row
    ]
    joins = [row for section in report.sections for row in section.rows if "safe_seconds" in row]
    made: list[Path] = []
    if ways:
        made.append(_ways(ways, folder / "ways.png"))
    if joins:
        made.append(_times(joins, folder / "joins.png"))
        made.append(_latencies(joins, folder / "latencies.png"))
    page = folder / "index.md"
    page.write_text(page_of(report, made), encoding="utf-8")
    return [*made, page]


def _ways(rows: Sequence[Row], path: Path) -> Path:
    figure, axes = figure_of("Copying 271 tablets", "MB/s (logarithmic)")
    cases = list(dict.fromkeys(row["case"] for row in rows))
    series: dict[str, list[float]] = {}
    for row in rows:
        series.setdefault(row["way"], [0.0] * len(cases))[cases.index(row["case"])] = (
            row["bytes_per_second"] / 1e6
        )
    axes.set_yscale("log")
    bars(axes, cases, series, {})
    return save(figure, path)


def _times(rows: Sequence[Row], path: Path) -> Path:
    figure, axes = figure_of("A fourth member joins three: seconds until safe", "s")
    sizes = sorted({row["data_bytes"] for row in rows})
    series = {
        system: [_value(rows, system, size, "safe_seconds") for size in sizes] for system in _shown(rows)
    }
    bars(axes, [f"{size // MIB} MiB" for size in sizes], series, _COLOURS)
    return save(figure, path)


def _latencies(rows: Sequence[Row], path: Path) -> Path:
    size = max(row["data_bytes"] for row in rows)
    title = f"Clients at 500 + 500 operations per second, a join with {size // MIB} MiB"
    figure, axes = figure_of(title, "ms (logarithmic)")
    shown = {
        f"{kind}: {text}": f"{when}_{kind}_{name}"
        for kind in ("get", "set")
        for text, when, name in (
            ("quiet p99", "quiet", "p99_seconds"),
            ("p99", "join", "p99_seconds"),
            ("longest", "join", "max_seconds"),
        )
    }
    axes.set_yscale("log")
    series = {
        system: [1e3 * _value(rows, system, size, key) for key in shown.values()] for system in _shown(rows)
    }
    bars(axes, list(shown), series, _COLOURS)
    return save(figure, path)


def _shown(rows: Sequence[Row]) -> list[str]:
    """The systems that were measured, always in the same order."""
    measured = {row["system"] for row in rows}
    return [system for system in _COLOURS if system in measured]


def _value(rows: Sequence[Row], system: str, size: int, key: str) -> float:
    found = [row[key] for row in rows if (row["system"], row["data_bytes"]) == (system, size)]
    return float(found[0]) if found else 0.0
