"""`kubectl stele playground`: runs the program of that name, which needs more than this command."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from stele.cli.options import PLACE_OPTIONS, split_option, words_of_option
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
    words = arguments or []
    if given := _place_in_kubernetes(words):
        raise BadInput(
            f"{given} says where in Kubernetes, and a playground is a cluster without it, of this machine: "
            "leave it out; --dir chooses among playgrounds"
        )
    if missing := missing_modules():
        raise BadInput(
            f"a playground runs operator and members, and {', '.join(missing)} is not installed: "
            "pip install '.[playground]' in a clone of Stele"
        )
    # In place of this process, so that Ctrl-C reaches it alone.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "stele.playground", *words])


def missing_modules() -> list[str]:
    """Return what has to be installed before a playground can run."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def _place_in_kubernetes(words: Sequence[str]) -> str:
    """Return the first option that says where in Kubernetes, with its value; empty for none."""
    for at, word in enumerate(words):
        if split_option(word)[0] in PLACE_OPTIONS:
            return " ".join(words[at : at + words_of_option(words[at:])])
    return ""
