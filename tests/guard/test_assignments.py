"""An object's attributes are assigned by the module of its class: it is whole when it is made, and others ask
it by methods, or hand it what it needs when they make it.

An assignment to `x.name` passes when a class of the same module has `name`, when no class of the product has
it (a library's object), or when `x` is a record: an object that holds facts and decides nothing.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "operator" / "stele"

RECORDS = [
    # Name of the variable, its class, the room whose modules may write it, and what they write.
    ("state", "core/control/state.py:State", "core/control/", "modules of one room make one decision"),
    ("failover", "core/control/parts.py:Failover", "core/control/failover/", "see test_writers"),
    ("rebalance", "core/control/parts.py:Rebalance", "core/control/rebalance/", "see test_writers"),
    ("plans", "core/control/parts.py:Rebalance", "core/control/rebalance/", "`state.rebalance`"),
    ("copies", "core/control/parts.py:Copies", "core/control/rebalance/", "see test_writers"),
    ("stops", "core/control/parts.py:PlannedStops", "core/control/restarts/", "see test_writers"),
    ("progress", "core/control/progress.py:RebalanceProgress", "core/control/", "as `state`"),
    ("operation", "core/control/operations/move.py:MigrationOperation", "core/control/", "as `state`"),
    ("session", "core/control/operations/copy_session.py:CopySession", "core/control/", "as `state`"),
    ("entry", "core/control/operations/copy_session.py:Copied", "master/", "a sum over copies"),
    ("draft", "core/placement/draft.py:DraftAssignment", "core/placement/", "the mode of a search"),
    ("tablet", "core/tablet/follower.py:Tablet", "member/", "what is on the disk now"),
    ("progress", "core/tablet/owner.py:Progress", "member/replication/", "what was sent"),
    ("replica", "member/replication/replica.py:Replica", "member/", "facts of one tablet"),
    ("request", "member/replication/request.py:Request", "member/", "facts of one request"),
    ("session", "member/resp/session.py:ClientSession", "member/resp/", "what a client has set"),
    ("counters", "member/replication/counters.py:Counters", "member/", "numbers that only rise"),
    ("driver", "copyjob/drivers.py:Driver", "copyjob/", "how it is used"),
]


@cache
def _modules() -> dict[str, ast.Module]:
    """All modules of the product, by path."""
    return {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))
    }


def _stores(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}


@cache
def _fields(tree: ast.AST, name: str = "") -> set[str]:
    """Attributes of the classes of a module, or of the class of that name."""
    fields: set[str] = set()
    for cls in ast.walk(tree):
        if isinstance(cls, ast.ClassDef) and name in ("", cls.name):
            fields |= {target.attr for target in _stores(cls) if _is_own(target)}
            for node in cls.body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                fields |= {target.id for target in targets if isinstance(target, ast.Name)}
    return fields


@cache
def _product() -> set[str]:
    """Attributes of all classes of the product."""
    return {field for tree in _modules().values() for field in _fields(tree)}


def _record_fields(path: str, variable: str) -> set[str]:
    """What a module may write of a record by this name."""
    kinds = [kind for name, kind, room, _ in RECORDS if name == variable and path.startswith(room)]
    return {field for kind in kinds for field in _fields(*_find(kind))}


def _find(kind: str) -> tuple[ast.AST, str]:
    path, _, name = kind.partition(":")
    return _modules()[path], name


def _foreign(path: str) -> Iterator[ast.Attribute]:
    """Assignments of a module to attributes of objects that are not its own."""
    fields = _fields(_modules()[path])
    for target in _stores(_modules()[path]):
        if not _is_own(target) and target.attr not in fields and target.attr in _product():
            yield target


def _variable(target: ast.Attribute) -> str:
    """`replica` of `self.replica.x`, `job.replica.x` and `replica.x`."""
    return ast.unparse(target.value).rpartition(".")[2].lstrip("_")


def test_no_attribute_of_another_module_s_object_is_assigned() -> None:
    assert [
        f"{path}:{target.lineno}: {ast.unparse(target)}: hand it to the constructor, or call a method"
        for path in _modules()
        for target in _foreign(path)
        if target.attr not in _record_fields(path, _variable(target))
    ] == []


@pytest.mark.parametrize(("variable", "kind", "room"), [record[:3] for record in RECORDS])
def test_each_record_is_written_by_others(variable: str, kind: str, room: str) -> None:
    """A line that nothing needs goes."""
    fields = _fields(*_find(kind))
    assert any(
        _variable(target) == variable and target.attr in fields
        for path in _modules()
        if path.startswith(room)
        for target in _foreign(path)
    )
