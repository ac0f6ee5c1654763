"""Shows how it goes on standard error: a table that is drawn anew in a terminal, plain lines anywhere else.

Standard output is for the result alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from e2e.demo.state import Moves

PLAIN_SECONDS = 5.0
DRAWN_PER_SECOND = 4
BAR_COLUMNS = 40


@dataclass
class Snapshot:
    """What can be said now. `clients` is the newest tick of the clients' process."""

    phase: str
    seconds: float = 0.0
    waits_for: str = ""
    moves: Moves = field(default_factory=Moves)
    clients: dict[str, Any] = field(default_factory=dict)
    work: str = ""


class Board(Protocol):
    """Where progress is shown."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, snapshot: Snapshot) -> None:
        """The present state, which the next one replaces."""


def board(live: bool) -> Board:
    """A live one in a terminal when that is wanted."""
    console = Console(stderr=True)
    return LiveBoard(console) if live and console.is_terminal else PlainBoard(console)


class PlainBoard:
    """One line each `PLAIN_SECONDS`, and at once when the phase changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._phase = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print now and then."""
        now = time.monotonic()
        if now >= self._next or snapshot.phase != self._phase:
            self._next, self._phase = now + PLAIN_SECONDS, snapshot.phase
            self.say(line(snapshot))


class LiveBoard:
    """A block at the bottom of the terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=DRAWN_PER_SECOND, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print above the block."""
        self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Draw anew."""
        self._live.update(drawing(snapshot))


def line(snapshot: Snapshot) -> str:
    """A snapshot in one line."""
    parts = [f"{snapshot.phase} {snapshot.seconds:.0f} s", snapshot.work, moves_text(snapshot.moves)]
    parts += [clients_text(snapshot.clients)]
    parts += [f"waits: {snapshot.waits_for}"] if snapshot.waits_for else []
    return " | ".join(part for part in parts if part)


def moves_text(moves: Moves) -> str:
    """Moves done of those planned by type, bytes, speed and time left; empty when nothing is planned."""
    if not moves.planned:
        return ""
    types = " ".join(f"{name} {moves.done[name]}/{count}" for name, count in sorted(moves.planned.items()))
    eta = "" if moves.eta_seconds is None else f", {moves.eta_seconds} s left"
    speed = f"{moves.bytes_per_second / 1e6:.1f} MB/s"
    done = f"moves {moves.done.total()}/{moves.planned.total()} ({types})"
    return f"{done}, {size(moves.bytes_copied)} copied, {speed}{eta}"


def clients_text(tick: dict[str, Any]) -> str:
    """Rates, p99, errors and longest pause of the clients; empty before they run."""
    if not tick:
        return ""
    parts = []
    for kind in ("reads", "writes"):
        now, phase = tick["window"][kind], tick[kind]
        parts.append(
            f"{kind} {now['per_second']:.0f}/s p99 {now['p99_ms']:.0f} ms, {phase['errors']} errors, "
            f"pause {phase['longest_pause_ms']:.0f} ms"
        )
    if tick["violations"]:
        parts.append(f"{tick['violations']} RULES BROKEN")
    return "; ".join(parts)


def size(count: int) -> str:
    """Bytes in the unit that fits."""
    for unit, amount in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= amount:
            return f"{count / amount:.1f} {unit}"
    return f"{count} B"


def drawing(snapshot: Snapshot) -> Group:
    """The live block."""
    head = Text.assemble(
        (f" {snapshot.phase} ", "bold reverse"), f"  {snapshot.seconds:.0f} s  ", snapshot.work
    )
    parts: list[Any] = [head]
    moves = snapshot.moves
    if moves.planned:
        bar = ProgressBar(total=moves.planned.total(), completed=moves.done.total(), width=BAR_COLUMNS)
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, Text(moves_text(moves)))
        parts.append(row)
    if snapshot.clients:
        parts.append(_clients_table(snapshot.clients))
    if snapshot.waits_for:
        parts.append(Text(f"waiting: {snapshot.waits_for}", style="dim"))
    return Group(*parts)


def _clients_table(tick: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("clients", "per second", "p99 now", "p99", "max", "errors", "longest pause"):
        table.add_column(title, justify="left" if title == "clients" else "right")
    for kind in ("reads", "writes"):
        now, phase = tick["window"][kind], tick[kind]
        times = [f"{each:.1f} ms" for each in (now["p99_ms"], phase["p99_ms"], phase["max_ms"])]
        pause = f"{phase['longest_pause_ms']:.0f} ms"
        table.add_row(kind, f"{now['per_second']:.0f}", *times, str(phase["errors"]), pause)
    if tick["violations"]:
        table.add_row("rules broken", str(tick["violations"]), style="bold red")
    return table
