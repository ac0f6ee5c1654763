"""All operations under way: found by id, kind and partition, at most one for a row."""

import pytest

from stele.core.control.invariants import BrokenInvariant
from stele.core.control.operations.cluster_state import StateChange
from stele.core.control.operations.copy_session import CopySession
from stele.core.control.operations.move import begin
from stele.core.control.operations.partition_reset import PartitionReset
from stele.core.control.operations.promotion import Promotion
from stele.core.control.operations.registry import Operations, RowOperation
from stele.core.placement.migration import move
from stele.core.table.table import Partition

ROW = Partition(4, (0, 1))


def row_operation(kind: type, id: str, number: int = 0) -> RowOperation:
    if kind is Promotion:
        return Promotion(number, ROW, 6, (1,), True, 0.0, id)
    if kind is PartitionReset:
        return PartitionReset(id, number, ROW)
    return begin(id, move(number, 0, 0, 2), ROW, 0.0)


KINDS = [object, Promotion, PartitionReset]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_row_is_changed_by_one_operation_at_a_time(first: type, second: type) -> None:
    operations = Operations(StateChange())
    operations.begin(row_operation(first, "one"))
    operations.begin(row_operation(second, "two", number=1))
    with pytest.raises(BrokenInvariant, match="partition 0: one is under way"):
        operations.begin(row_operation(second, "three"))


def test_operations_are_found_by_id_until_they_end() -> None:
    operations = Operations(StateChange(unlocking={0: "c1"}))
    made = [row_operation(kind, f"{kind.__name__}", number) for number, kind in enumerate(KINDS)]
    session = CopySession("s", 0, 1, {}, {}, 0.0)
    for each in (*made, session):
        operations.begin(each)
        assert operations.get(each.id) is each
    assert list(operations) == [operations.change, made[1], made[2], made[0], session]
    assert operations.get("c1") is operations.change
    for each in (*made, session):
        operations.end(each)
        assert operations.get(each.id) is None
        assert each.id not in operations
    assert not any((len(operations), operations.by_row, operations.migrations, operations.sessions))
