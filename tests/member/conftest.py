"""Gives the tests of this folder a simulated cluster without trouble, and folders of volumes."""

from pathlib import Path

import pytest

from tests.member.test_simulation import Sim, shrink


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Sim:
    """A deterministic cluster that serves, with small logs and no trouble; member 3 holds nothing."""
    shrink(monkeypatch.setattr)
    sim = Sim(0)
    sim.loop.run(3)
    return sim


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The folder of a source."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "staging").mkdir()
    return folder


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """The `staging` folder of a destination."""
    folder = tmp_path / "destination" / "staging"
    folder.mkdir(parents=True)
    return folder
