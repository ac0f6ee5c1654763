"""What the command lines here have in common: their help, the cluster that is meant, how they end."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable

from e2e.cluster import external
from e2e.cluster.errors import ClusterError, MachineUnfitError
from e2e.cluster.steps import say

EXIT_OK, EXIT_FAILED, EXIT_UNFIT, EXIT_INTERRUPTED = 0, 1, 2, 130


AddCommand = Callable[[str, Callable[[argparse.Namespace], None], str], argparse.ArgumentParser]


def grammar(program: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser whose help keeps the lines of these texts."""
    return argparse.ArgumentParser(
        prog=f"python -m e2e.{program}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def commands_of(top: argparse.ArgumentParser) -> AddCommand:
    """Give a parser commands; return what adds one: its name, what it does, and its help."""
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, action: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(action=action)
        return added

    return add


def choose_cluster(arguments: argparse.Namespace) -> None:
    """Let --kubeconfig and --context reach every program of this repository, by its environment."""
    for variable, value in (
        (external.KUBECONFIG_VARIABLE, arguments.kubeconfig),
        (external.CONTEXT_VARIABLE, arguments.context),
    ):
        if value is not None:
            os.environ[variable] = value


def exit_code_of(work: Callable[[], int], interrupted: str) -> int:
    """Do the work; the process's exit code. `interrupted` is said when Ctrl-C or SIGTERM ended it."""
    # A request to end is as good as Ctrl-C: what has to be undone is undone in order.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return work()
    except MachineUnfitError as error:
        say(str(error))
        return EXIT_UNFIT
    except ClusterError as error:
        say(f"Error: {error}")
        return EXIT_FAILED
    except PermissionError as error:
        say(f"Error: this user may not use {error.filename}; run as root or set STELE_CACHE.")
        return EXIT_FAILED
    except KeyboardInterrupt:
        say(interrupted)
        return EXIT_INTERRUPTED
