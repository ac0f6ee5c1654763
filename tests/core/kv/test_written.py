"""What a connection remembers of its writes."""

import pytest

from stele.core.kv import written
from stele.core.kv.written import WrittenOperations, WrittenTotal, held_command, operations_of


def test_the_last_operation_of_each_term_is_kept_until_it_is_committed() -> None:
    """A later one of another owner says nothing about one that may have been lost with the owner before."""
    total = WrittenTotal()
    made = WrittenOperations(total)
    for partition, operation in ((3, (5, 10)), (3, (5, 9)), (3, (7, 8)), (4, (1, 1)), (4, None)):
        made.add(partition, operation)
    assert made.operations() == {3: [(5, 10), (7, 8)], 4: [(1, 1)]}
    assert len(made) == total.partitions == 3
    made.add(3, (7, 12))
    made.committed(3, [(5, 10), (7, 8)])
    assert made.operations() == {3: [(7, 12)], 4: [(1, 1)]}
    made.release()
    assert len(made) == total.partitions == 0


def test_beyond_the_limits_it_says_that_it_forgot(monkeypatch: pytest.MonkeyPatch) -> None:
    total = WrittenTotal()
    one, other = WrittenOperations(total), WrittenOperations(total)
    monkeypatch.setattr(written, "WRITTEN_MAX", 2)
    for partition in range(3):
        one.add(partition, (1, 1))
    assert (len(one), one.forgotten) == (2, True)
    monkeypatch.setattr(written, "WRITTEN_TOTAL_MAX", 2)
    other.add(0, (1, 1))
    assert (len(other), other.forgotten) == (0, True)
    one.add(0, (1, 2))
    assert one.operations()[0] == [(1, 2)]


def test_operations_travel_as_words() -> None:
    operations = [(5, 10), (7, 8)]
    assert held_command(operations)[1:] == [b"5", b"10", b"7", b"8"]
    assert operations_of(held_command(operations)) == operations
