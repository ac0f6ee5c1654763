"""What does not belong into `staging/` and `checkpoints/` is swept, and stops no sweep."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stele.member import limits
from stele.member.copy.fetches import Fetches, remove_session

AGE_SECONDS = limits.STAGING_AGE_SECONDS + 1


@pytest.fixture
def stray(tmp_path: Path) -> Path:
    """It holds a plain file, a link to nowhere, a link to a folder with data, and a folder in a folder."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "data").write_bytes(b"data")
    folder = tmp_path / "staging"
    folder.mkdir()
    (folder / "file").write_bytes(b"what is it")
    (folder / "nowhere").symlink_to(tmp_path / "gone")
    (folder / "link").symlink_to(tmp_path / "kept")
    (folder / "deep" / "deeper").mkdir(parents=True)
    return folder


def test_all_of_it_is_removed_and_nothing_that_it_points_to(stray: Path) -> None:
    for path in list(stray.iterdir()):
        remove_session(path)
    assert list(stray.iterdir()) == []
    assert (stray.parent / "kept" / "data").read_bytes() == b"data"


def test_a_sweep_of_old_staging_folders_meets_it(stray: Path) -> None:
    now = os.stat(stray).st_mtime
    anything: Any = SimpleNamespace()
    volume: Any = SimpleNamespace(path=lambda _: stray)
    background: Any = SimpleNamespace(wall=lambda: now)
    fetches = Fetches(anything, volume, anything, anything, background)
    assert fetches._look(frozenset()) == ("deep", "file", "link", "nowhere")
    background.wall = lambda: now + AGE_SECONDS
    assert fetches._look(frozenset()) == ()
    assert list(stray.iterdir()) == []
