"""Rules of the tree that no tool checks: see ARCHITECTURE.md."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 55
FILE_LINES_MAX = 600
PYTHON = sorted(
    path
    for top in ("operator", "e2e")
    for path in (ROOT / top).rglob("*.py")
    if "__pycache__" not in path.parts
)


def test_source_root_shadows_nothing() -> None:
    """A package or a module directly in operator/ would shadow Python's own `operator`, `types`, ..."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not list((ROOT / "operator").glob("*.py"))


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES_MAX, (
        f"{path} is longer than {FILE_LINES_MAX} lines: split it by idea"
    )
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{path}:{node.lineno} {node.name} has {lines} lines"


def test_tests_do_not_live_in_e2e() -> None:
    """e2e/ is scenarios and tools; it is imported by tests, never the other way."""
    found = subprocess.run(
        ["grep", "-rlE", r"^\s*(from|import) tests\b", str(ROOT / "e2e"), str(ROOT / "operator")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""


def collectors(text: str) -> list[str]:
    """Containers that a module makes empty, and that nothing in it empties again."""
    empty = re.compile(
        r"^(\w+)(?:: [^=\n]+)? = (?:set|list|dict|Counter|deque)?(?:\(\)|\[\]|\{\})$", re.MULTILINE
    )
    return [name for name in empty.findall(text) if not re.search(rf"\b{name}\.(?:clear|pop)\(", text)]


def test_no_test_needs_others_to_have_run() -> None:
    """Tests of one module run in several processes, and one that failed runs again alone."""
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if "__pycache__" not in path.parts]
    assert [(path.name, found) for path in modules if (found := collectors(path.read_text()))] == []
    made = "A: set[str] = set()\nB = []\nC = {}\nD = [1]\nE = int(1)\nF = []\nF.clear()\nif E:\n    G = []\n"
    assert collectors(made) == ["A", "B", "C"]


def test_each_room_has_its_line_in_the_architecture() -> None:
    """Each package that has modules of its own, and each module that lies beside the rooms of the core."""
    text, source = (ROOT / "ARCHITECTURE.md").read_text(), ROOT / "operator" / "stele"
    rooms = {path.parent for path in source.rglob("*.py") if path.stem != "__init__"}
    rooms -= {source, source / "core"}
    # A service interface, and the models, have their code in `__init__`.
    names = {f"`{room.relative_to(source)}/`" for room in rooms}
    names |= {f"`{path.relative_to(source)}`" for path in (source / "core").glob("[!_]*.py")}
    assert sorted(name for name in names if name not in text) == []
