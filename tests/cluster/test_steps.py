"""The times of steps, as a run tells them at its end."""

import time

import pytest

from e2e.cluster.lanes import side_by_side
from e2e.cluster.steps import parts, say, step


def test_parts_are_the_steps_that_ended_well_by_their_begins() -> None:
    with step("before"):
        since = time.monotonic()
    with step("outer"), step("inner"):
        pass
    with pytest.raises(ValueError, match="broken"), step("failed"):
        raise ValueError("broken")
    found = parts(since)
    assert [each.title for each in found] == ["outer", "inner"]
    assert 0 <= found[0].begin_seconds <= found[1].begin_seconds
    assert found[0].seconds >= found[1].seconds >= 0


def test_lines_of_several_threads_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    def speak() -> None:
        for _ in range(200):
            say("word")

    side_by_side(speak, speak, speak)
    assert set(capsys.readouterr().err.split("\n")) == {"word", ""}
