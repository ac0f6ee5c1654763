"""A real kube-apiserver, etcd and operator process, and members without data, on loopback addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import aiohttp

from e2e.bench import machine
from e2e.bench.errors import BenchError
from e2e.bench.member_stage import free_ports
from e2e.cluster import control_plane
from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, PODS, REBALANCES, Api, NotFound
from stele.adapters.kubernetes.login import log_in
from stele.errors import Conflict

NAMESPACE = "bench"
NETWORK = "127.78"
WAIT_SECONDS = 240.0
POLL_SECONDS = 0.1
LOG_TAIL_BYTES = 3_000
FINAL_PHASES = ("Done", "Failed", "Superseded")
WITHOUT_SECURITY = {
    "clients": {"tls": "Off", "auth": "Off"},
    "members": {"tls": "Off"},
    "networkPolicy": {"enabled": False},
}


def spec_of(members: int, partitions: int, parallel: int) -> dict[str, Any]:
    """The cluster that is measured: two copies, short waits for a lost member."""
    return {
        "members": members,
        "partitions": partitions,
        "replicas": 2,
        "storage": {"size": "1Gi"},
        "migration": {"engine": "Direct", "maxParallelPerMember": parallel},
        "failureDetection": {"heartbeatSeconds": 1, "leaseSeconds": 3, "rejoinGracePeriodSeconds": 0},
    }


def settings_of(parallel: int) -> dict[str, str | int]:
    """What a result says of the cluster's spec, which is the same for all sizes."""
    found: dict[str, str | int] = {}
    for name, value in spec_of(0, 0, parallel).items():
        parts = value.items() if isinstance(value, dict) else (("", value),)
        found |= {f"spec.{name}.{part}".removesuffix("."): each for part, each in parts}
    return {name: value for name, value in found.items() if name not in ("spec.members", "spec.partitions")}


AnyRig = TypeVar("AnyRig", bound="Rig")


class Rig:
    """One cluster named `bench`, without TLS and AUTH, like its peers.

    All times are seconds of one monotonic clock.
    """

    security: ClassVar[dict[str, Any]] = WITHOUT_SECURITY

    def __init__(self, plane: control_plane.ControlPlane, api: Api, directory: Path) -> None:
        self._plane, self.api, self._directory = plane, api, directory
        self._processes: list[asyncio.subprocess.Process] = []
        self._operator: asyncio.subprocess.Process | None = None
        self._session = aiohttp.ClientSession()
        self._control, self._http = free_ports(2)
        self._hosts: dict[str, str] = {}
        self.log = directory / "operator.log"

    async def start_members(self) -> None:
        command = [sys.executable, "-m", "e2e.bench.light_members", str(self._control)]
        self._processes.append(await asyncio.create_subprocess_exec(*command))
        await self._until("light members", self._members_answer)

    async def _members_answer(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get(f"http://127.0.0.1:{self._control}/"):
                return True
        return False

    async def start_operator(self) -> float:
        """Start a master; the moment at which it was started."""
        env = {
            **os.environ,
            "STELE_MEMBER_IMAGE": "member",
            "STELE_SPARK_IMAGE": "spark",
            "STELE_WATCH_NAMESPACES": NAMESPACE,
            "STELE_HTTP_PORT": str(self._http),
            "STELE_PAGE_PORT": "0",
            "POD_NAMESPACE": NAMESPACE,
            # The same holder takes the lease over at once: its expiry is no part of what is measured.
            "POD_UID": "bench",
        }
        command = [sys.executable, "-m", "stele.master", "--kubeconfig", str(self._plane.kubeconfig)]
        with self.log.open("ab") as log:
            self._operator = await asyncio.create_subprocess_exec(*command, env=env, stdout=log, stderr=log)
        return time.monotonic()

    async def kill_operator(self) -> None:
        assert self._operator is not None
        self._operator.send_signal(signal.SIGKILL)
        await self._operator.wait()

    def operator_usage(self) -> tuple[float, int]:
        """Seconds of processor time, and the most bytes of memory, that the operator used until now."""
        assert self._operator is not None
        pid = self._operator.pid
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert peak is not None
        return machine.cpu_seconds(pid), int(peak[1]) * 1024

    async def apply(self, spec: dict[str, Any]) -> None:
        """Create the cluster, or change its spec, again when the operator wrote in between."""
        spec = {**spec, "security": self.security}
        if await self.api.find(CLUSTERS, NAMESPACE, "bench") is None:
            body = {"apiVersion": "stele.dev/v1alpha1", "kind": "TabletCluster"}
            await self.api.create(CLUSTERS, NAMESPACE, {**body, "metadata": {"name": "bench"}, "spec": spec})
            return
        while True:
            found = await self.api.get(CLUSTERS, NAMESPACE, "bench")
            with contextlib.suppress(Conflict):
                await self.api.replace(CLUSTERS, NAMESPACE, {**found, "spec": spec})
                return

    async def status(self) -> dict[str, Any]:
        found = await self.api.get(CLUSTERS, NAMESPACE, "bench")
        if found.get("status", {}).get("observedGeneration") != found["metadata"]["generation"]:
            return {}
        status: dict[str, Any] = found["status"]
        return status

    async def rebalances(self) -> list[dict[str, Any]]:
        return await self.api.list(REBALANCES, NAMESPACE)

    async def replicas_of(self, name: str) -> int:
        """How many rows name the member."""
        status = (await self.api.get(MEMBERS, NAMESPACE, name))["status"]
        return int(status.get("owned", 0)) + int(status.get("backups", 0))

    async def migrations(self) -> int:
        """How many were made until now, once every plan says that it is over."""
        found: list[dict[str, Any]] = []

        async def over() -> bool:
            nonlocal found
            found = [each.get("status", {}) for each in await self.rebalances()]
            return all(each.get("phase") in FINAL_PHASES for each in found)

        await self._until("the end of every plan", over)
        return sum(each.get("done", {}).get("total", 0) for each in found)

    async def until_status(
        self, what: str, check: Callable[[dict[str, Any]], bool], seconds: float = WAIT_SECONDS
    ) -> dict[str, Any]:
        """Wait until the status says so; the status."""
        last: dict[str, Any] = {}

        async def holds() -> bool:
            nonlocal last
            last = await self.status()
            return bool(last) and check(last)

        await self._until(what, holds, seconds)
        return last

    async def _until(self, what: str, check: Any, seconds: float = WAIT_SECONDS) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if await check():
                return
            await asyncio.sleep(POLL_SECONDS)
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if self.log.exists() else ""
        raise BenchError(f"{what} did not come in {seconds:g} s; the operator's log ends with:\n{tail}")

    async def decisions(self) -> dict[float, int]:
        """How many decisions of this operator took at most so many seconds, by seconds."""
        async with self._session.get(f"http://127.0.0.1:{self._http}/metrics") as answer:
            text = await answer.text()
        found = re.findall(r'^stele_decision_seconds_bucket\{le="([^"]+)"\} (\S+)$', text, re.M)
        return {float(limit): int(float(number)) for limit, number in found}

    async def puts(self) -> int:
        """PUTs of ConfigMaps that the API server has served."""
        text = await asyncio.to_thread(self._plane.kubectl, "get", "--raw", "/metrics")
        pattern = r'^apiserver_request_total\{[^}]*resource="configmaps"[^}]*verb="PUT"[^}]*\} (\S+)$'
        return int(sum(float(each) for each in re.findall(pattern, text, re.M)))

    # -- what a kubelet does

    async def run_pods(self) -> None:
        """Start a light member for each member pod, and let pods go that were deleted; until cancelled."""
        while True:
            listed = await self.api.list(PODS, NAMESPACE, "stele.dev/component=member")
            for pod in listed:
                name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
                if pod["metadata"].get("deletionTimestamp"):
                    with contextlib.suppress(NotFound):
                        await self.api.delete(PODS, NAMESPACE, name, uid, grace_seconds=0)
                elif name not in self._hosts:
                    await self._run_pod(name)
            await asyncio.sleep(POLL_SECONDS)

    async def _run_pod(self, name: str) -> None:
        host = self._hosts[name] = f"{NETWORK}.{len(self._hosts) // 250}.{len(self._hosts) % 250 + 1}"
        await self._tell(f"start/{host}")
        await self._show(name, {"running": {}})

    async def kill_member(self, name: str) -> None:
        """Its process ends and does not come back."""
        await self._tell(f"kill/{self._hosts[name]}")
        await self._show(name, {"terminated": {"exitCode": 137}})

    async def _tell(self, what: str) -> None:
        async with self._session.post(f"http://127.0.0.1:{self._control}/{what}") as answer:
            if answer.status != 200:
                raise BenchError(f"light members answered {answer.status} to {what}: {await answer.text()}")

    async def _show(self, name: str, state: dict[str, Any]) -> None:
        container = {
            "name": "member",
            "image": "x",
            "imageID": "x",
            "ready": "running" in state,
            "restartCount": 0,
            "containerID": f"bench://{name}",
            "state": state,
        }
        status = {"phase": "Running", "podIP": self._hosts[name], "containerStatuses": [container]}
        await self.api.patch_status(PODS, NAMESPACE, name, status)

    async def close(self) -> None:
        await self._session.close()
        for process in (*self._processes, self._operator):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()


@asynccontextmanager
async def rig(kind: type[AnyRig], place: Path | None = None) -> AsyncIterator[AnyRig]:
    """Everything but the operator runs within the block, on folders in `place`, and nothing after it."""
    with (
        tempfile.TemporaryDirectory(prefix="stele-bench-", dir=place, ignore_cleanup_errors=True) as folder,
        control_plane.running(Path(folder)) as plane,
    ):
        plane.install_crds()
        plane.kubectl("create", "namespace", NAMESPACE)
        async with Api(await log_in(str(plane.kubeconfig))) as api:
            made = kind(plane, api, Path(folder))
            kubelet: asyncio.Task[None] | None = None
            try:
                await made.start_members()
                kubelet = asyncio.get_running_loop().create_task(made.run_pods())
                yield made
            finally:
                if kubelet is not None:
                    kubelet.cancel()
                    await asyncio.gather(kubelet, return_exceptions=True)
                await made.close()
