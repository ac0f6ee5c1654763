"""The command line of the demo."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from e2e.cluster.command_line import EXIT_OK, choose_cluster, exit_code_of, grammar
from e2e.cluster.steps import say
from e2e.demo import main, stage
from e2e.demo.report import show
from e2e.demo.settings import ALL_PHASES, SMALL_PHASES, PhaseName, Settings

SMALL_RECORDS, SMALL_PADDED, SMALL_QUIET_SECONDS, SMALL_SAFE_SECONDS_MAX = 3_000, 600, 3.0, 240.0

_DESCRIPTION = """\
The whole way once, on a real Kubernetes with real data: load, let clients read and write while members are
added, killed and taken away and the operator is killed in the middle of a move, then compare every record
and every acknowledged write with what every replica holds."""
_EPILOG = """\
`python -m e2e.demo down` removes what the demo put into the Kubernetes cluster; `make demo-down` removes
that too. exit codes: 0 every promise was kept; 1 one was broken, or the run failed; 2 wrong use, or
something is missing that was found before work began; 130 interrupted."""
_INTERRUPTED = """\
Interrupted. What was made is still there: run the same command again, or make demo-down to remove all of it
(python -m e2e.demo down keeps the Kubernetes cluster)."""


def parser() -> argparse.ArgumentParser:
    """The grammar and its help."""
    made = grammar("demo", _DESCRIPTION, _EPILOG)
    made.add_argument("action", nargs="?", choices=("run", "down"), default="run", help="default: run")
    made.add_argument(
        "--data", type=Path, metavar="FILE", help="JSON lines or CSV instead of the package index"
    )
    made.add_argument("--json", action="store_true", help="print the result as JSON; nothing else on stdout")
    made.add_argument("--members", type=int, default=3, metavar="N", help="members at first (default: 3)")
    made.add_argument("--keep", action="store_true", help="go on with the TabletCluster that is there")
    made.add_argument("--small", action="store_true", help="few entries, and without the scale-down")
    names = f"which of {', '.join(PhaseName)}, with commas (default: {', '.join(ALL_PHASES)})"
    made.add_argument("--phases", type=_phases, metavar="LIST", help=names)
    made.add_argument(
        "--rate", type=_rate, default=400.0, help="operations per second of all clients (default: 400)"
    )
    made.add_argument("--plain", action="store_true", help="lines of progress in a terminal too")
    made.add_argument("--kubeconfig", metavar="FILE", help="use this cluster; it is never created or removed")
    made.add_argument("--context", metavar="NAME", help="the context of --kubeconfig to use")
    made.add_argument(
        "--images", default="", metavar="PREFIX[:TAG]", help="where the nodes of --kubeconfig pull from"
    )
    return made


def _phases(text: str) -> tuple[PhaseName, ...]:
    try:
        names = {PhaseName(each.strip()) for each in text.split(",")}
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; known: {', '.join(PhaseName)}") from None
    if PhaseName.SCALE_DOWN in names and PhaseName.SCALE_UP not in names:
        raise argparse.ArgumentTypeError("scale-down takes away what scale-up added: name both")
    return tuple(each for each in PhaseName if each in names)


def _rate(text: str) -> float:
    rate = float(text)
    if not 1 <= rate <= 100_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 100000")
    return rate


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The run that the arguments ask for."""
    small: bool = arguments.small
    plain = Settings(
        data=arguments.data,
        json=arguments.json,
        keep=arguments.keep,
        members=arguments.members,
        phases=arguments.phases or (SMALL_PHASES if small else ALL_PHASES),
        rate=arguments.rate,
        images=arguments.images,
        live=not arguments.plain,
    )
    return shrink(plain) if small else plain


def shrink(settings: Settings) -> Settings:
    """The same run with few entries, too few to be worth the start of a Spark driver."""
    return replace(
        settings,
        records_max=SMALL_RECORDS,
        padded_entries=SMALL_PADDED,
        quiet_seconds=SMALL_QUIET_SECONDS,
        safe_seconds_max=SMALL_SAFE_SECONDS_MAX,
        spark_expected=False,
    )


def run(arguments: argparse.Namespace) -> int:
    """Run and print the result; the exit code."""
    settings = settings_of(arguments)
    result, path = main.run(settings)
    if settings.json:
        json.dump(result.as_json(), sys.stdout, indent=1)
        print(flush=True)
    else:
        show(result)
    say(f"The result is also in {path}")
    if settings.json:
        say("\n".join(result.problems()) or "Every promise was kept.")
    return result.exit_code


def entry(words: Sequence[str] | None = None) -> int:
    """The process's exit code; a user's mistake is one sentence, never a traceback."""
    arguments = parser().parse_args(words)
    choose_cluster(arguments)
    return exit_code_of(lambda: act(arguments), _INTERRUPTED)


def act(arguments: argparse.Namespace) -> int:
    """Do what the first word says; the exit code."""
    if arguments.action == "down":
        stage.remove_all()
        return EXIT_OK
    return run(arguments)


if __name__ == "__main__":
    sys.exit(entry())
