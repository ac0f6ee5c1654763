"""A port for each member: a Service of a port on every node that leads to this member alone, ready or not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.demo.errors import DemoError
from e2e.demo.kube import Api, kubectl
from e2e.demo.resp import Endpoint
from e2e.demo.settings import Settings
from e2e.demo.stage import CLUSTER_LABEL

PORT_LABEL = "stele.dev/storm-port"
MEMBER_LABEL = "stele.dev/member"


def manifest(settings: Settings, members: int) -> dict[str, Any]:
    """The Services of so many members."""
    names = [f"{settings.cluster}-{number}" for number in range(members)]
    return {"apiVersion": "v1", "kind": "List", "items": [_service(settings.cluster, name) for name in names]}


def _service(cluster: str, member: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{member}-port", "labels": {PORT_LABEL: member}},
        "spec": {
            "type": "NodePort",
            "selector": {CLUSTER_LABEL: cluster, MEMBER_LABEL: member},
            # A member that is stopping or not ready has to answer rightly too, when it answers.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "resp", "port": 6379, "targetPort": "resp"}],
        },
    }


async def make(
    env: Mapping[str, str], api: Api, settings: Settings, endpoint: Endpoint, folder: Path, *, members: int
) -> dict[str, Endpoint]:
    """Make the Services; the endpoint of each, by the member's name. `endpoint` is that of all members."""
    path = folder / "member-ports.json"
    path.write_text(json.dumps(manifest(settings, members)), encoding="utf-8")
    await kubectl(env, "--namespace", settings.namespace, "apply", "--filename", str(path))
    services = await api.list(f"/api/v1/namespaces/{settings.namespace}/services?labelSelector={PORT_LABEL}")
    address = await _node_address(api)
    return {
        each["metadata"]["labels"][PORT_LABEL]: endpoint.at(address, each["spec"]["ports"][0]["nodePort"])
        for each in services
    }


async def _node_address(api: Api) -> str:
    """Of a node that no member is on: what comes in there is not hit by what is cut between members."""
    for node in await api.list("/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fcontrol-plane"):
        for each in node["status"]["addresses"]:
            if each["type"] == "InternalIP":
                return str(each["address"])
    raise DemoError("The cluster has no node with the label node-role.kubernetes.io/control-plane.")
