"""The seed's worked examples and figures as text: each file is one case that a person can read.

A file has comment lines (#), `current` and `target` with letters for members and `-` for nobody, then
`planned` and `rows` (the row after each step), which `--rewrite` writes.
"""

from pathlib import Path

import pytest

from stele.core.placement.migration import Migration, Type, step
from stele.core.placement.ordering import order, without_cycles
from stele.core.table.table import Replicas, trimmed

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
        Type.SWAP: f"SWAP {source} with {destination} at index {migration.source_new_index}",
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


def rewritten(path: Path) -> list[str]:
    """The lines of the file as they should be: what is given stays, the rest is computed."""
    given = [line for line in path.read_text().splitlines() if line.startswith(("#", "current", "target"))]
    rows = {
        line.split()[0]: read_row(line.split(maxsplit=1)[1]) for line in given if not line.startswith("#")
    }
    return [*given, *computed(rows["current"], rows["target"])]


def check(path: Path, rewrite: bool) -> None:
    expected = rewritten(path)
    if rewrite:
        path.write_text("\n".join(expected) + "\n")
    assert path.read_text().splitlines() == expected


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_planning(path: Path, rewrite: bool) -> None:
    check(path, rewrite)


@pytest.mark.parametrize("line", range(6))
def test_a_changed_file_fails_until_it_is_rewritten(tmp_path: Path, line: int) -> None:
    """Each line of an example: what is given changes what is computed, the rest is compared."""
    lines = (FOLDER / "example-3-shift-down.txt").read_text().splitlines()[1:]
    changed = tmp_path / "changed.txt"
    changed.write_text("\n".join([*lines[:line], lines[line].replace("A", "E", 1), *lines[line + 1 :]]))
    if "A" not in lines[line]:
        changed.write_text("\n".join([*lines[:line], *lines[line + 1 :]]))
    with pytest.raises(AssertionError):
        check(changed, rewrite=False)
    check(changed, rewrite=True)
    check(changed, rewrite=False)


FROM_THE_SEED = {
    *("example-1-move", "example-2-copy", "example-3-shift-down", "example-4-shift-up-twice"),
    *("example-5-moves-from-the-end", "example-6-colder-index-given-up"),
    *("figure-move", "figure-copy", "figure-shift-down-1", "figure-shift-down-2"),
    *("figure-shift-up-1", "figure-shift-up-1-replacing", "figure-shift-up-2", "figure-shift-up-before-move"),
    "figure-cycle",
}


def test_every_case_of_the_seed_is_there() -> None:
    assert {path.stem for path in CASES} >= FROM_THE_SEED
