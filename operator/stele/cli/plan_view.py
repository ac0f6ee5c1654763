"""Display of a plan: what each member holds before and after."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stele.cli import output as out
from stele.core.table.ids import MemberIndex
from stele.core.table.table import Replicas
from stele.explain.situation import Outcome, Situation
from stele.explain.text import refusal_lines

MEMBERS_SHOWN_MAX = 40
REFUSALS_SHOWN_MAX = 10
"""Rows of the default table; -o wide shows all."""
BAR_LETTERS_MAX = 24
BAR_LETTERS_MIN = 5
"""Without space for bars of this length, only numbers are shown."""

_BLOCKS, _PLAIN = ("█", "▓", "░"), ("#", "+", "-")
_STYLES = ("", "green", "red")
_GAP = 2


@dataclass(frozen=True)
class Line:
    """One member: partitions owned and replicas held, each before and after."""

    name: str
    note: str
    owners: tuple[int, int]
    replicas: tuple[int, int]


def show(console: Console, outcome: Outcome, wide: bool) -> None:
    """Print the plan; `wide` omits nothing and adds the migrations in order."""
    situation = outcome.situation
    able = sum(not (member.leaving or member.away) for member in situation.members)
    table = situation.table
    console.print(
        f"Plan for {len(table.main)} partitions, {situation.replicas} replicas, "
        f"{able} members available for data"
    )
    for group in table.groups.groups:
        console.print(f"Keyspace {group.keyspace}: {group.count} partitions, {group.replicas} replicas")
    console.print()
    _show_members(console, outcome, wide)
    console.print()
    _show_facts(console, outcome)
    if waiting := _waiting(situation):
        console.print(f"{waiting} partitions are not planned: they wait for a member that is away")
    _show_refusals(console, outcome, wide)
    if wide:
        _show_migrations(console, outcome)


def _waiting(situation: Situation) -> int:
    """Return how many rows name a member that is expected back."""
    away = {member.index for member in situation.members if member.away}
    return sum(not away.isdisjoint(row) for row in situation.rows)


def lines(outcome: Outcome) -> list[Line]:
    """Return a line per live member, then per member that is gone but still in rows."""
    situation = outcome.situation
    before, after = _held(situation.rows), _held(outcome.plan.targets)
    notes = _notes(situation)
    return [
        Line(
            name,
            notes.get(member, "gone"),
            (before[0][member], after[0][member]),
            (before[1][member], after[1][member]),
        )
        for member, name in situation.names.items()
        if member in notes or before[1][member]
    ]


def _held(rows: Sequence[Replicas]) -> tuple[Counter[MemberIndex | None], Counter[MemberIndex | None]]:
    owners = Counter(row[0] for row in rows if row)
    return owners, Counter(member for row in rows for member in row)


def _notes(situation: Situation) -> dict[MemberIndex, str]:
    notes = dict.fromkeys(situation.lite, "lite")
    for member in situation.members:
        weight = f"weight {member.weight}" if member.weight != 1 else ""
        words = (
            "/".join(member.path),
            weight,
            "leaving" if member.leaving else "",
            "away" if member.away else "",
            "to own nothing" if member.demoted else "",
        )
        notes[member.index] = ", ".join(word for word in words if word)
    return notes


def _show_members(console: Console, outcome: Outcome, wide: bool) -> None:
    all_lines = lines(outcome)
    shown = all_lines if wide else all_lines[:MEMBERS_SHOWN_MAX]
    width = _bar_width(console, shown)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MEMBER", overflow="fold")
    for title in ("OWNERS", "REPLICAS"):
        table.add_column(title, justify="right", no_wrap=True)
        if width:
            table.add_column("", no_wrap=True)
    noted = any(line.note for line in shown)
    if noted:
        table.add_column("", overflow="fold")
    most_owners = max((max(line.owners) for line in all_lines), default=0)
    most_replicas = max((max(line.replicas) for line in all_lines), default=0)
    for line in shown:
        cells: list[str | Text] = [line.name]
        for counts, most in ((line.owners, most_owners), (line.replicas, most_replicas)):
            cells.append(_change(counts))
            if width:
                cells.append(_bar(console, counts, most, width))
        table.add_row(*cells, *([line.note] if noted else []))
    console.print(table)
    if len(shown) < len(all_lines):
        console.print(f"and {len(all_lines) - len(shown)} more members; -o wide shows all")
    if width:
        same, more, less = _letters(console)
        console.print(f"{same} as before  {more} more  {less} less", style="dim")


def _bar_width(console: Console, shown: Sequence[Line]) -> int:
    if not shown:
        return 0
    names, notes = (max(map(len, texts)) for texts in zip(*((e.name, e.note) for e in shown), strict=True))
    numbers = [max(len(_change(counts)) for counts in column) for column in _columns(shown)]
    taken = max(names, len("MEMBER")) + notes + sum(max(each, len("REPLICAS")) for each in numbers)
    width = min(BAR_LETTERS_MAX, (console.width - taken - 5 * _GAP) // 2)
    return width if width >= BAR_LETTERS_MIN else 0


def _columns(shown: Sequence[Line]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [line.owners for line in shown], [line.replicas for line in shown]


def _change(counts: tuple[int, int]) -> str:
    return f"{counts[0]} -> {counts[1]}"


def _letters(console: Console) -> tuple[str, str, str]:
    try:
        "".join(_BLOCKS).encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return _PLAIN
    return _BLOCKS


def _bar(console: Console, counts: tuple[int, int], most: int, width: int) -> Text:
    """Return a bar of what stays, then of what is added or removed, relative to the greatest number."""
    before, after = (-(-count * width // most) if most else 0 for count in counts)
    same = min(before, after)
    bar = Text()
    lengths = (same, after - same, before - same)
    for letter, length, style in zip(_letters(console), lengths, _STYLES, strict=True):
        bar.append(letter * length, style)
    return bar


def _show_facts(console: Console, outcome: Outcome) -> None:
    plan = outcome.plan
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    kinds = Counter(each.type.value for each in plan.migrations)
    parts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    table.add_row("Migrations", f"{len(plan.migrations)}: {parts}" if parts else "none")
    table.add_row("Copies", f"{plan.copies} (lower bound {plan.lower_bound})")
    table.add_row("Spread", f"owners {outcome.owner_spread}, replicas {outcome.replica_spread}")
    table.add_row("Planned in", f"{outcome.seconds:.3f} s")
    table.add_row("Refusals", str(len(plan.refusals) or "none"))
    console.print(table)


def _show_refusals(console: Console, outcome: Outcome, wide: bool) -> None:
    for line in refusal_lines(outcome, None if wide else REFUSALS_SHOWN_MAX):
        console.print(f"  {line}")


def _show_migrations(console: Console, outcome: Outcome) -> None:
    if not outcome.plan.migrations:
        return
    console.print()
    out.table(("PARTITION", "TYPE", "SOURCE", "INDEX", "DESTINATION", "INDEX"), list(_migrations(outcome)))


def _migrations(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    def name(member: MemberIndex | None) -> str:
        return "-" if member is None else outcome.situation.names[member]

    def indexes(current: int, new: int) -> str:
        return f"{'-' if current < 0 else current} -> {'-' if new < 0 else new}"

    for each in outcome.plan.migrations:
        source = (name(each.source), indexes(each.source_current_index, each.source_new_index))
        destination = indexes(each.destination_current_index, each.destination_new_index)
        yield str(each.partition), each.type.value, *source, name(each.destination), destination
