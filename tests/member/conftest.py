"""Gives the tests of this folder a simulated cluster without trouble."""

import pytest

from tests.member.test_simulation import Sim, shrink


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Sim:
    """A deterministic cluster that serves, with small logs and no trouble; member 3 holds nothing."""
    shrink(monkeypatch.setattr)
    sim = Sim(0)
    sim.loop.run(3)
    return sim
