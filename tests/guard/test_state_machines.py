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


def moved_past_its_table(tree: ast.AST) -> list[int]:
    """Lines that assign a phase, stage or step of anything but `self`, or of `self` without `check_step`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    checked = {
        id(node)
        for function in functions
        if function.name == "__init__" or "check_step" in {name_of(each) for each in ast.walk(function)}
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and name_of(node.value) == "self"
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if node.attr in STATES and id(node) not in checked
    ]


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def test_states_are_assigned_by_their_own_class() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path in SOURCE.rglob("*.py")
        for line in moved_past_its_table(ast.parse(path.read_text()))
    }
    assert not found, "a machine is moved on by the method of its class that checks the step"


@pytest.mark.parametrize(
    "text", ["a.phase = 1", "a.b.stage, c = 1, 2", "owner.step: int = 3", "def f(self): self.phase = 1"]
)
def test_an_assignment_past_the_table_is_found(text: str) -> None:
    assert moved_past_its_table(ast.parse(text)) == [1]
