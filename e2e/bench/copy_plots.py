"""The report of copying as a page with pictures: `--report FOLDER` writes index.md and PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.bench.report import Report, Row, markdown

PIXELS_PER_INCH = 110
WIDTH_INCHES, HEIGHT_INCHES = 9.0, 4.5
MIB = 1 << 20
SYSTEM_COLOURS = {"stele": "#1b6ca8", "hazelcast": "#c96f2e", "infinispan": "#7a9a3a"}


def write(report: Report, folder: Path) -> list[Path]:
    """The files written. What was not measured has no picture."""
    import matplotlib as mpl

    mpl.use("Agg")
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
    page.write_text(_page(report, made), encoding="utf-8")
    return [*made, page]


def _figure(title: str, label: str) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    axes.set_title(title)
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=PIXELS_PER_INCH)
    pyplot.close(figure)
    return path


def _bars(axes: Any, groups: Sequence[str], series: dict[str, list[float]], colours: dict[str, str]) -> None:
    """Groups of bars side by side, each with its value above."""
    width = 0.8 / max(1, len(series))
    for place, (name, values) in enumerate(series.items()):
        at = [group + (place - (len(series) - 1) / 2) * width for group in range(len(groups))]
        bars = axes.bar(at, values, width, label=name, color=colours.get(name))
        axes.bar_label(bars, fmt="%.3g", fontsize=7)
    axes.set_xticks(range(len(groups)), groups)
    axes.legend(fontsize=8)


def _ways(rows: Sequence[Row], path: Path) -> Path:
    figure, axes = _figure("Copying 271 tablets", "MB/s (logarithmic)")
    cases = list(dict.fromkeys(row["case"] for row in rows))
    series: dict[str, list[float]] = {}
    for row in rows:
        series.setdefault(row["way"], [0.0] * len(cases))[cases.index(row["case"])] = (
            row["bytes_per_second"] / 1e6
        )
    axes.set_yscale("log")
    _bars(axes, cases, series, {})
    return _save(figure, path)


def _times(rows: Sequence[Row], path: Path) -> Path:
    figure, axes = _figure("A fourth member joins three: seconds until safe", "s")
    sizes = sorted({row["data_bytes"] for row in rows})
    series = {
        system: [_value(rows, system, size, "safe_seconds") for size in sizes] for system in SYSTEM_COLOURS
    }
    _bars(axes, [f"{size // MIB} MiB" for size in sizes], series, SYSTEM_COLOURS)
    return _save(figure, path)


def _latencies(rows: Sequence[Row], path: Path) -> Path:
    size = max(row["data_bytes"] for row in rows)
    title = f"Clients at 500 + 500 operations per second, a join with {size // MIB} MiB"
    figure, axes = _figure(title, "ms (logarithmic)")
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
        system: [1e3 * _value(rows, system, size, key) for key in shown.values()] for system in SYSTEM_COLOURS
    }
    _bars(axes, list(shown), series, SYSTEM_COLOURS)
    return _save(figure, path)


def _value(rows: Sequence[Row], system: str, size: int, key: str) -> float:
    found = [row[key] for row in rows if (row["system"], row["data_bytes"]) == (system, size)]
    return float(found[0]) if found else 0.0


def _page(report: Report, pictures: Sequence[Path]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in report.facts.items())
    lines = [f"# {report.name}", "", f"{report.seconds:.0f} s; {facts}", ""]
    lines += [f"- {'met' if goal.met else '**missed**'}: {goal.text}: {goal.found}" for goal in report.goals]
    for picture in pictures:
        lines += ["", f"![{picture.stem}]({picture.name})"]
    for section in report.sections:
        lines += ["", f"## {section.title}", "", *markdown(section), "", section.note]
    return "\n".join(lines) + "\n"
