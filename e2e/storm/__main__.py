"""The command line of the storm."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from e2e.cluster import external
from e2e.cluster.command_line import EXIT_FAILED, EXIT_OK, exit_code_of, grammar
from e2e.cluster.steps import say
from e2e.demo.errors import PreflightError
from e2e.storm import course, faults

SECONDS_MIN, SECONDS_MAX = 10.0, 86_400.0

_DESCRIPTION = """\
A storm of faults over a cluster of its own on the kind cluster, drawn from a seed, while clients check every
answer: pods are killed, stopped, deleted, evicted and cut off, the operator too, members come and go, states
change. At the end all faults are removed, and everything is read once more through every member and compared
with every replica. The first wrong answer ends the storm and is printed with all that led to it."""
_EPILOG = """\
exit codes: 0 every promise was kept; 1 one was broken, or the cluster did not recover; 2 wrong use,
or something is missing that was found before work began; 130 interrupted. The same seed draws the same faults
in the same order; what they meet differs from run to run."""


def parser() -> argparse.ArgumentParser:
    """The grammar and its help."""
    made = grammar("storm", _DESCRIPTION, _EPILOG)
    made.add_argument("--seconds", type=_seconds, default=300.0, help="of the storm (default: 300)")
    made.add_argument("--seed", type=int, default=1, help="what the faults are drawn from (default: 1)")
    made.add_argument("--json", action="store_true", help="print the report as JSON; nothing else on stdout")
    made.add_argument("--draw", action="store_true", help="only print the faults of this seed")
    return made


def _seconds(text: str) -> float:
    seconds = float(text)
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not between {SECONDS_MIN:.0f} and {SECONDS_MAX:.0f}")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Run it and print the report; the exit code."""
    if arguments.draw:
        for each in faults.draw(arguments.seed, arguments.seconds):
            print(each)
        return EXIT_OK
    if external.given() is not None:
        raise PreflightError("A storm reaches into the nodes, so it needs the project's own test cluster.")
    report, folder = course.run(arguments.seed, arguments.seconds)
    if arguments.json:
        print(json.dumps(asdict(report), indent=1), flush=True)
    else:
        print("\n".join(report.lines()), flush=True)
    say(f"Report, logs and violations are in {folder}")
    return EXIT_FAILED if report.broken else EXIT_OK


def entry(words: Sequence[str] | None = None) -> int:
    """The process's exit code; a mistake is one sentence, never a traceback."""
    arguments = parser().parse_args(words)
    return exit_code_of(lambda: run(arguments), "Interrupted. What the storm made was removed.")


if __name__ == "__main__":
    sys.exit(entry())
