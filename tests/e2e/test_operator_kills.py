"""The operator is killed during a scale-up on the real cluster: no byte is copied twice."""

from pathlib import Path

import pytest

from e2e.scenarios import operator_kills
from e2e.scenarios.operator_kills import MIB, Join, Outcome

COPIED_MEBIBYTES, KILLS = 32, 1
"""Smaller than what docs/internals/benchmarks.md publishes."""


def test_bytes_are_compared_with_those_of_a_scale_up_without_kills() -> None:
    assert operator_kills.settings().resource == "tabletcluster/kills"
    assert Outcome(Join(100, 1.0), Join(108, 2.0, 10), 0).ratio == 1.08


@pytest.mark.cluster
def test_copies_go_on_while_the_operator_is_killed(tmp_path: Path) -> None:
    outcome = operator_kills.run(tmp_path, COPIED_MEBIBYTES * MIB, KILLS)
    assert (outcome.disturbed.kills, outcome.wrong) == (KILLS, 0)
    assert outcome.undisturbed.received_bytes > COPIED_MEBIBYTES * MIB * 0.9
    assert outcome.ratio <= 1.1, outcome
