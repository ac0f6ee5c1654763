"""What the pages of benchmarks with pictures have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.bench.report import Report, markdown

PIXELS_PER_INCH = 110
WIDTH_INCHES, HEIGHT_INCHES = 9.0, 4.5
SYSTEM_COLOURS = {"stele": "#1b6ca8", "hazelcast": "#c96f2e", "infinispan": "#7a9a3a"}


def subplots(**options: Any) -> tuple[Any, Any]:
    """As those of pyplot; no display is needed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained", **options)


def figure_of(title: str, label: str) -> tuple[Any, Any]:
    """A figure with one picture."""
    figure, axes = subplots(figsize=(WIDTH_INCHES, HEIGHT_INCHES))
    axes.set_title(title)
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def save(figure: Any, path: Path) -> Path:
    """Write it as PNG, and close it."""
    from matplotlib import pyplot

    figure.savefig(path, dpi=PIXELS_PER_INCH)
    pyplot.close(figure)
    return path


def bars(axes: Any, groups: Sequence[str], series: dict[str, list[float]], colours: dict[str, str]) -> None:
    """Groups of bars side by side, each with its value above."""
    width = 0.8 / max(1, len(series))
    for place, (name, values) in enumerate(series.items()):
        at = [group + (place - (len(series) - 1) / 2) * width for group in range(len(groups))]
        drawn = axes.bar(at, values, width, label=name, color=colours.get(name))
        axes.bar_label(drawn, fmt="%.3g", fontsize=7)
    axes.set_xticks(range(len(groups)), groups)
    axes.legend(fontsize=8)


def page_of(report: Report, pictures: Sequence[Path]) -> str:
    """Facts, goals, pictures and tables as Markdown."""
    facts = ", ".join(f"{name} {value}" for name, value in report.facts.items())
    lines = [f"# {report.name}", "", f"{report.seconds:.0f} s; {facts}", ""]
    lines += [f"- {'met' if goal.met else '**missed**'}: {goal.text}: {goal.found}" for goal in report.goals]
    for picture in pictures:
        lines += ["", f"![{picture.stem}]({picture.name})"]
    for section in report.sections:
        lines += ["", f"## {section.title}", "", *markdown(section), "", section.note]
    return "\n".join(lines) + "\n"
