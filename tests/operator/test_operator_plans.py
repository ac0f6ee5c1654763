"""Plans that users make, against a real API server: each says in its condition Ready how it stands."""

from datetime import UTC, datetime

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLUSTERS, REBALANCES, Api
from stele.adapters.kubernetes.login import log_in
from stele.core.membership import Timing
from stele.core.reign import State, Wishes
from stele.core.table import PartitionTable
from stele.master import facts
from stele.master.cache import Cache
from stele.master.plans import show_orphans, show_plans
from stele.model import TabletCluster, TabletRebalance
from stele.model.conditions import find_condition

pytestmark = pytest.mark.control_plane

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


async def create(api: Api, cache: Cache, namespace: str, name: str, mode: str) -> None:
    body = {
        "apiVersion": "stele.dev/v1alpha1",
        "kind": "TabletRebalance",
        "metadata": {"name": name},
        "spec": {"cluster": "demo", "mode": mode},
    }
    cache.put(REBALANCES, await api.create(REBALANCES, namespace, body))


async def ready(api: Api, namespace: str, name: str) -> tuple[str, str, str]:
    found = TabletRebalance.read(await api.get(REBALANCES, namespace, name))
    assert isinstance(found, TabletRebalance)
    condition = find_condition(found.status.conditions, "Ready")
    assert condition is not None
    assert found.status.observed_generation == condition.observed_generation == found.metadata.generation
    return str(found.status.phase), condition.status.value, condition.reason


async def test_a_plan_waits_for_its_cluster_and_is_answered_when_that_is_there(
    control_plane: ControlPlane, namespace: str
) -> None:
    cache = Cache(lambda _kind, _stored: None)
    async with Api(await log_in(str(control_plane.kubeconfig))) as api:
        await create(api, cache, namespace, "look", "DryRun")
        await create(api, cache, namespace, "run", "Execute")
        await show_orphans(api, cache, NOON)
        for name in ("look", "run"):
            assert await ready(api, namespace, name) == ("Pending", "False", "ClusterNotFound")

        spec = {"members": 3, "storage": {"size": "1Gi"}}
        body = {"apiVersion": "stele.dev/v1alpha1", "kind": "TabletCluster", "spec": spec}
        made = await api.create(CLUSTERS, namespace, body | {"metadata": {"name": "demo"}})
        cache.put(CLUSTERS, made)
        found = TabletCluster.read(made)
        assert isinstance(found, TabletCluster)
        state = State(1, PartitionTable.empty(8), 1, 0, 0.0)
        view = facts.View(state, Wishes(3, 2, Timing(1.0, 3.0, 30.0)), 0.0, NOON)
        await show_plans(api, cache, found, view)
        await show_orphans(api, cache, NOON)
        assert await ready(api, namespace, "look") == ("Proposed", "True", "AsDesired")
        assert await ready(api, namespace, "run") == ("Failed", "False", "MigrationFailed")
        waited = control_plane.kubectl(
            "wait", "--for=condition=Ready", "tabletrebalance/look", "-n", namespace, "--timeout=5s"
        )
        assert "condition met" in waited
