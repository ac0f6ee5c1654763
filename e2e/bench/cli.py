"""The command line of the benchmarks: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from e2e.bench import (
    copy_bench,
    copy_tls,
    handover,
    machine,
    master,
    member,
    memory,
    newcomer,
    paced,
    page,
    planning,
    security,
    seed,
    steady,
)
from e2e.bench.report import Report, draw
from e2e.cluster.command_line import EXIT_FAILED, EXIT_OK, exit_code_of, grammar
from e2e.cluster.steps import say

BENCHES: dict[str, ModuleType] = {
    "planning": planning,
    "master": master,
    "member": member,
    "copy": copy_bench,
    "copy-tls": copy_tls,
    "handover": handover,
    "paced": paced,
    "steady": steady,
    "memory": memory,
    "seed": seed,
    "security": security,
    "newcomer": newcomer,
    "page": page,
}
TABLE_COLUMNS_MIN = 150
LOAD_PER_CORE_MAX = 0.5

_DESCRIPTION = "Measures this program beside others on this machine, in one run, and prints the ratios."
_EPILOG = """\
Figures are worth something on a machine that does nothing else. What is built for a benchmark is kept in
${STELE_CACHE:-~/.cache/stele}. After Ctrl-C what was measured until then is printed.
exit codes: 0 done, every goal met; 1 a goal was missed, or the run failed; 2 wrong use, or this machine lacks
something; 130 interrupted."""


def parser() -> argparse.ArgumentParser:
    """The grammar and its help."""
    top = grammar("bench", _DESCRIPTION, _EPILOG)
    benches = top.add_subparsers(title="benchmarks", metavar="NAME", dest="name", required=True)
    for name, bench in BENCHES.items():
        added = benches.add_parser(name, help=bench.TITLE, description=bench.TITLE)
        added.add_argument("--quick", action="store_true", help="fewer cases and samples: a first look")
        added.add_argument("--json", type=_new_file, metavar="FILE", help="write the result as JSON too")
        if hasattr(bench, "write"):
            added.add_argument("--report", type=Path, metavar="FOLDER", help="write a page too")
    return top


def _new_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file in a folder that is there")
    return path


def main(words: Sequence[str] | None = None) -> int:
    """Run one benchmark and print what it found; the process's exit code."""
    arguments = parser().parse_args(words)
    report = Report(arguments.name, arguments.quick, facts=machine.facts())
    _warn_of_load(report)
    start = time.monotonic()
    code = exit_code_of(lambda: _run(report), "Interrupted.")
    report.seconds = time.monotonic() - start
    report.facts["load_after"] = round(os.getloadavg()[0], 2)
    if any(section.rows for section in report.sections):
        written = _show(report, arguments.json)
        if getattr(arguments, "report", None) is not None:
            written = _illustrate(report, arguments.report) and written
        code = EXIT_FAILED if code == EXIT_OK and (report.missed or not written) else code
    return code


def _warn_of_load(report: Report) -> None:
    load, cores = float(report.facts["load_before"]), int(report.facts["cores"])
    if load > LOAD_PER_CORE_MAX * cores:
        say(f"Other programs use this machine (load {load} on {cores} cores): seconds will be worth little.")


def _run(report: Report) -> int:
    BENCHES[report.name].run(report, report.quick)
    report.complete = True
    return EXIT_OK


def _show(report: Report, path: Path | None) -> bool:
    """Whether all that was asked for was written."""
    console = Console()
    draw(report, console if console.width >= TABLE_COLUMNS_MIN else Console(width=TABLE_COLUMNS_MIN))
    return path is None or _write(report, path)


def _illustrate(report: Report, folder: Path) -> bool:
    try:
        BENCHES[report.name].write(report, folder)
    except OSError as error:
        say(f"Error: the page could not be written: {error}")
        return False
    say(f"A page is in {folder}")
    return True


def _write(report: Report, path: Path) -> bool:
    try:
        path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        say(f"Error: the result could not be written: {error}")
        return False
    say(f"The result is also in {path}")
    return True
