"""Cases as text: commands, and below each, indented, what it answered and what it changed.

A comment (#) after a blank line begins a case, with a new machine. A command is the name of a method, with
`-` for `_`, and its arguments: numbers, words, `4:7` a pair, `1,2` and `1,` tuples, `-` for none,
`name=value`. What is indented is written by `--rewrite`.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from stele.errors import SteleError

FOLDER = Path(__file__).parent


class Machine(Protocol):
    """What a case drives. Commands are its methods, and those of its parts."""

    def parts(self) -> list[Any]: ...

    def state(self) -> dict[str, str]:
        """Describe what it holds, a line for each name."""


def check(path: Path, new: Callable[[], Machine], rewrite: bool) -> None:
    lines = path.read_text().splitlines()
    expected = list(_replayed(lines, new))
    if rewrite:
        path.write_text("\n".join(expected) + "\n")
    else:
        assert lines == expected


def _replayed(lines: list[str], new: Callable[[], Machine]) -> Iterator[str]:
    """The lines of a file as they should be."""
    before = ""
    for line in lines:
        if line.startswith("#") and not before:
            machine, seen = new(), dict[str, str]()
        if not line.startswith(" "):
            yield line
            before = line
        if line and line[0] not in "# ":
            yield from (f"  {each}" for each in _answer(machine, line))
            state = machine.state()
            yield from (f"  {name} {text}" for name, text in state.items() if seen.get(name) != text)
            yield from (f"  gone: {name}" for name in seen if name not in state)
            seen = state


def _answer(machine: Machine, line: str) -> list[str]:
    first, *words = line.split()
    name = first.replace("-", "_")
    command = next(getattr(part, name) for part in (machine, *machine.parts()) if hasattr(part, name))
    named = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        answer = command(
            *(parsed(word) for word in words if "=" not in word),
            **{key: parsed(value) for key, value in named.items()},
        )
    except SteleError as error:
        return [f"{type(error).__name__}: {error}"]
    return [] if answer is None else [shown(answer)]


def parsed(word: str) -> Any:
    for mark in (":", ","):
        if mark in word:
            return tuple(parsed(each) for each in word.split(mark) if each)
    if word == "-":
        return None
    return float(word) if "." in word else int(word) if word.isdigit() else word


def shown(value: Any) -> str:
    """As arguments are written; True and False as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum) and not isinstance(value, str):
        return value.name
    if isinstance(value, tuple | list | frozenset):
        mark = ":" if isinstance(value, tuple) and len(value) == 2 else " "
        return mark.join(map(shown, value)) or "none"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
