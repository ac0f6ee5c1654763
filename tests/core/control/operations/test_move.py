"""The steps of a migration; what each leads to is in `tests/golden/migration`."""

from itertools import product

import pytest

from stele.core.control.operations.move import TRANSITIONS, Step, begin
from stele.core.placement.migration import move
from stele.core.table.table import Partition
from stele.errors import Refused


def test_no_step_outside_the_table_is_taken() -> None:
    for step, to in product(Step, Step):
        operation = begin("m", move(0, 0, 0, 2), Partition(4, (0, 1)), 0.0)
        operation.step = step
        if to in TRANSITIONS[step]:
            operation.enter(to, 1.0)
            assert operation.step is to
        else:
            with pytest.raises(Refused, match="ILLEGAL_STATE"):
                operation.enter(to, 1.0)
            assert operation.step is step
