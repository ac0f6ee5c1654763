"""Kills one process of one pod with SIGKILL, as the kernel would when memory runs out; nothing else.

On nodes that are containers of this machine the process itself is killed, and the kubelet restarts the
container in the same pod on the same volume. On a cluster that the user gave there is no way in: the pod is
deleted by force.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import external
from e2e.demo.errors import DemoError
from e2e.demo.kube import kubectl

CONTAINERD_PREFIX = "containerd://"
PROCESSES = Path("/proc")


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


def runs(pod: Mapping[str, Any], name: str) -> bool:
    """Whether the container `name` of a pod runs, as the API server describes it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(each["name"] == name and "running" in (each.get("state") or {}) for each in statuses)


def main_process(identity: str, processes: Path = PROCESSES) -> int:
    """The main process of a container, by its number on this machine.

    It belongs to the container's control group, and is the first in its own namespace of processes.
    """
    wanted = identity.removeprefix(CONTAINERD_PREFIX)
    for folder in processes.glob("[0-9]*"):
        with suppress(OSError):  # Processes end while we look.
            if wanted in (folder / "cgroup").read_text() and _is_first((folder / "status").read_text()):
                return int(folder.name)
    raise DemoError(f"This machine has no running process of container {wanted[:12]}.")


def _is_first(status: str) -> bool:
    """Whether `/proc/PID/status` is of a process that has number 1 in its namespace."""
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return numbers[-1:] == ["1"]


def kubelet_of(node: int, processes: Path = PROCESSES) -> int:
    """The kubelet of a node, by its number on this machine; `node` is that of any process of the node."""
    space = (processes / str(node) / "ns" / "pid").readlink()
    for folder in processes.glob("[0-9]*"):
        with suppress(OSError):  # Processes end while we look.
            if (folder / "comm").read_text() == "kubelet\n" and (folder / "ns" / "pid").readlink() == space:
                return int(folder.name)
    raise DemoError(f"The node of process {node} has no kubelet.")


def send(process: int, number: signal.Signals) -> None:
    """Send a signal; raises DemoError when the process has ended."""
    try:
        os.kill(process, number)
    except ProcessLookupError as error:
        raise DemoError(f"Process {process} has ended.") from error


async def until_ended(process: int) -> None:
    """Wait until a process of this machine has ended; at once when it has."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def kill(env: Mapping[str, str], victim: Container) -> str:
    """SIGKILL the container's main process; what was done, in words."""
    if external.given() is not None or not victim.identity.startswith(CONTAINERD_PREFIX):
        words = ("delete", "pod", victim.pod, "--grace-period=0", "--force", "--wait=false")
        await kubectl(env, "--namespace", victim.namespace, *words)
        return f"deleted pod {victim.pod} by force (no way to its process on a cluster that is not ours)"
    process = main_process(victim.identity)
    send(process, signal.SIGKILL)
    return f"SIGKILL to process {process} ({victim.name} of pod {victim.pod}) on {victim.node}"
