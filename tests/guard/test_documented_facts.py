"""What the pages name exists: fields, values of the chart, Events, limits, names in code."""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from e2e.demo.settings import PhaseName
from stele.model import crd
from tests.guard.pages import ROOT, blocks, files, pages

NOT_OURS = {
    "FailedMount",
    "StorageVersionMigration",
    "SyncConsistentHashFactory",
    "dependsOn",
    "mkdocs.yml",
    "prepareReplicationOperation",
    "storedVersions",
    "tink",
    "v1beta1",
}
"""Names in code font that belong to others, and no source mentions."""
MIXED_CASE = {"tasksPerOwner"}
"""Options of Spark's data source, which the code compares in lower case."""


def test_targets_and_modules_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page, text in pages().items():
        for name in re.findall(r"^(?:    |`)make ([a-z-]+)", text, re.M):
            assert name in targets, f"{page}: make {name}"
        for name in re.findall(r"python -m ((?:e2e|tests|docs|stele)[\w.]*)", text):
            path = ROOT / ("operator" if name.startswith("stele") else "") / name.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: {name}"


def test_the_demo_has_a_row_for_each_phase() -> None:
    page = (ROOT / "docs/operating/demo.md").read_text()
    assert [phase for phase in PhaseName if f"\n| {phase} | " not in page] == []


# Resources and the chart ----------------------------------------------------------------------------------


SCHEMAS = {each.model.KIND: crd.schema_of(each.model) for each in crd.DEFINITIONS}


def _has(schema: dict[str, Any], names: list[str]) -> bool:
    """Whether the path leads to a field; below lists, maps and what Kubernetes defines anything does."""
    if not names or "properties" not in schema:
        return True
    return names[0] in schema["properties"] and _has(schema["properties"][names[0]], names[1:])


@pytest.mark.parametrize("part", ["spec", "status"])
def test_fields_that_pages_name_exist(part: str) -> None:
    unknown = [
        f"{page}: {path}"
        for page, text in pages().items()
        for path in re.findall(rf"`({part}(?:\.[a-z]\w*)+)", text)
        if not any(_has(schema, path.split(".")) for schema in SCHEMAS.values())
    ]
    assert unknown == []


def test_values_of_the_chart_that_pages_set_exist() -> None:
    values = yaml.safe_load((ROOT / "charts/stele/values.yaml").read_text())
    for page, text in pages().items():
        for path in re.findall(r"--set '?([A-Za-z.]+)=", text):
            inner = values
            for name in path.split("."):
                assert name in inner, f"{page}: --set {path}"
                inner = inner[name]


# Events and metrics ---------------------------------------------------------------------------------------


def _reasons(tree: ast.AST) -> Iterator[str]:
    """Reasons of Events in the code: of `emit`, of complaints about a member, and of refused joins."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            at = {"emit": 0, "ClusterEvent": 0, "warn_about": 1, "_complain": 2}.get(name)
            if at is not None:
                yield from (each.value for each in ast.walk(node.args[at]) if isinstance(each, ast.Constant))
        elif isinstance(node, ast.FunctionDef) and node.name == "_join_refusal":
            for each in ast.walk(node):
                if isinstance(each, ast.Return) and isinstance(each.value, ast.Tuple):
                    yield ast.literal_eval(each.value.elts[0])


def test_the_list_of_events_is_complete() -> None:
    sources = files("operator/stele/core/control/*.py", "operator/stele/master/*.py")
    reasons = {reason for text in sources.values() for reason in _reasons(ast.parse(text))}
    section = (ROOT / "docs/operating/monitoring.md").read_text().partition("\n## Events\n")[2]
    first_cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == reasons


def test_all_custom_resources_are_removed() -> None:
    command = re.search(r"kubectl delete crd(.*?)\n```", pages()["docs/operating/uninstall.md"], re.S)
    assert command is not None
    named = set(re.findall(r"([a-z]+)\.stele\.dev", command[1]))
    assert named == {each.stem for each in (ROOT / "crds").glob("*.yaml")}


def test_labels_of_metrics_in_queries_have_values_that_exist() -> None:
    reference = (ROOT / "docs/reference/metrics.md").read_text()
    rows = {name: line for line in reference.splitlines() for name in re.findall(r"`(stele_\w+)`", line)}
    asked = (ROOT / "charts/stele/files/monitoring/rules.yaml").read_text()
    found = re.findall(r'(stele_\w+)\{(\w+)!?="(\w+)"', asked + "".join(block.text for block in blocks()))
    assert found
    for metric, label, value in found:
        assert f"`{label}`" in rows[metric], f"{metric} has no label {label}"
        assert label == "type" or f"`{value}`" in rows[metric], f"{metric}: {label}={value}"


# Names and limits of the code -----------------------------------------------------------------------------


def _sources() -> dict[str, str]:
    return files("*.py", "*.java", "*.yaml", "*.tpl", "*.toml", "Makefile", "images/*", "charts/*")


def test_names_in_code_font_exist() -> None:
    words = set(re.findall(r"\w+", "".join(_sources().values()))) | NOT_OURS | MIXED_CASE
    words |= {f"{word}_total" for word in words if word.startswith("stele_")}
    unknown = {
        f"{page}: {name}"
        for page, text in pages().items()
        for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text)
        if name not in NOT_OURS and not name.endswith(".py") and not set(name.split(".")) <= words
    }
    assert unknown == set()


def _texts() -> str:
    """All texts of the product, each on a line of its own."""
    nodes = (node for text in files("operator/*.py").values() for node in ast.walk(ast.parse(text)))
    return "\n".join(str(node.value) for node in nodes if isinstance(node, ast.Constant))


def test_replies_to_clients_are_quoted_as_they_are() -> None:
    """Three words and more; placeholders are single capitals, `'x'`, `...`, numbers and what they count."""
    texts = _texts()
    variable = r"\.\.\.|'x'|\b[A-Z]\b|[\d,]+|\b(?:arguments|bytes) (?=exceeds)|[*`;]|^-[A-Z_]+(?: [A-Z_]+:)?"
    quoted = [
        (page, part.strip())
        for page, text in pages().items()
        for reply in re.findall(r"`(-[A-Z_]{3,} [^`\n]+)`", text)
        for part in re.split(variable, reply)
        if part.strip().count(" ") > 1
    ]
    assert len(quoted) > 20
    assert [(page, part) for page, part in quoted if part not in texts] == []


def test_files_and_modules_exist() -> None:
    """Paths count from the repository, the package, the core or the tests."""
    roots = [ROOT / name for name in ("", "operator/stele", "operator/stele/core", "tests")]
    tops = [path.name for path in (ROOT / "operator/stele").iterdir() if path.is_dir()]
    module = rf"(?:{'|'.join(tops)})(?:/[a-z_]+)+"
    for page, text in pages().items():
        paths = re.findall(r"`(\w+(?:/\w+)+\.py)`", text)
        modules = re.findall(rf"`({module})`", text) if page.endswith("layout.md") else []
        for name in [*paths, *modules]:
            found = (root / f"{name}{suffix}" for root in roots for suffix in ("", ".py"))
            assert any(path.exists() for path in found), f"{page}: {name}"


def test_the_architecture_has_each_package() -> None:
    root = ROOT / "operator/stele"
    packages = {path.parent.relative_to(root).as_posix() for path in root.rglob("*/__init__.py")}
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert [name for name in sorted(packages - {"core"}) if f"`{name}/`" not in text] == []


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}


def _number(node: ast.AST) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left), _number(node.right)
        if left is not None and right is not None:
            return float(_OPERATORS[type(node.op)](left, right))
    return None


@cache
def _constants() -> dict[str, set[float]]:
    """Numbers by the names that modules and classes give them."""
    found: dict[str, set[float]] = {}
    for text in files("operator/stele/*.py").values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                value = _number(node.value)
                if isinstance(target, ast.Name) and value is not None:
                    found.setdefault(target.id, set()).add(value)
    return found


_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "Mi": 2**20, "ms": 0.001}


def _numbers(cell: str) -> set[float]:
    """Numbers in the text, by themselves and multiplied by their unit."""
    found = re.findall(r"(\d[\d,]*(?:\.\d+)?)(?: (KiB|MiB|GiB|KB|MB|Mi|ms)\b)?", cell)
    plain = [(float(number.replace(",", "")), unit) for number, unit in found]
    return {number for number, _ in plain} | {number * _UNITS.get(unit, 1) for number, unit in plain}


def _wrong_limits(text: str) -> Iterator[str]:
    """Rows of tables with a limit in the first cell and numbers, but not its own, in the next."""
    for line in text.splitlines():
        cells = line.split(" | ")
        if not line.startswith("| ") or len(cells) < 2:
            continue
        for name in re.findall(r"`(?:\w+\.)?(\w+_\w+)`", cells[0]):
            numbers = _numbers(cells[1])
            if numbers and _constants().get(name, numbers).isdisjoint(numbers):
                yield f"{name} is {_constants()[name]}: {cells[1]}"


def test_limits_have_the_numbers_of_the_code() -> None:
    wrong = {page: list(_wrong_limits(text)) for page, text in pages().items()}
    assert {page: rows for page, rows in wrong.items() if rows} == {}


def test_a_wrong_limit_is_found() -> None:
    row = "| reply to one request (`REQUEST_REPLY_BYTES_MAX`) | {} MiB | refused |"
    assert list(_wrong_limits(row.format(64))) == []
    assert list(_wrong_limits(row.format(63)))
