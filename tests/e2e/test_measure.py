"""Percentiles, pauses and their sums."""

import pytest

from e2e.demo.latency import GROWTH, Histogram
from e2e.demo.measure import READ, WRITE, Pauses, PhaseMeasure, total


def test_percentiles_are_within_the_growth_of_a_bucket() -> None:
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    assert histogram.percentile(50) == pytest.approx(0.5, rel=GROWTH - 1)
    assert histogram.percentile(99) == pytest.approx(0.99, rel=GROWTH - 1)
    assert histogram.percentile(100) == 1.0
    assert Histogram().percentile(99) == 0.0


def test_merged_histograms_equal_one() -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for number in range(100):
        (one if number % 2 else other).add(number / 10)
        both.add(number / 10)
    one.merge(other)
    assert one == both


def test_the_longest_pause_of_all_and_of_one_client() -> None:
    pauses = Pauses(0.0)
    for client, now in [(1, 1.0), (2, 2.0), (2, 3.0), (1, 4.0)]:
        pauses.success(client, now)
    assert pauses.upto(4.5) == (1.0, 3.0)
    assert pauses.upto(10.0) == (6.0, 7.0)


def test_a_pause_over_the_end_of_a_phase_is_not_cut_in_two() -> None:
    first = PhaseMeasure.begin("first", 0.0)
    first.meters[READ].pauses.success(1, 1.0)
    second = PhaseMeasure.begin("second", 5.0, first)
    second.meters[READ].pauses.success(1, 9.0)
    assert first.summary(5.0)[READ]["longest_pause_ms"] == 4000
    assert second.summary(9.0)[READ]["longest_pause_ms"] == 8000
    assert total([first, second], 9.0)[READ]["longest_pause_ms"] == 8000


def test_an_outage_to_the_end_is_a_pause() -> None:
    phase = PhaseMeasure.begin("only", 0.0)
    phase.meters[WRITE].pauses.success(1, 1.0)
    assert total([phase], 61.0)[WRITE]["longest_pause_ms"] == 60_000


def test_errors_are_summed_by_code() -> None:
    first = PhaseMeasure.begin("first", 0.0)
    first.meters[WRITE].errors["TRYAGAIN"] += 2
    second = PhaseMeasure.begin("second", 1.0, first)
    second.meters[WRITE].errors["TRYAGAIN"] += 1
    assert total([first, second], 2.0)[WRITE]["errors_by_code"] == {"TRYAGAIN": 3}
