"""How `stele-transfer` and `stele-copier` begin: arguments, the log, settings from the environment."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from stele.core.errors import BadInput

SETTINGS_WRONG = 2
"""The exit code when a setting is wrong; argparse ends with the same for an argument."""
S = TypeVar("S")


def begin(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    read_settings: Callable[[Mapping[str, str]], S],
) -> S | None:
    """The settings; None when one is wrong (`read_settings` raises BadInput), which standard error names."""
    parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return read_settings(os.environ)
    except BadInput as wrong:
        print(f"{parser.prog}: {wrong.args[0]}", file=sys.stderr)
        return None


def parser_of(name: str, what: str, variables: str) -> argparse.ArgumentParser:
    """Of a program without arguments; `variables` names its environment for `--help`."""
    return argparse.ArgumentParser(
        prog=name,
        description=f"{what} It is set up by environment variables:",
        epilog=variables,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
