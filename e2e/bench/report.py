"""The result of a benchmark: one value, drawn as tables for people and written as JSON for programs.

Rows are plain values with units in their names (`stele_seconds`); a column says which of them is shown and
how. JSON has all values of a row, shown or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

NOT_MEASURED = "-"


def plain(value: Any) -> str:
    """Numbers with thousands separated, anything else as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def whole(value: float) -> str:
    """A number without its fraction, thousands separated."""
    return f"{value:,.0f}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, three digits or more."""
    return f"{seconds * 1e3:,.{0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2}f}"


def factor(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column for people: its title, the row's key and how the value is written."""

    title: str
    key: str
    write: Callable[[Any], str] = plain

    def cell(self, row: Row) -> str:
        """What is shown of a row; a value that is None or not there was not measured."""
        value = row.get(self.key)
        return NOT_MEASURED if value is None else self.write(value)


@dataclass(slots=True)
class Section:
    """One table. Rows are added as they are measured; `note` says what a reader must know."""

    title: str
    columns: Sequence[Column]
    note: str = ""
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Goal:
    """Something that a benchmark is to show, and what was found."""

    text: str
    found: str
    met: bool


@dataclass(slots=True)
class Report:
    """All that a run found; `complete` is false until the benchmark ended by itself."""

    name: str
    quick: bool
    facts: dict[str, str | int | float] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    seconds: float = 0.0
    complete: bool = False

    def section(self, title: str, columns: Sequence[Column], note: str = "") -> Section:
        """A new section at the end."""
        self.sections.append(Section(title, columns, note))
        return self.sections[-1]

    @property
    def missed(self) -> list[Goal]:
        return [goal for goal in self.goals if not goal.met]

    def as_json(self) -> dict[str, Any]:
        """Everything, with units in the names."""
        return {
            "bench": self.name,
            "quick": self.quick,
            "complete": self.complete,
            "seconds": round(self.seconds, 1),
            "facts": self.facts,
            "goals": [{"goal": each.text, "found": each.found, "met": each.met} for each in self.goals],
            "sections": [
                {"title": each.title, "note": each.note, "rows": [dict(row) for row in each.rows]}
                for each in self.sections
            ],
        }


def markdown(section: Section) -> list[str]:
    """The lines of a table for a page."""
    columns = section.columns
    head = ["| " + " | ".join(column.title for column in columns) + " |", "| --- " * len(columns) + "|"]
    return head + ["| " + " | ".join(column.cell(row) for column in columns) + " |" for row in section.rows]


def fact(name: str, value: str | int | float) -> str:
    """A fact as people read it."""
    if name.endswith("_bytes") and not isinstance(value, str):
        return f"{value / (1 << 30):.1f} GiB"
    return str(value)


def draw(report: Report, console: Console) -> None:
    """The facts, each section that has rows, the goals."""
    console.print(_facts(report), soft_wrap=True)
    for section in report.sections:
        if section.rows:
            console.print(_table(section))
            if section.note:
                console.print(Text(section.note))
    if report.goals:
        console.print(_goals(report.goals))


def _facts(report: Report) -> Text:
    words = (f"{name} {fact(name, value)}" for name, value in report.facts.items())
    kind = " (quick)" if report.quick else ""
    end = "" if report.complete else ", not complete"
    return Text(f"{report.name}{kind}, {report.seconds:.0f} s{end}: {', '.join(words)}")


def _goals(goals: Sequence[Goal]) -> RenderableType:
    table = Table(title="Goals", title_justify="left")
    for title in ("goal", "found", "met"):
        table.add_column(title)
    for goal in goals:
        met = Text("met", style="bold green") if goal.met else Text("MISSED", style="bold red")
        table.add_row(Text(goal.text), Text(goal.found), met)
    return table


def _table(section: Section) -> RenderableType:
    table = Table(title=section.title, title_justify="left")
    for place, column in enumerate(section.columns):
        table.add_column(column.title, justify="left" if place == 0 else "right")
    for row in section.rows:
        table.add_row(*(column.cell(row) for column in section.columns))
    return table
