"""docs/internals/partition-table.md shows what the code does: examples are computed, refusals listed."""

import re
from pathlib import Path

import pytest

from stele.core.placement.plan import Code
from stele.core.table import ids
from stele.core.table.table import Partition, stamp_of
from stele.wire.configmap import OBJECT_BYTES_MAX, encode_shard
from tests.golden.test_planning_golden import CASES, computed, read_row

TEXT = (Path(__file__).parents[2] / "docs" / "internals" / "partition-table.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", TEXT, flags=re.S)
EXAMPLES = [block.splitlines() for block in BLOCKS if block.startswith("current")]
GOLDEN = [[line for line in path.read_text().splitlines() if not line.startswith("#")] for path in CASES]


@pytest.mark.parametrize("lines", EXAMPLES, ids=lambda lines: f"{lines[0]} to {lines[1]}")
def test_each_example_is_what_is_planned_and_a_golden_file(lines: list[str]) -> None:
    current, target = (read_row(line.split(maxsplit=1)[1]) for line in lines[:2])
    assert lines[2:] == computed(current, target)
    assert lines in GOLDEN


def test_all_worked_examples_are_shown() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("code", Code)
def test_each_refusal_has_a_row(code: Code) -> None:
    assert f"\n| `{code}` | " in TEXT


def test_the_shard_is_what_is_stored() -> None:
    rows = (Partition(3, (0, 1)), Partition(0, ()), Partition(6, (2, None, 0)))
    data = encode_shard(7, 0, rows)
    shown = "".join(f"  {line}\n" for line in data["rows"].splitlines())
    assert f"epoch: {data['epoch']}\nformat: {data['format']}\nrows:\n{shown}" in BLOCKS


def test_figures_are_those_of_the_code() -> None:
    assert f"`[1]` have the stamp {stamp_of([1])}" in TEXT
    for name in ("PARTITIONS_MAX", "MAX_REPLICAS", "MEMBERS_MAX", "VERSION_MAX"):
        assert re.search(rf"`{name}`\) \| {getattr(ids, name):,} \|", TEXT), name
    assert f"the last {ids.VERSIONS_RESERVED:,} (`VERSIONS_RESERVED`)" in TEXT
    assert f"(`OBJECT_BYTES_MAX`) | {OBJECT_BYTES_MAX // 1024} KiB |" in TEXT
