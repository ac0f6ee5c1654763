"""How long a partition whose migration failed waits for the next plan."""

import pytest

from stele.core.control.retries import (
    COPIES_FAILED_MAX,
    COPY_PAUSE_SECONDS_MAX,
    RETRY_SECONDS,
    RETRY_SECONDS_MAX,
    Retries,
)


@pytest.mark.parametrize("now", [0.0, 0.3, 1000.1, 86_399.99])
def test_a_pause_is_twice_as_long_each_time_up_to_a_limit(now: float) -> None:
    retries, pauses = Retries(), []
    for _ in range(12):
        retries.note_failed(7, now)
        pauses.append(retries.pauses[7] - now)
    wanted = [min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2**count) for count in range(12)]
    assert [most / 2 <= pause <= most for pause, most in zip(pauses, wanted, strict=True)] == [True] * 12


def test_those_that_fail_at_about_the_same_time_are_planned_together() -> None:
    retries = Retries()
    for number in range(600):
        for _ in range(8):
            retries.note_failed(number, 100.0 + number / 10)
    assert len(set(retries.pauses.values())) <= 60 / (RETRY_SECONDS_MAX / 2) + 1


def test_one_that_was_planned_is_not_due_again_before_it_fails_again() -> None:
    retries = Retries()
    retries.note_failed(1, 0.0)
    retries.note_void(2, 0.0)
    assert (retries.paused(0.0), retries.due(0.0)) == ({1}, {2})
    retries.note_planned(but={1})
    assert (retries.paused(0.0), retries.due(0.0)) == ({1}, set())
    assert retries.due(RETRY_SECONDS) == {1}
    retries.note_planned(but=set())
    assert retries.pauses == {}
    assert retries.failed == {1: 1}


def test_a_migration_that_is_done_ends_the_count() -> None:
    retries = Retries()
    retries.note_failed(1, 0.0)
    retries.note_done(1)
    assert retries == Retries()


def test_a_copy_that_failed_three_times_is_tried_with_half_as_many_at_once() -> None:
    retries, found = Retries(), []
    for _ in range(4):
        retries.note_failed(1, 0.0, copies=COPIES_FAILED_MAX)
        found.append(retries.parallel_max(1, 40))
    assert found == [20, 10, 5, 2]
    for _ in range(100):
        retries.note_failed(1, 0.0, copies=COPIES_FAILED_MAX)
    assert (retries.parallel_max(1, 40), retries.parallel_max(2, 40)) == (1, 40)
    retries.note_done(1)
    assert retries.parallel_max(1, 40) == 40


def test_it_then_pauses_as_long_as_its_copy_took() -> None:
    retries = Retries()
    retries.note_failed(1, 0.0, copies=2, took=200.0)
    assert retries.pauses[1] <= RETRY_SECONDS
    retries.note_failed(1, 0.0, copies=1, took=200.0)
    assert retries.pauses[1] == 200.0
    retries.note_failed(1, 0.0, copies=1, took=9000.0)
    assert retries.pauses[1] == COPY_PAUSE_SECONDS_MAX
