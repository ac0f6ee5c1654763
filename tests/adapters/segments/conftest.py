"""A new log with small limits, on a disk that needs no time to sync."""

from pathlib import Path

import pytest

from stele.adapters.segments.log import SegmentedLog
from tests.adapters.segments.workload import small_limits, without_waiting


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a log without operations."""
    without_waiting(monkeypatch)
    small_limits(monkeypatch)
    SegmentedLog.copy([], tmp_path / "log")
    return tmp_path / "log"
