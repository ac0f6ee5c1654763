"""Which operations were answered and are not committed."""

from stele.core.tablet.acknowledged import Acknowledged


def made() -> Acknowledged:
    """Operations 3 to 5, and 9."""
    acknowledged = Acknowledged()
    acknowledged.add(5, 3, 30)
    acknowledged.add(9, 1, 10)
    return acknowledged


def test_they_are_forgotten_when_they_are_committed() -> None:
    acknowledged = made()
    assert (acknowledged.last, acknowledged.operations, acknowledged.bytes) == (9, 4, 40)
    assert acknowledged.committed(4) == 0
    assert acknowledged.committed(8) == 30
    assert acknowledged.committed(9) == 10
    assert not acknowledged
    assert (acknowledged.last, acknowledged.operations, acknowledged.bytes) == (0, 0, 0)


def test_those_after_a_cut_are_lost() -> None:
    acknowledged = made()
    assert acknowledged.cut(9) == (0, 0)
    assert acknowledged.cut(3) == (3, 10)
    assert (acknowledged.last, acknowledged.operations, acknowledged.bytes) == (3, 1, 30)
    assert acknowledged.cut(0) == (1, 30)
    assert not acknowledged
