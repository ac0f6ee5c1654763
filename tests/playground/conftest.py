"""Playgrounds in folders with short names: the path of a socket has a limit."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.playground.harness import Ground


@pytest.fixture
def ground() -> Iterator[Ground]:
    top = Path(tempfile.mkdtemp(prefix="stele-"))
    made = Ground(top / "pg")
    yield made
    made.close()
    shutil.rmtree(top)
