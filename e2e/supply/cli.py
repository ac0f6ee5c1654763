"""The command line of the supply chain: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from e2e.cluster.command_line import EXIT_OK, exit_code_of, grammar
from e2e.supply import locks

_DESCRIPTION = "What images are made from: exact versions with hashes, and what can be said about them."
_EPILOG = """\
exit codes: 0 done; 1 failed (the message says what to do); 2 wrong use; 130 interrupted."""


def _lock(_: argparse.Namespace) -> None:
    found = {name: locks.resolve(name) for name in locks.NAMES}
    for name, lock in found.items():
        locks.write(name, lock)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar and its help."""
    top = grammar("supply", _DESCRIPTION, _EPILOG)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "write images/locks/ anew, with the newest versions that pyproject.toml allows"
    commands.add_parser("lock", help=text, description=text).set_defaults(action=_lock)
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code. A user's mistake is one sentence, never a traceback."""
    arguments = parser().parse_args(words)

    def act() -> int:
        arguments.action(arguments)
        return EXIT_OK

    return exit_code_of(act, "Interrupted; run the same command again.")
