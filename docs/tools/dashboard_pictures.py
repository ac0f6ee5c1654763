"""Draws the dashboards as a real Prometheus answers their queries: docs/pictures/dashboard-*.png.

    .venv/bin/python docs/tools/dashboard_pictures.py docs/pictures

It is the scene of tests/operator/test_dashboard_queries.py, for two minutes: an operator on a real API
server, members as processes, a client that writes and reads. Members join, and one is killed.
"""

import argparse
import asyncio
import io
import math
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.bench.member_stage import free_ports
from e2e.bench.plots import subplots
from e2e.cluster.control_plane import ControlPlane, running
from e2e.supply.dashboards import DASHBOARDS, Dashboard
from stele.adapters.kubernetes.api import Api
from stele.adapters.kubernetes.login import log_in
from tests.monitoring.harness import Prometheus
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_dashboard_queries import at_work, meet_an_error
from tests.operator.test_operator import Operator, Stage, with_processes

NAMESPACE, MEMBERS = "shop", 5
WAIT_SECONDS_MAX = 300.0
VALUES = {"$__rate_interval": "10s", "$namespace": NAMESPACE, "$cluster": "demo", "$member": "demo-.*"}
QUIET_SECONDS, DEAD_SECONDS, STEP_SECONDS, TICK_SECONDS = 25.0, 4.0, 1.0, 30
GAP_STEPS = 3
"""Prometheus had nothing for longer: the line ends, and begins again."""
WIDTH_INCHES, INCHES_PER_UNIT, PIXELS_PER_INCH = 15.0, 0.34, 80
LEGENDS_MAX, PNG_COLOURS = 6, 256
COLOURS = ("#56a64b", "#f2cc0c", "#3274d9", "#ff780a", "#e02f44", "#8f3bb8", "#37872d", "#5195ce")
SCALES = {
    "s": ((1e-3, "ms"), (1.0, "s")),
    "bytes": ((1.0, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")),
    "Bps": ((1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s")),
    "percentunit": ((0.01, "%"),),
    "reqps": ((1.0, "requests/s"),),
    "ops": ((1.0, "operations/s"),),
    "d": ((1.0, "days"),),
}
"""What Grafana writes for a unit: the factors, each with its name."""


@dataclass(frozen=True)
class Line:
    """One series: seconds since the beginning, and values."""

    name: str
    seconds: Sequence[float]
    values: Sequence[float]


Answers = Mapping[str, Sequence[Sequence[Line]]]
"""By name of a dashboard: the lines of each panel."""


def line_of(legend: str, found: Mapping[str, Any], began: float) -> Line:
    """Return what Prometheus answered, with the labels that the legend names."""
    name = re.sub(r"\{\{(\w+)\}\}", lambda label: found["metric"].get(label[1], ""), legend)
    seconds, values = list[float](), list[float]()
    for at, value in found["values"]:
        if seconds and float(at) - began - seconds[-1] > GAP_STEPS * STEP_SECONDS:
            seconds.append(seconds[-1])
            values.append(math.nan)
        seconds.append(float(at) - began)
        values.append(float(value))
    return Line(name, seconds, values)


async def lines_of(asked: Prometheus, queries: Mapping[str, str], began: float) -> list[Line]:
    """Return the lines of one panel."""
    lines = []
    for legend, query in queries.items():
        expression = re.sub(r"\$\w+", lambda found: VALUES[found[0]], query)
        answer = await asked.since(expression, began, STEP_SECONDS)
        lines += [line_of(legend, each, began) for each in answer]
    return [each for each in lines if not all(map(math.isnan, each.values))]


async def converged(stage: Stage, members: int) -> None:
    """Wait longer than tests do: a machine may have other work."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            with suppress(AssertionError):
                return await stage.until_converged(members)


async def observed(plane: ControlPlane, folder: Path) -> Answers:
    """Run the scene, and return what the dashboards show of it."""
    async with Api(await log_in(str(plane.kubeconfig))) as api:
        operator = Operator(plane, NAMESPACE, folder, *free_ports(1))
        kubelet = RealKubelet(api, NAMESPACE, folder)
        async with (
            with_processes(api, NAMESPACE, operator, kubelet) as stage,
            at_work(stage, kubelet, operator, folder) as (scene, asked),
        ):
            began = time.time()
            await asyncio.sleep(QUIET_SECONDS)
            # Twice, before each change: a counter that begins with its first error has no rate yet.
            await meet_an_error(scene)
            await stage.scale(MEMBERS)
            await converged(stage, MEMBERS)
            await asyncio.sleep(QUIET_SECONDS)
            await meet_an_error(scene)
            await kubelet.kill("demo-1", DEAD_SECONDS)
            await converged(stage, MEMBERS)
            await asyncio.sleep(QUIET_SECONDS)
            return {
                each.name: [await lines_of(asked, panel.queries, began) for panel in each.panels]
                for each in DASHBOARDS
            }


def scale_of(unit: str, most: float) -> tuple[float, str]:
    """Return by what to divide values, and the name of the unit then."""
    scales = SCALES.get(unit, ((1.0, ""),))
    return next((each for each in reversed(scales) if most >= each[0]), scales[0])


def draw_number(axes: Any, lines: Sequence[Line]) -> None:
    """Show the last value in large digits, as Grafana's panels of one number do."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, f"{lines[0].values[-1]:g}", ha="center", va="center", fontsize=44, color=COLOURS[0])


def highest(line: Line) -> float:
    """Return the highest value of a line."""
    return max(value for value in line.values if not math.isnan(value))


def draw_lines(axes: Any, lines: Sequence[Line], factor: float) -> None:
    """Show lines over time, those with the highest values first in the legend."""
    ordered = sorted(lines, key=highest, reverse=True)
    most = highest(ordered[0])
    for number, line in enumerate(ordered):
        label = line.name if number < LEGENDS_MAX else None
        # Thinner ones on thicker ones, so that equal lines are seen; those of zeros on the axis, too.
        style = {"color": COLOURS[number % len(COLOURS)], "linewidth": max(1.2, 2.6 - 0.7 * number)}
        axes.plot(
            line.seconds, [value / factor for value in line.values], label=label, clip_on=False, **style
        )
    if len(ordered) > LEGENDS_MAX:
        axes.plot([], [], " ", label=f"and {len(ordered) - LEGENDS_MAX} more")
    axes.set_ylim(0, max(most / factor * 1.1, 1e-9) if most else 1)
    axes.xaxis.set_major_formatter(lambda at, _: f"{int(at) // 60}:{int(at) % 60:02d}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=7.5, frameon=False)


def draw(dashboard: Dashboard, answers: Sequence[Sequence[Line]], target: Path) -> None:
    """Write the picture of one dashboard, each panel at its place."""
    panels = dashboard.json()["panels"]
    until = max(line.seconds[-1] for lines in answers for line in lines)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure, unused = subplots(figsize=(WIDTH_INCHES, rows * INCHES_PER_UNIT))
    unused.remove()
    figure.suptitle(f"Stele / {dashboard.title}", x=0.01, ha="left", fontsize=14, fontweight="bold")
    grid = figure.add_gridspec(rows, 24)
    for panel, described, lines in zip(dashboard.panels, panels, answers, strict=True):
        x, y, w, h = (described["gridPos"][key] for key in "xywh")
        axes = figure.add_subplot(grid[y : y + h, x : x + w])
        factor, unit = scale_of(panel.unit, max(map(highest, lines), default=0.0))
        title = f"{panel.title} ({unit})" if unit else panel.title
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.tick_params(labelsize=7.5)
        axes.grid(color="#e4e7ea", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        if not lines:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "no data", ha="center", va="center", color="#8e8e8e")
        elif panel.number:
            draw_number(axes, lines)
        else:
            draw_lines(axes, lines, factor)
            axes.set_xlim(0, until)
            axes.set_xticks(range(0, int(until) + 1, TICK_SECONDS))
    save(figure, target)


def save(figure: Any, target: Path) -> None:
    """Write a PNG with few colours, which takes a third of the bytes."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=PIXELS_PER_INCH)
    Image.open(drawn).convert("RGB").quantize(PNG_COLOURS, Image.Quantize.MAXCOVERAGE).save(
        target, optimize=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="folder to write the pictures to")
    target = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as made, running(Path(made)) as plane:
        plane.install_crds()
        plane.kubectl("create", "namespace", NAMESPACE)
        answers = asyncio.run(observed(plane, Path(made)))
    for dashboard in DASHBOARDS:
        draw(dashboard, answers[dashboard.name], target / f"dashboard-{dashboard.name}.png")


if __name__ == "__main__":
    main()
