"""The pages on state transfer and modes: each test, case of one, and planted bug that they name exists."""

import re
from collections.abc import Iterator
from functools import cache

from tests.guard.pages import ROOT
from tests.simulation.mutants.registry import PLANTED

PAGE = ROOT / "docs/design/state-transfer.md"
MODES = ROOT / "docs/operating/keyspaces.md"


@cache
def _tests() -> dict[str, str]:
    """The text of the module of each test."""
    texts = [path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    return {name: text for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)\(", text, re.M)}


def _faults(text: str) -> Iterator[str]:
    for name, case in re.findall(r"`(test_\w+)(?:\[(.+?)\])?`", text):
        if name not in _tests() or (case and f'"{case}"' not in _tests()[name]):
            yield f"no test: {name} {case}"
    for path in re.findall(r"`(tests/[\w/.]+)`", text):
        if not (ROOT / path).exists():
            yield f"no file: {path}"
    planted = {bug.__name__ for bug in PLANTED}
    for names in re.findall(r"mutants? ((?:`\w+`(?:, )?)+)", text):
        bugs = [each for each in re.findall(r"\w+", names) if not each.startswith("test_")]
        yield from (f"no planted bug: {each}" for each in bugs if each not in planted)


def test_what_the_pages_name_exists() -> None:
    assert [fault for page in (PAGE, MODES) for fault in _faults(page.read_text())] == []


def test_wrong_names_are_found() -> None:
    text = PAGE.read_text()
    for name in (
        "test_case_1_prepared_before",
        "[repeated]",
        "copyfaults",
        "locks_not_rebuilt",
        "handed_over",
    ):
        assert list(_faults(text.replace(name, f"{name[:-1]}_x{name[-1]}"))), name
