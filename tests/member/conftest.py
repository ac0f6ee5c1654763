"""Gives the tests of this folder a cluster in virtual time that serves, without trouble."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.quiet_cluster import QuietCluster, small_logs


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuietCluster]:
    """Members 0, 1 and 2 have the partition, 3 has nothing; logs are small."""
    small_logs(monkeypatch)
    made = QuietCluster(tmp_path, 4)
    made.store(0, 1, 2)
    made.run(2.0)
    yield made
    made.close()
