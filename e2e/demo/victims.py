"""Kills one process of one pod with SIGKILL, as the kernel would when memory runs out; nothing else.

On nodes that are containers of this machine the process itself is killed, and the kubelet restarts the
container in the same pod on the same volume. On a cluster that the user gave there is no way in: the pod is
deleted by force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.cluster import engine, external
from e2e.demo.errors import DemoError
from e2e.demo.kube import command, kubectl

CONTAINERD_PREFIX = "containerd://"


@dataclass(frozen=True)
class Container:
    """One running container. `identity` changes whenever it is started again."""

    namespace: str
    pod: str
    pod_uid: str
    name: str
    node: str
    identity: str
    ready: bool


def container_of(pod: Mapping[str, Any], name: str) -> Container:
    """The container `name` of a pod as the API server describes it; raises DemoError when it does not run."""
    metadata = pod["metadata"]
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    status = next((each for each in statuses if each["name"] == name), None)
    if status is None or "running" not in (status.get("state") or {}):
        raise DemoError(
            f"The container {name!r} of pod {metadata['name']} does not run: kubectl describe pod says why."
        )
    identity, ready = status.get("containerID", ""), bool(status.get("ready"))
    node = pod["spec"].get("nodeName", "")
    return Container(metadata["namespace"], metadata["name"], metadata["uid"], name, node, identity, ready)


def main_process(listing: str, identity: str) -> int:
    """The process id of a container in what `ctr tasks ls` prints (columns TASK, PID, STATUS)."""
    wanted = identity.removeprefix(CONTAINERD_PREFIX)
    for line in listing.splitlines()[1:]:
        words = line.split()
        if len(words) >= 3 and words[0] == wanted and words[2] == "RUNNING":
            return int(words[1])
    raise DemoError(f"The node has no running process of container {wanted[:12]}.")


async def kill(env: Mapping[str, str], victim: Container) -> str:
    """SIGKILL the container's main process; what was done, in words."""
    if external.given() is not None or not victim.identity.startswith(CONTAINERD_PREFIX):
        words = ("delete", "pod", victim.pod, "--grace-period=0", "--force", "--wait=false")
        await kubectl(env, "--namespace", victim.namespace, *words)
        return f"deleted pod {victim.pod} by force (no way to its process on a cluster that is not ours)"
    used = engine.remembered()
    if used is None:
        raise DemoError("It is not known which engine runs the nodes: python -m e2e.cluster down, then up.")
    inside = (used.program, "exec", victim.node)
    listing = await command(env, *inside, "ctr", "--namespace", "k8s.io", "tasks", "ls")
    process = main_process(listing, victim.identity)
    await command(env, *inside, "kill", "-KILL", str(process))
    return f"SIGKILL to process {process} ({victim.name} of pod {victim.pod}) on {victim.node}"
