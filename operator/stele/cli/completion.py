"""`kubectl_complete-stele`: completes `kubectl stele ...` in the shell, with names from the cluster.

kubectl runs it with the words after `stele`, the last of which is to be completed, and reads a candidate a
line, then a colon with a number: 0 lets the shell offer files, 4 does not.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from stele.cli.main import app
from stele.cli.options import Where
from stele.errors import SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

SECONDS_MAX = 3.0
"""Seconds for the names of a cluster's objects; without an answer nothing is offered."""
FILES, NO_FILES = 0, 4
FILE_METAVARS = frozenset({"FILE", "DIR"})
NAMESPACED = {"-n": "namespace", "--namespace": "namespace", "--context": "context"}
NAMESPACED |= {"--kubeconfig": "kubeconfig"}


def main() -> int:
    """Print what could come next."""
    found, directive = complete(sys.argv[1:])
    for each in found:
        print(each)
    print(f":{directive}")
    return 0


def complete(words: Sequence[str]) -> tuple[list[str], int]:
    """Return the candidates for the last word, and whether files may be offered."""
    *before, last = words or [""]
    command, given, option = _place(get_command(app), before)
    if option is not None:
        return _values(option, before, last)
    if last.startswith("-"):
        names = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
        return sorted(name for name in names if name.startswith(last) and name.startswith("-")), NO_FILES
    if hasattr(command, "commands"):
        listed = command.commands.items()
        return [f"{name}\t{each.get_short_help_str(80)}" for name, each in listed if name.startswith(last)], 4
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if not arguments:
        return [], NO_FILES
    return _values(arguments[min(given, len(arguments) - 1)], before, last)


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


def _values(parameter: Any, before: Sequence[str], last: str) -> tuple[list[str], int]:
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    metavar = str(getattr(parameter, "metavar", "") or "").rstrip(".")
    if isinstance(kind, type) and issubclass(kind, Enum):
        found = [str(each.value) for each in kind]
    elif metavar in FILE_METAVARS or parameter == "--kubeconfig":
        return [], FILES
    else:
        found = _names(metavar or str(getattr(parameter, "name", "")).upper(), parameter, before)
    return sorted(each for each in found if each.startswith(last)), NO_FILES


def _names(metavar: str, parameter: Any, before: Sequence[str]) -> list[str]:
    read = _reader(metavar, str(getattr(parameter, "name", "")))
    if read is None:
        return []
    chosen = {
        NAMESPACED[word]: before[at + 1]
        for at, word in enumerate(before)
        if word in NAMESPACED and at + 1 < len(before)
    }

    async def limited(console: "Console") -> list[str]:
        return await asyncio.wait_for(read(console), SECONDS_MAX)

    try:
        return Where(**chosen).ask(limited)
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
