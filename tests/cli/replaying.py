"""The migrations that `plan --offline` prints, replayed by the rules of docs/reference/kubectl-stele.md."""

from collections.abc import Iterable, Sequence
from typing import Any

from e2e.bench.quality import PlanError, replay
from stele.core.placement.migration import Migration

INDEXES = ("source_current_index", "source_new_index", "destination_current_index", "destination_new_index")
USED = {
    "MOVE": [(True, False, False, True)],
    "COPY": [(False, False, False, True)],
    "SHIFT_UP": [(True, False, True, True), (False, False, True, True)],
    "SHIFT_DOWN": [(True, True, False, True)],
    "CLEAR": [(True, False, False, False)],
    "SWAP": [(True, True, True, True)],
}
"""Which of the indexes a migration of each type has; the others are -1."""


def replayed(
    current: Sequence[Sequence[str | None]], alive: Iterable[str], answer: dict[str, Any]
) -> list[list[str | None]]:
    """Rows after all migrations, without empty indexes at the end; members that are gone are taken out first.

    Raises PlanError for a migration that does not fit its type or its row, or that leaves the row with too
    few replicas.
    """
    here = set(alive)
    rows: Any = [[name if name in here else None for name in row] for row in current]
    for migration in answer["migrations"]:
        _check(migration)
    rows = replay(rows, [Migration(**migration) for migration in answer["migrations"]], answer["target"])
    return [_trimmed(row) for row in rows]


def _check(migration: dict[str, Any]) -> None:
    used = tuple(migration[name] >= 0 for name in INDEXES)
    named = (migration["source"] is not None, migration["destination"] is not None)
    takes = migration["source_current_index"] in (-1, migration["destination_new_index"]) or not used[3]
    apart = migration["source"] != migration["destination"]
    if used not in USED[migration["type"]] or named != (used[0], used[3]) or not takes or not apart:
        raise PlanError(f"{migration} is no {migration['type']}")


def _trimmed(row: list[str | None]) -> list[str | None]:
    while row and row[-1] is None:
        row = row[:-1]
    return row
