"""Output of commands: JSON and YAML for programs, sentences for errors, tables for people."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stele.explain import units

if TYPE_CHECKING:
    from rich.console import Console

size = units.size

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3


class Output(StrEnum):
    """Output format; `wide` is the table with all columns and rows."""

    JSON = "json"
    YAML = "yaml"
    WIDE = "wide"


def data(document: Mapping[str, Any], output: Output | None) -> bool:
    """Print a document as JSON or YAML, if asked to. Returns whether it did; keys keep their order."""
    if output is Output.JSON:
        print(json.dumps(document, ensure_ascii=False))
    elif output is Output.YAML:
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        yaml.dump(document, sys.stdout, dumper, default_flow_style=None, sort_keys=False, allow_unicode=True)
    return output in (Output.JSON, Output.YAML)


def console() -> "Console":
    """Return a console for people; without a terminal, uncoloured and COLUMNS or 80 characters wide."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False)


def facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, which are wrapped."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, plain(value))
    console().print(grid)


class Rows:
    """A table to which rows are added while a command runs; earlier rows stay as they were printed."""

    def __init__(self, headers: Sequence[str]) -> None:
        self._headers: Sequence[str] | None = headers
        self._widths = [len(each) for each in headers]

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        """Print rows, the headers before the first ones."""
        cells = [[plain(cell) for cell in row] for row in rows]
        for row in cells:
            self._widths = [max(pair) for pair in zip(self._widths, map(len, row), strict=True)]
        if self._headers is not None:
            cells = [list(self._headers), *cells]
            self._headers = None
        for row in cells:
            padded = (text.ljust(width) for text, width in zip(row, self._widths, strict=True))
            print("   ".join(padded).rstrip())
        sys.stdout.flush()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns as kubectl does; lines are never wrapped, for grep and awk."""
    Rows(headers).add(rows)


def progress(text: str, *, last: bool = False) -> None:
    """Say on standard error what is done now, over the line before where that is a terminal."""
    if sys.stderr.isatty():
        print(plain(text)[:78].ljust(78), end="\n" if last else "\r", file=sys.stderr, flush=True)
    else:
        print(plain(text), file=sys.stderr, flush=True)


def plain(text: str) -> str:
    """Return text of others without what a terminal would obey, such as escape sequences."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def say_error(text: str) -> None:
    print(f"kubectl stele: {plain(text)}", file=sys.stderr)
