"""A tablet's log without its operations."""

import pytest

import stele.core.tablet.log as module
from stele.core.tablet.log import ZERO, Log
from stele.errors import Corrupt


def filled(*runs: tuple[int, int]) -> Log:
    """(term, count) each."""
    log = Log()
    for term, count in runs:
        log.append(term, count, 10 * count)
    return log


def test_terms_are_known_for_every_operation() -> None:
    log = filled((1, 3), (4, 2), (9, 1))
    assert [log.term_at(index) for index in range(8)] == [0, 1, 1, 1, 4, 4, 9, None]
    assert log.holds((4, 5))
    assert not log.holds((1, 5))
    assert log.holds(ZERO)
    assert len(log) == 6


def test_terms_never_fall() -> None:
    log = filled((5, 1))
    with pytest.raises(Corrupt):
        log.append(4, 1, 1)
    assert log.last == (5, 1)


@pytest.mark.parametrize("cut", range(7))
def test_truncation_keeps_the_front(cut: int) -> None:
    log, whole = filled((1, 3), (4, 2), (9, 1)), filled((1, 3), (4, 2), (9, 1))
    log.truncate(cut)
    assert log.last == (whole.term_at(cut), cut)
    assert [log.term_at(i) for i in range(cut + 1)] == [whole.term_at(i) for i in range(cut + 1)]
    log.append(9, 1, 10)
    assert log.last == (9, cut + 1)


def test_what_is_applied_or_committed_is_never_truncated() -> None:
    log = filled((1, 5))
    log.commit(4)
    log.apply(3)
    for index in (2, 3):
        with pytest.raises(Corrupt):
            log.truncate(index)
    assert log.last == (1, 5)
    log.truncate(4)
    assert log.last == (1, 4)


def test_only_what_is_committed_is_applied() -> None:
    log = filled((1, 5))
    assert log.commit(9)
    assert log.committed == 5
    assert not log.commit(3)
    with pytest.raises(Corrupt):
        filled((1, 5)).apply(1)


def test_trimming_keeps_the_tail_and_what_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 20)
    log = Log()
    for _ in range(20):
        log.append(1, 1, 10)
    log.commit(20)
    log.apply(12)
    assert log.trim_point(20, 10_000) == 0
    assert log.trim_point(20, 0) == 12
    assert log.trim_point(7, 0) == 6
    log.trim(log.trim_point(7, 0))
    assert (log.first, log.term_at(6), log.term_at(7), log.bytes) == (7, None, 1, 140)
    with pytest.raises(Corrupt):
        log.trim(13)


def test_a_restored_log_tells_what_is_wrong() -> None:
    log = Log.restored((2, 5), 3, 8, [(3, 1), (5, 2), (8, 4)], 0)
    assert (log.last, log.term_at(4), log.term_at(7), log.committed) == ((4, 8), 1, 2, 5)
    with pytest.raises(Corrupt, match="holds 7 to 9"):
        Log.restored((2, 5), 7, 9, [(7, 2)], 0)
    with pytest.raises(Corrupt, match="another term"):
        Log.restored((3, 5), 3, 8, [(3, 1)], 0)
    lost = Log.restored((2, 5), 1, 3, [(1, 2)], 0)
    assert (lost.last, len(lost)) == ((2, 5), 0)


def test_a_restored_log_counts_its_bytes_as_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 20)
    log = Log.restored((1, 10), 1, 10, [(1, 1)], 101)
    assert (log.bytes, log.trim_point(10, 60), log.bytes_between(0, 10)) == (101, 4, 101)
    log.trim(4)
    assert (log.first, log.bytes) == (5, 61)
    assert Log.restored((1, 2), 1, 2, [(1, 1)], 1000).trim_point(2, 0) == 1
