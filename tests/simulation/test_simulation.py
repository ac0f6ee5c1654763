"""Whole clusters under faults, from seeds."""

from tests.simulation.run import run


def test_the_same_seed_is_the_same_history() -> None:
    first, second = run(7), run(7)
    assert first.steps > 1000
    assert (first.digest, first.steps, first.messages) == (second.digest, second.steps, second.messages)
    assert run(8).digest != first.digest
