"""`kubectl stele playground`: runs the program of that name, which needs more than this command."""

import importlib.util
import os
import sys
from typing import Annotated

import typer

from stele.errors import BadInput

# What follows the first word is for that program, --help too.
PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}

NEEDED = ("kopf", "rocksdict", "uvloop")
"""Modules of operator and member that this command does without."""


def playground(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help="up, load, scale, kill, drain, state, status, watch, why or down."
        ),
    ] = None,
) -> None:
    """Run a whole cluster on this machine, without Kubernetes, to look at.

    Without a command it lists the commands; `kubectl stele playground COMMAND --help` explains each.

    \b
    Examples:
      kubectl stele playground up
      kubectl stele playground load
      kubectl stele playground scale 4
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise BadInput(
            f"a playground runs operator and members, and {', '.join(missing)} is not installed: "
            "pip install '.[playground]' in a clone of Stele"
        )
    # In place of this process, so that Ctrl-C reaches it alone.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "stele.playground", *(arguments or [])])
