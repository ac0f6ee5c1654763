"""Nodes that are lost, as Node objects of a real API server; members are fakes."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLAIMS, MEMBERS, NODES, PODS, NotFound
from tests.operator.test_operator import Stage

pytestmark = pytest.mark.control_plane

LOST = "demo-2"


async def bind(stage: Stage, control_plane: ControlPlane, path: Path) -> str:
    """Give the member's pod a node of its own; return its name once the operator has noted it."""
    name = f"{stage.namespace}-node"
    await stage.api.create(NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    target = {"apiVersion": "v1", "kind": "Node", "name": name}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": LOST}, "target": target}
    path.write_text(json.dumps(binding))
    raw = f"/api/v1/namespaces/{stage.namespace}/pods/{LOST}/binding"
    control_plane.kubectl("create", "--raw", raw, "-f", str(path))

    async def noted() -> bool:
        member = await stage.api.get(MEMBERS, stage.namespace, LOST)
        return bool(member["status"].get("node") == name)

    await stage.until("the node of the member", noted)
    return name


async def uid(stage: Stage) -> str:
    return str((await stage.api.get(PODS, stage.namespace, LOST))["metadata"]["uid"])


async def test_a_member_with_a_local_volume_is_replaced_when_its_node_is_gone(
    stage: Stage, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await stage.until_converged(3)
    node = await bind(stage, control_plane, tmp_path / "binding.json")
    before = await uid(stage)
    await stage.kubelet.lose_node(LOST, volume=True)
    await stage.api.delete(NODES, "", node, None)

    async def another_pod() -> bool:
        try:
            return await uid(stage) != before
        except NotFound:
            return False

    await stage.until("another pod", another_pod)

    async def replaced() -> bool:
        return {each["spec"]["index"] for each in await stage.api.list(MEMBERS, stage.namespace)} == {0, 1, 3}

    await stage.until("another member", replaced)
    await stage.until_converged(3)
    assert (await stage.api.get(CLAIMS, stage.namespace, LOST))["metadata"].get("deletionTimestamp") is None


async def test_a_pod_on_a_node_out_of_service_is_deleted_and_its_volume_kept(
    stage: Stage, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await stage.until_converged(3)
    node = await bind(stage, control_plane, tmp_path / "binding.json")
    before = await uid(stage)
    await stage.kubelet.lose_node(LOST, volume=False)
    await stage.api.delete(PODS, stage.namespace, LOST, before)
    stored: dict[str, Any] = await stage.api.get(NODES, "", node)
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    await stage.api.replace(NODES, "", {**stored, "spec": {**stored["spec"], "taints": [taint]}})

    async def back() -> bool:
        try:
            return await uid(stage) != before and await stage.ready(3)
        except NotFound:
            return False

    await stage.until("the same member in another pod", back)
    assert {each["spec"]["index"] for each in await stage.api.list(MEMBERS, stage.namespace)} == {0, 1, 2}


async def test_a_user_replaces_a_member_that_serves(stage: Stage) -> None:
    await stage.until_converged(3)
    assert "is being replaced" in await stage.stele("replace", LOST)

    async def replaced() -> bool:
        return {each["spec"]["index"] for each in await stage.api.list(MEMBERS, stage.namespace)} == {0, 1, 3}

    await stage.until("another member", replaced)
    await stage.until_converged(3)
