"""The rules of docs/reference/kubectl-stele.md for replaying migrations, without the product's code."""

from collections.abc import Iterable, Sequence
from typing import Any

Row = list[str | None]


class UnfitError(Exception):
    """A migration does not fit the row it meets."""


def replayed(
    current: Sequence[Sequence[str | None]], alive: Iterable[str], migrations: Iterable[dict[str, Any]]
) -> list[Row]:
    """Rows after all migrations, without empty indexes at the end; members that are gone are taken out
    first.
    """
    here = set(alive)
    rows = [[name if name in here else None for name in row] + [None] * (7 - len(row)) for row in current]
    for migration in migrations:
        _RULES[migration["type"]](rows[migration["partition"]], migration)
    return [_trimmed(row) for row in rows]


def replicas(row: Sequence[str | None]) -> int:
    return sum(name is not None for name in row)


def _trimmed(row: Row) -> Row:
    while row and row[-1] is None:
        row = row[:-1]
    return row


def _need(holds: bool, row: Row, migration: dict[str, Any]) -> None:
    if not holds:
        raise UnfitError(f"{migration} on {row}")


def _move(row: Row, m: dict[str, Any]) -> None:
    index = m["source_current_index"]
    _need(row[index] == m["source"] is not None and m["destination"] not in row, row, m)
    _need((m["source_new_index"], m["destination_current_index"]) == (-1, -1), row, m)
    _need(m["destination_new_index"] == index, row, m)
    row[index] = m["destination"]


def _copy(row: Row, m: dict[str, Any]) -> None:
    _need(m["source"] is None and m["source_current_index"] == m["source_new_index"] == -1, row, m)
    _need(m["destination_current_index"] == -1 and m["destination"] not in row, row, m)
    _need(row[m["destination_new_index"]] is None, row, m)
    row[m["destination_new_index"]] = m["destination"]


def _shift_up(row: Row, m: dict[str, Any]) -> None:
    colder, hotter = m["destination_current_index"], m["destination_new_index"]
    _need(colder > hotter and row[colder] == m["destination"] is not None, row, m)
    _need(row[hotter] == m["source"] and m["source_new_index"] == -1, row, m)
    _need(m["source_current_index"] == (-1 if m["source"] is None else hotter), row, m)
    row[hotter], row[colder] = row[colder], None


def _shift_down(row: Row, m: dict[str, Any]) -> None:
    hotter, colder = m["source_current_index"], m["source_new_index"]
    _need(colder > hotter and row[hotter] == m["source"] is not None and row[colder] is None, row, m)
    _need(m["destination"] not in row and m["destination_current_index"] == -1, row, m)
    _need(m["destination_new_index"] == hotter, row, m)
    row[hotter], row[colder] = m["destination"], m["source"]


def _clear(row: Row, m: dict[str, Any]) -> None:
    _need(row[m["source_current_index"]] == m["source"] is not None, row, m)
    _need(m["destination"] is None and m["source_new_index"] == -1, row, m)
    _need(m["destination_current_index"] == m["destination_new_index"] == -1, row, m)
    row[m["source_current_index"]] = None


_RULES = {"MOVE": _move, "COPY": _copy, "SHIFT_UP": _shift_up, "SHIFT_DOWN": _shift_down, "CLEAR": _clear}
