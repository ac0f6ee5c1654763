"""How long a partition whose migration failed waits for the next plan."""

import pytest

from stele.core.control.retries import RETRY_SECONDS, RETRY_SECONDS_MAX, Retries


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
