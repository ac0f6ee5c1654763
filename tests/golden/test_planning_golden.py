"""The seed's worked examples and figures as text: each file is one case that a person can read.

A file has comment lines (#), `current` and `target` with letters for members and `-` for nobody, then
`planned` and `rows` (the row after each step), which `--rewrite` writes.
"""

from pathlib import Path

import pytest

from stele.core.migration import Migration, Type, step
from stele.core.ordering import order, without_cycles
from stele.core.table import Replicas, trimmed

FOLDER = Path(__file__).parent / "planning"
CASES = sorted(FOLDER.glob("*.txt"))


def letter(member: int | None) -> str:
    return "-" if member is None else chr(ord("A") + member)


def written(row: Replicas, width: int) -> str:
    return " ".join(letter(member) for member in (*row, *[None] * (width - len(row))))


def read_row(text: str) -> Replicas:
    return trimmed(None if word == "-" else ord(word) - ord("A") for word in text.split())


def told(migration: Migration) -> str:
    source, destination = letter(migration.source), letter(migration.destination)
    new = migration.destination_new_index
    texts = {
        Type.MOVE: f"MOVE index {new} from {source} to {destination}",
        Type.COPY: f"COPY {destination} to index {new}",
        Type.SHIFT_UP: f"SHIFT_UP {destination} from {migration.destination_current_index} to {new}"
        + (f" in place of {source}" if migration.source is not None else ""),
        Type.SHIFT_DOWN: f"SHIFT_DOWN {source} from {migration.source_current_index} to "
        f"{migration.source_new_index}, index {new} to {destination}",
        Type.CLEAR: f"CLEAR {source} from index {migration.source_current_index}",
    }
    return texts[migration.type]


def computed(current: Replicas, target: Replicas) -> list[str]:
    width = max(len(current), len(target))
    steps = order(0, current, target)
    runnable = without_cycles(current, target)
    lines = [f"runnable  {written(runnable, width)}"] if runnable != target else []
    lines += ["planned", *[f"  {told(migration)}" for migration in steps]] if steps else ["planned   nothing"]
    if steps:
        lines.append("rows")
        row = current
        for migration in steps:
            row = step(row, migration)
            lines.append(f"  {written(row, width)}")
    return lines


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_planning(path: Path, rewrite: bool) -> None:
    lines = path.read_text().splitlines()
    given = [line for line in lines if line.startswith(("#", "current", "target"))]
    rows = {
        line.split()[0]: read_row(line.split(maxsplit=1)[1]) for line in given if not line.startswith("#")
    }
    expected = [*given, *computed(rows["current"], rows["target"])]
    if rewrite:
        path.write_text("\n".join(expected) + "\n")
        return
    assert lines == expected


def test_every_case_is_there() -> None:
    assert len(CASES) >= 18
