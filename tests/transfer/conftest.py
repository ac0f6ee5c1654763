"""Folders of volumes: of a source, and of a destination."""

from pathlib import Path

import pytest


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The folder of a source."""
    folder = tmp_path / "source"
    (folder / "staging").mkdir(parents=True)
    return folder


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """The `staging` folder of a destination."""
    folder = tmp_path / "destination" / "staging"
    folder.mkdir(parents=True)
    return folder
