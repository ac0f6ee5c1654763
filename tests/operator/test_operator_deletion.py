"""A cluster, or its whole namespace, is deleted: nothing hangs, nothing is made anew, and volumes stay."""

import asyncio

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    MEMBERS,
    PODS,
    REBALANCES,
    SERVICES,
)
from tests.operator.test_operator import Stage

pytestmark = pytest.mark.control_plane

OWNED = (MEMBERS, PODS, CONFIG_MAPS, SERVICES, BUDGETS, REBALANCES)


async def test_deletion_of_a_cluster_in_a_namespace_that_ends(
    stage: Stage, control_plane: ControlPlane, namespace: str
) -> None:
    await stage.until_converged(3)
    await stage.scale(4)
    await stage.until_converged(4)

    async def planned() -> bool:
        # The table may be balanced before the plan's object is written, once a second.
        return bool(await stage.api.list(REBALANCES, namespace))

    await stage.until("the object of the plan", planned)
    uids = {each["metadata"]["uid"] for each in await stage.api.list(MEMBERS, namespace)}
    uids.add((await stage.cluster())["metadata"]["uid"])
    for kind in OWNED:
        made = [each for each in await stage.api.list(kind, namespace) if "demo" in each["metadata"]["name"]]
        assert made, kind
        for each in made:
            # The garbage collector takes it when its owner goes; nothing has to be done before.
            owners = {owner["uid"] for owner in each["metadata"].get("ownerReferences", [])}
            assert owners & uids, each["metadata"]["name"]
            assert not each["metadata"].get("finalizers"), each["metadata"]["name"]
    volumes = await stage.api.list(CLAIMS, namespace)
    assert len(volumes) == 4
    assert not any(each["metadata"].get("ownerReferences") for each in volumes)

    await asyncio.to_thread(control_plane.kubectl, "delete", "namespace", namespace, "--wait=false")
    await stage.kubelet.kill("demo-1", 0.5)
    pod = await stage.api.get(PODS, namespace, "demo-2")
    await stage.api.delete(PODS, namespace, "demo-2", pod["metadata"]["uid"], grace_seconds=0)

    async def refused() -> bool:
        # A new pod is forbidden there; the operator says so and goes on.
        return "because it is being terminated" in stage.operator.log.read_text(encoding="utf-8")

    await stage.until("the refusal of a new pod", refused)
    cluster = await stage.cluster()
    await stage.api.delete(CLUSTERS, namespace, "demo", cluster["metadata"]["uid"])
    assert await stage.api.find(CLUSTERS, namespace, "demo") is None

    async def left_alone() -> bool:
        return "stopping the loop of TabletCluster" in stage.operator.log.read_text(encoding="utf-8")

    end = asyncio.get_running_loop().time() + 20
    while not await left_alone():
        assert asyncio.get_running_loop().time() < end, stage.operator.log.read_text(encoding="utf-8")[-3000:]
        await asyncio.sleep(0.2)
    assert await stage.api.find(PODS, namespace, "demo-2") is None
    assert len(await stage.api.list(CLAIMS, namespace)) == 4
    assert "Traceback" not in stage.operator.log.read_text(encoding="utf-8")
    assert await stage.operator.end() == 0
