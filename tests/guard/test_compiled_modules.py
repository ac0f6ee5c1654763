"""Which modules are compiled (`setup.py`): what mypyc would do otherwise than Python is not in them."""

import ast
import importlib
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.run import COMPILED as AS_IN_IMAGES

PROJECT = Path(__file__).parents[2]
SOURCES = PROJECT / "operator" / "stele"

BASES = {"Protocol", "asyncio.Protocol", "NamedTuple", "Enum", "IntEnum", "StrEnum"}


def listed() -> list[str]:
    """The paths in `COMPILED` of setup.py, which cannot be imported without building."""
    for statement in ast.parse((PROJECT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "COMPILED":
            return list(ast.literal_eval(statement.value))
    raise AssertionError("setup.py has no COMPILED")


def name_of(path: str) -> str:
    return f"stele.{path.removesuffix('.py').replace('/', '.')}"


def decoded() -> Iterator[Any]:
    """The type of each decoder that a module of Stele has."""
    for path in sorted(SOURCES.rglob("*.py")):
        if "Decoder(" in path.read_text(encoding="utf-8"):
            module = importlib.import_module(name_of(str(path.relative_to(SOURCES))))
            for value in vars(module).values():
                for each in value.values() if isinstance(value, dict) else [value]:
                    decoder = getattr(each, "__self__", each)
                    if isinstance(decoder, msgspec.json.Decoder | msgspec.msgpack.Decoder):
                        yield decoder.type


def classes_in(info: object, seen: set[type]) -> set[type]:
    """Add the classes that a decoder makes objects of."""
    if isinstance(info, list | tuple):
        for each in info:
            classes_in(each, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        made = getattr(info, "cls", None)
        if made in seen:
            return seen
        if made is not None:
            seen.add(made)
        for name in info.__struct_fields__:
            classes_in(getattr(info, name), seen)
    return seen


def test_all_of_them_are_compiled_or_none() -> None:
    suffixes = {Path(str(importlib.import_module(name_of(each)).__file__)).suffix for each in listed()}
    assert suffixes == ({".so"} if os.environ.get(AS_IN_IMAGES) else {".py"})


def test_none_makes_objects_out_of_what_others_send() -> None:
    """msgspec looks at the annotations of a class, and those of a compiled one say less. Enums have none."""
    compiled = set(map(name_of, listed()))
    found = list(decoded())
    assert len(found) > 30
    made = {each for kind in found for each in classes_in(msgspec.inspect.type_info(kind), set())}
    assert "PartitionGroup" in {each.__name__ for each in made}
    assert [each for each in made if each.__module__ in compiled and not issubclass(each, Enum)] == []


@pytest.mark.parametrize("path", listed())
def test_what_is_compiled_differently_is_not_in_it(path: str) -> None:
    """Coroutines, which asyncio may find running; structures of msgspec; subclasses of Python's own types."""
    for node in ast.walk(ast.parse((SOURCES / path).read_text(encoding="utf-8"))):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{path}:{node.lineno}"
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
            assert bases <= BASES, f"{path}:{node.lineno}"
