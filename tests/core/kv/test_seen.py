"""What a connection has seen, and what may answer it then."""

from math import inf

import pytest

from stele.core.kv import seen as module
from stele.core.kv.seen import SeenOperations, SeenTotal


@pytest.fixture
def total() -> SeenTotal:
    return SeenTotal()


def test_data_answers_that_has_what_was_seen(total: SeenTotal) -> None:
    seen = SeenOperations(total)
    assert seen.allows(3, (0, 0), 0.0), "nothing was seen"
    seen.saw(3, (2, 10), 1.0)
    seen.saw(3, (1, 99), 1.0)
    assert not seen.allows(3, (2, 9), 5.0)
    assert seen.allows(3, (2, 10), 0.5)
    assert seen.allows(3, (4, 1), 0.5)
    assert seen.allows(4, (0, 0), 0.5), "of another partition"


def test_what_is_unknown_needs_everything_from_before(total: SeenTotal) -> None:
    seen = SeenOperations(total)
    seen.saw(3, (2, 10), 1.0)
    seen.saw(4, None, 2.0)
    assert (len(seen), total.partitions) == (0, 0)
    assert not seen.allows(3, (9, 9), 1.9)
    assert seen.allows(3, (0, 0), 2.0), "that is in data with everything acknowledged before"


def test_beyond_its_limit_a_connection_forgets(total: SeenTotal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEEN_PARTITIONS_MAX", 2)
    seen = SeenOperations(total)
    for partition in range(3):
        seen.saw(partition, (1, 1), 7.0 + partition)
    assert (len(seen), total.partitions, seen.since) == (1, 1, 9.0)
    assert seen.allows(2, (1, 1), 9.0)
    assert not seen.allows(0, (5, 5), 8.9)


def test_all_connections_together_have_a_limit(total: SeenTotal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEEN_TOTAL_MAX", 3)
    one, other = SeenOperations(total), SeenOperations(total)
    for partition in range(3):
        one.saw(partition, (1, 1), 1.0)
    other.saw(0, (1, 1), 2.0)
    assert (len(one), len(other), other.since, one.since) == (3, 1, 2.0, -inf)
    one.release()
    other.release()
    assert total.partitions == 0
