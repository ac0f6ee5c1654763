"""State machines: their diagrams are those of the code, and only their own class moves them on."""

import ast
from pathlib import Path

import pytest

from docs.tools.diagrams import PAGE, page, tables

SOURCE = Path(__file__).resolve().parents[2] / "operator" / "stele"
STATES = {"phase", "stage", "step"}


def test_the_page_has_the_present_diagrams() -> None:
    assert PAGE.read_text() == page(), "run: python -m docs.tools.diagrams"


def test_each_step_leads_to_a_state_that_has_its_own() -> None:
    for module, table in tables():
        for key, value in table.items():
            states = (value,) if isinstance(key, tuple) else value
            known = {each[0] if isinstance(each, tuple) else each for each in table}
            assert set(states) <= known, f"{module.__name__}: {key}"  # type: ignore[call-overload]


def moved_from_outside(tree: ast.AST) -> list[int]:
    """Lines that assign a phase, stage or step of anything but `self`."""
    targets = (
        (node, target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for whole in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(whole)
    )
    return [
        node.lineno
        for node, target in targets
        if isinstance(target, ast.Attribute)
        and target.attr in STATES
        and not (isinstance(target.value, ast.Name) and target.value.id == "self")
    ]


def test_states_are_assigned_by_their_own_class() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path in SOURCE.rglob("*.py")
        for line in moved_from_outside(ast.parse(path.read_text()))
    }
    assert not found, "a machine is moved on by a method of its class"


@pytest.mark.parametrize("text", ["a.phase = 1", "a.b.stage, c = 1, 2", "owner.step: int = 3"])
def test_an_assignment_from_outside_is_found(text: str) -> None:
    assert moved_from_outside(ast.parse(text)) == [1]
