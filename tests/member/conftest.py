"""Members for the tests of this folder: one alone in this process, or several in virtual time."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.member.harness.cluster import Cluster, cluster
from tests.member.harness.single_member import SingleMember, single_member
from tests.simulation.quiet_cluster import QuietCluster, small_logs


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[SingleMember]:
    """One member that has nothing yet; the test plays the others."""
    async with single_member(tmp_path) as made:
        yield made


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A process that owns all partitions alone."""
    async with cluster(tmp_path, 1, replicas=1) as made:
        yield made


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two processes that own the partitions in turn; each backs the other up."""
    async with cluster(tmp_path, 2) as made:
        yield made


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three processes, two replicas of each partition."""
    async with cluster(tmp_path, 3) as made:
        yield made


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuietCluster]:
    """Members 0, 1 and 2 have the partition, 3 has nothing; logs are small."""
    small_logs(monkeypatch)
    made = QuietCluster(tmp_path, 4)
    made.store(0, 1, 2)
    made.run(2.0)
    yield made
    made.close()
