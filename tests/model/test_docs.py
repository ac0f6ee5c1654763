"""docs/reference/resources.md tells all: every field, default, column-worthy status, condition and reason."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stele.model import crd
from stele.model.conditions import ConditionType, Reason

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "resources.md").read_text(encoding="utf-8")


def section(kind: str) -> str:
    return re.split(r"^## ", TEXT.split(f"\n## {kind}\n", 1)[1], maxsplit=1, flags=re.M)[0]


OF_KUBERNETES = {"spec.podTemplate.affinity", "spec.podTemplate.securityContext"}
"""Their fields are those of a pod's spec, and explained there."""


def leaves(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema["properties"].items():
        if "properties" in field and f"{path}.{name}" not in OF_KUBERNETES:
            yield from leaves(f"{path}.{name}", field)
        else:
            yield f"{path}.{name}", field


def fields_of(part: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (each.model.KIND, path, field)
        for each in crd.DEFINITIONS
        for path, field in leaves(part, crd.schema_of(each.model)["properties"][part])
    ]


@pytest.mark.parametrize(
    ("kind", "path", "field"), fields_of("spec"), ids=lambda case: case if isinstance(case, str) else ""
)
def test_each_field_of_spec_has_a_row_with_its_default_and_values(
    kind: str, path: str, field: dict[str, Any]
) -> None:
    rows = [line for line in section(kind).splitlines() if line.startswith(f"| `{path}` |")]
    assert len(rows) == 1, f"{kind} {path} needs one row"
    _, default, limits = (cell.strip() for cell in rows[0].strip("|").split("|")[:3])
    if "default" in field:
        shown = str(field["default"]).lower() if isinstance(field["default"], bool) else str(field["default"])
        assert default == f"`{shown}`"
    for value in field.get("enum", []):
        assert f"`{value}`" in limits


@pytest.mark.parametrize(("kind", "path"), [(kind, path) for kind, path, _ in fields_of("status")])
def test_each_field_of_status_is_explained(kind: str, path: str) -> None:
    parent, _, name = path.rpartition(".")
    whole = f"`{path}`" in section(kind)
    assert whole or (f"`{parent}`" in section(kind) and f"`{name}`" in section(kind)), f"{kind} {path}"


@pytest.mark.parametrize("name", [*ConditionType, *Reason])
def test_each_condition_and_reason_has_a_row(name: str) -> None:
    assert f"| `{name}` |" in section("Conditions")


def test_each_status_enum_value_is_named() -> None:
    for kind, path, field in fields_of("status"):
        for value in field.get("enum", []):
            assert f"`{value}`" in section(kind) or value == "Auto", f"{kind} {path} {value}"
