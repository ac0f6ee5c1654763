"""`kubectl_complete-stele`: completes `kubectl stele ...` in the shell, with names from the cluster.

kubectl runs it with the words after `stele`, the last of which is to be completed, and reads a candidate a
line, then a colon with a number: 0 lets the shell offer files, 4 does not.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from stele.cli.main import app
from stele.cli.options import Where, split_option
from stele.cli.playground import missing_modules
from stele.errors import SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

SECONDS_MAX = 3.0
"""Seconds for the names of a cluster's objects; without an answer nothing is offered."""
FILES, NO_FILES = 0, 4
FILE_METAVARS = frozenset({"FILE", "DIR"})
NAMESPACED = {"-n": "namespace", "--namespace": "namespace", "--context": "context"}
NAMESPACED |= {"--kubeconfig": "kubeconfig"}
PLAYGROUND = "playground"

Offer = tuple[list[str], int]
"""Candidates, and FILES or NO_FILES."""
Place = Callable[[Sequence[str]], Where]
"""Returns whom to ask for names, as the words before the last one say."""


def main() -> int:
    """Print what could come next."""
    words = sys.argv[1:]
    of_playground = _words_of_playground(words)
    if of_playground is not None and not missing_modules():
        # Its commands are known to its own program.
        program = [sys.executable, "-P", "-m", "stele.playground.completion"]
        os.execv(sys.executable, [*program, *of_playground])
    print_offer(complete(words))
    return 0


def _words_of_playground(words: Sequence[str]) -> Sequence[str] | None:
    """Return the words after the command `playground`; None without it."""
    command = get_command(app)
    for at in range(1, len(words)):
        if _place(command, words[:at])[0].name == PLAYGROUND:
            return words[at:]
    return None


def print_offer(offer: Offer) -> None:
    """Print candidates as kubectl reads them."""
    found, directive = offer
    for each in found:
        print(each)
    print(f":{directive}")


def in_kubernetes(before: Sequence[str]) -> Where:
    """Return the cluster and namespace that options say."""
    return Where(**values_of(before, NAMESPACED))


def complete(words: Sequence[str], commands: typer.Typer = app, place: Place = in_kubernetes) -> Offer:
    """Return the candidates for the last word, and whether files may be offered."""
    *before, last = words or [""]
    command, given, option = _place(get_command(commands), before)
    if option is not None:
        return _values(option, place(before), last)
    if last.startswith("-"):
        names = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
        return sorted(name for name in names if name.startswith(last) and name.startswith("-")), NO_FILES
    if hasattr(command, "commands"):
        listed = command.commands.items()
        return [f"{name}\t{each.get_short_help_str(80)}" for name, each in listed if name.startswith(last)], 4
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if not arguments:
        return [], NO_FILES
    return _values(arguments[min(given, len(arguments) - 1)], place(before), last)


def values_of(words: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    """Return the values of some options by what they are for, given as `-n stele`, `-nstele` or with `=`."""
    found = {}
    for word, following in pairwise([*words, ""]):
        name, attached = split_option(word)
        if name in options and (given := following if attached is None else attached):
            found[options[name]] = given
    return found


def _place(command: Any, words: Sequence[str]) -> tuple[Any, int, Any]:
    """Return the command, the number of its arguments so far, and the option that wants a value now."""
    given, option = 0, None
    for word in words:
        if option is not None:
            option = None
        elif word.startswith("-"):
            option = None if "=" in word else _option(command, word)
        elif word in getattr(command, "commands", {}):
            command, given = command.commands[word], 0
        else:
            given += 1
    return command, given, option


def _option(command: Any, word: str) -> Any:
    """Return the option of this name, unless it takes no value."""
    for each in command.params:
        if word in each.opts and not getattr(each, "is_flag", False):
            return each
    # Those of all commands may stand before the command.
    return word if word in NAMESPACED else None


def _values(parameter: Any, where: Where, last: str) -> Offer:
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    metavar = str(getattr(parameter, "metavar", "") or "").rstrip(".")
    if isinstance(kind, type) and issubclass(kind, Enum):
        found = [str(each.value) for each in kind]
    elif metavar in FILE_METAVARS or parameter == "--kubeconfig":
        return [], FILES
    else:
        name = str(getattr(parameter, "name", ""))
        found = _names((metavar or name.upper()).split("|"), name, where)
    return sorted(each for each in found if each.startswith(last)), NO_FILES


def _names(metavars: Sequence[str], name: str, where: Where) -> list[str]:
    """Return the names of all kinds of objects that an argument or an option takes."""
    readers = [read for each in metavars if (read := _reader(each, name)) is not None]

    async def limited(console: "Console") -> list[str]:
        async with asyncio.timeout(SECONDS_MAX):
            return [found for read in readers for found in await read(console)]

    try:
        return where.ask(limited) if readers else []
    except (SteleError, TimeoutError):
        return []


def _reader(metavar: str, name: str) -> Callable[["Console"], Awaitable[list[str]]] | None:
    """Return how the names of what is wanted are read."""

    async def clusters(console: "Console") -> list[str]:
        return [each.metadata.name for each in await console.clusters()]

    async def members(console: "Console") -> list[str]:
        return [each.metadata.name for each in await console.members()]

    async def plans(console: "Console") -> list[str]:
        return [each.metadata.name for each in await console.all_rebalances()]

    if metavar == "CLUSTER" or name == "cluster":
        return clusters
    if metavar == "MEMBER" or name == "member":
        return members
    return plans if (metavar, name) == ("NAME", "name") else None
