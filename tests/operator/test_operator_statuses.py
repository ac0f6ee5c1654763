"""Statuses on a real API server: who reigned before writes nothing over what a newer master says."""

from datetime import UTC, datetime

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLUSTERS, Api
from stele.core.control.state import State
from stele.core.table.table import PartitionTable
from stele.errors import Stale
from stele.master.cache import Cache
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.settings import Settings
from stele.model import TabletCluster
from tests.operator.test_operator import cluster

pytestmark = pytest.mark.control_plane

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings("member", "spark", (), "", "test")


async def world(api: Api, namespace: str) -> KubernetesClusterObjects:
    """As an operator's process sees the cluster now; nothing tells it of what comes later."""
    cache = Cache(lambda _kind, _stored: None)
    stored = await api.get(CLUSTERS, namespace, "demo")
    cache.put(CLUSTERS, stored)
    found = TabletCluster.read(stored)
    assert isinstance(found, TabletCluster)
    return KubernetesClusterObjects(api, cache, SETTINGS, found, lambda _seconds: NOON)


def leadership(epoch: int) -> State:
    return State(epoch, PartitionTable.empty(8), 1, 0, 0.0)


async def test_a_deposed_master_writes_nothing_over_its_successor_s_status(api: Api, namespace: str) -> None:
    await api.create(CLUSTERS, namespace, cluster("demo", 3))
    old = await world(api, namespace)
    await old.write_status(leadership(4), 0.0)
    new = await world(api, namespace)
    await new.write_status(leadership(5), 0.0)
    said = await api.get(CLUSTERS, namespace, "demo")
    assert said["status"]["epoch"] == 5

    late = leadership(4)
    late.failover.lost = {1}
    for seconds in (1.0, 2.0):
        # At first it has not heard of the other: its write is refused, and that tells it.
        with pytest.raises(Stale, match="epoch 5"):
            await old.write_status(late, seconds)
        assert await api.get(CLUSTERS, namespace, "demo") == said


async def test_a_status_that_users_changed_meanwhile_is_written_with_the_next_report(
    api: Api, namespace: str, control_plane: ControlPlane
) -> None:
    await api.create(CLUSTERS, namespace, cluster("demo", 3))
    master = await world(api, namespace)
    control_plane.kubectl("annotate", "-n", namespace, "tabletcluster", "demo", "by=somebody")
    await master.write_status(leadership(4), 0.0)
    assert (await api.get(CLUSTERS, namespace, "demo"))["status"] == {"observedGeneration": -1}
    await master.write_status(leadership(4), 1.0)
    found = await api.get(CLUSTERS, namespace, "demo")
    assert (found["status"]["epoch"], found["metadata"]["annotations"]["by"]) == (4, "somebody")
