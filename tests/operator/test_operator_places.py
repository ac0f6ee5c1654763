"""Zones from the labels of real Node objects: copies of a partition end up in different ones."""

import json
from pathlib import Path

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import MEMBERS, NODES, PODS
from tests.operator.test_operator import Stage

pytestmark = pytest.mark.control_plane

KEY = "topology.kubernetes.io/zone"


async def zones(stage: Stage) -> dict[int, str]:
    found = await stage.api.list(MEMBERS, stage.namespace)
    places = {each["spec"]["index"]: (each.get("status") or {}).get("zone") for each in found}
    return {index: zone[0] for index, zone in places.items() if zone}


async def test_copies_are_kept_apart_by_the_zones_of_nodes(
    stage: Stage, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    await stage.scale(4)
    await stage.until_converged(4)
    for index, pod in enumerate(await stage.api.list(PODS, namespace, "stele.dev/component=member")):
        name = f"{namespace}-node-{index}"
        node = {"metadata": {"name": name, "labels": {KEY: "ab"[index // 2]}}}
        await stage.api.create(NODES, "", {"apiVersion": "v1", "kind": "Node", **node})
        bound = tmp_path / f"binding-{index}.json"
        target = {"apiVersion": "v1", "kind": "Node", "name": name}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
        bound.write_text(json.dumps(binding | {"target": target}))
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/binding"
        control_plane.kubectl("create", "--raw", path, "-f", str(bound))
    # A pod that is restarted for its affinity would lose its node: nothing schedules here.
    await stage.change_spec(placement={"topologyKeys": [KEY]}, updateStrategy={"type": "OnDelete"})

    async def apart() -> bool:
        found = await zones(stage)
        rows = (await stage.rows()).rows
        return len(found) == 4 and all({found[index] for index in row.members} == {"a", "b"} for row in rows)

    await stage.until("copies in different zones", apart)
    conditions = (await stage.cluster())["status"]["conditions"]
    known = next(each for each in conditions if each["type"] == "TopologyKnown")
    assert (known["status"], known["reason"]) == ("True", "AsDesired")
