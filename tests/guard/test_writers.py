"""Each part of the master's memory has one writer."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.membership import Membership
from stele.core.control.parts import Copies, Failover, PlannedStops, Rebalance
from stele.core.control.table_view import TableView
from stele.core.table.table import PartitionTable

SOURCE = Path(__file__).resolve().parents[2] / "operator" / "stele"
TABLE = frozenset(vars(TableView(1, PartitionTable.empty(1))))
MEMBERSHIP = frozenset(vars(Membership(1, 0)))
LIVENESS = frozenset(each.name for each in fields(MemberLiveness)) - {"recheck"}
PARTS: dict[str, tuple[frozenset[str], str]] = {
    "failover": (frozenset(each.name for each in fields(Failover)), "core/control/failover/"),
    "rebalance": (frozenset(each.name for each in fields(Rebalance)), "core/control/rebalance/"),
    "copies": (frozenset(each.name for each in fields(Copies)), "core/control/rebalance/copy_"),
    "table": (TABLE, "core/control/table_view.py"),
    "stops": (frozenset(each.name for each in fields(PlannedStops)), "core/control/restarts/"),
    "membership": (MEMBERSHIP, "core/control/membership.py"),
    "liveness": (LIVENESS, "core/control/failure_detector.py"),
}
"""How a part is reached, its fields, and the path of its writers."""

MUTATORS = frozenset(
    [
        "add",
        "append",
        "clear",
        "difference_update",
        "discard",
        "drop",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "set",
        "setdefault",
        "startable",
        "update",
        "note_done",
        "note_failed",
        "note_planned",
        "note_void",
    ]
)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _written(tree: ast.AST) -> Iterator[ast.expr]:
    """What is assigned, deleted or changed by a method; of a subscript, what it is of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.value if isinstance(node, ast.Subscript) else node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            yield node.func.value


def _foreign_writes(path: str, tree: ast.AST) -> Iterator[str]:
    for node in _written(tree):
        if not isinstance(node, ast.Attribute):
            continue
        known, writer = PARTS.get(_name(node.value), (frozenset[str](), ""))
        if node.attr in known and not path.startswith(writer):
            yield f"{path}:{node.lineno}: {ast.unparse(node)} is written by {writer}"
    for assign in ast.walk(tree):
        if isinstance(assign, ast.Assign) and isinstance(assign.value, ast.Attribute):
            part = PARTS.get(assign.value.attr)
            if part is not None and assign.value.attr != "liveness" and not path.startswith(part[1]):
                yield f"{path}:{assign.lineno}: {ast.unparse(assign)} hides who writes"


def _trees(folder: str) -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((SOURCE / folder).rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


def test_each_part_has_one_writer() -> None:
    for room in ("core/control", "master"):
        assert [line for path, tree in _trees(room) for line in _foreign_writes(path, tree)] == []


@pytest.mark.parametrize(
    "line",
    [
        "state.failover.lost = set()",
        "self._state.failover.fenced.add(3)",
        "state.rebalance.queues.drop(3)",
        "state.rebalance.progress, other = None, 1",
        "del state.copies.short[3]",
        "state.copies.copied[3] += 1",
        "state.table.staged[3] = row",
        "state.table.claimed.update(found)",
        "state.table.stored = table",
        "plans = state.rebalance",
        "state.membership.leaving = frozenset()",
        "liveness.problem = text",
    ],
)
def test_a_write_by_somebody_else_is_found(line: str) -> None:
    assert list(_foreign_writes("core/control/decide.py", ast.parse(line)))
