"""Our cluster on loopback, in which members join, leave, stop in order and are lost.

Pods are bound to a node, so that Kubernetes lets them end in their time; the kubelet here runs their preStop
hooks, and starts a pod of the same name on the folder that the last one had.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from e2e.bench.copy_join import REPLICAS, moved
from e2e.bench.copy_rig import MemberRig, Process, is_spread, is_whole, time_of_kubelet
from e2e.bench.errors import BenchError
from e2e.bench.master_rig import NAMESPACE, POLL_SECONDS
from e2e.bench.seed_cases import EVENT_SECONDS_MAX, FEW, MANY, Event, Measured, Series
from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import NODES, PODS, Api, Kind, NotFound

CLUSTER_PORT, METRICS_PORT = 6380, 7004
NODE = "bench"
BINDINGS = Kind("v1", "bindings", "Binding")
END_SECONDS_MAX = 60.0
"""How long a process may take to end after SIGTERM."""


def spec_of(series: Series, members: int, *, grace_seconds: int | None = None) -> dict[str, Any]:
    """What is asked for; everything else is as a user gets it."""
    spec: dict[str, Any] = {
        "members": members,
        "partitions": series.partitions,
        "replicas": REPLICAS,
        "storage": {"size": "8Gi"},
        "migration": {"engine": "Direct", "maxParallelPerMember": series.parallel},
    }
    if grace_seconds is not None:
        spec["failureDetection"] = {"rejoinGracePeriodSeconds": grace_seconds}
    return spec


class SeedRig(MemberRig):
    """The cluster of one series. Moments are seconds of the monotonic clock."""

    def __init__(self, plane: ControlPlane, api: Api, directory: Path) -> None:
        super().__init__(plane, api, directory)
        self.series: Series
        self._uids: dict[str, str] = {}
        self._lost: set[str] = set()
        self._ended: dict[str, float] = {}
        """When the processes of a pod had ended that was deleted, by its UID."""

    async def form(self, series: Series) -> None:
        """Start the operator and so many members; they are safe afterwards."""
        self.series = series
        await self.start_operator()
        await self.apply(spec_of(series, MANY))
        await self._until_safe(MANY)

    # -- events

    async def happen(self, event: Event) -> Measured:
        """Let it happen, and wait until all is safe again; raises BenchError when that takes too long."""
        acts: dict[Event, Callable[[], Awaitable[tuple[float, float, float | None]]]] = {
            Event.SCALE_DOWN: self._scale_down,
            Event.SCALE_UP: self._scale_up,
            Event.SHUTDOWN: self._shut_down,
            Event.LOSS: self._lose,
        }
        before = [row.replicas for row in await self.rows(self.series.partitions)]
        begin, safe, member_seconds = await acts[event]()
        after = [row.replicas for row in await self.rows(self.series.partitions)]
        return Measured(begin, safe, moved(before, after), member_seconds)

    async def _scale_down(self) -> tuple[float, float, float | None]:
        begin, uids = time.monotonic(), {self._uids[name] for name in self._pods}
        await self.apply(spec_of(self.series, FEW))
        # The pod of a member that holds nothing any more takes its time to end.
        ended, safe = await asyncio.gather(self._until_ended(uids), self._until_safe(FEW))
        return begin, safe, ended - begin

    async def _scale_up(self) -> tuple[float, float, float | None]:
        await self.apply(spec_of(self.series, MANY))
        known = await self.until_joined()
        return known, await self._until_safe(MANY), None

    async def _shut_down(self) -> tuple[float, float, float | None]:
        """A member stops in order, and comes back on its volume."""
        name = min(self._pods)
        begin, uid = time.monotonic(), self._uids[name]
        await self.api.delete(PODS, NAMESPACE, name, uid)
        ended = await self._until_ended({uid})
        await self._until("the stopped member's next process", lambda: self._serves_again(name, uid))
        return begin, await self._until_safe(MANY), ended - begin

    async def _serves_again(self, name: str, uid: str) -> bool:
        if self._uids[name] == uid:
            return False
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get(f"http://{self._hosts[name]}:{METRICS_PORT}/readyz") as answer:
                return answer.status == 200
        return False

    async def _lose(self) -> tuple[float, float, float | None]:
        """A member's processes end for good; the master need not wait for it to come back."""
        name = max(self._pods)
        await self.apply(spec_of(self.series, MANY, grace_seconds=0))
        await self.until_whole(MANY)
        self._lost.add(name)
        begin = time.monotonic()
        for process in self._pods.pop(name):
            process.kill()
            await process.wait()
        state = {"exitCode": 137, "startedAt": time_of_kubelet(), "finishedAt": time_of_kubelet()}
        await self._show(name, {"terminated": state})
        return begin, await self._until_safe(FEW), None

    async def _until_ended(self, uids: set[str]) -> float:
        """The moment at which the processes of one of these pods had ended."""
        end = time.monotonic() + EVENT_SECONDS_MAX
        while not (found := [self._ended[uid] for uid in uids if uid in self._ended]):
            if time.monotonic() > end:
                raise BenchError(f"no member ended in {EVENT_SECONDS_MAX:g} s")
            await asyncio.sleep(POLL_SECONDS)
        return found[0]

    async def _until_safe(self, members: int) -> float:
        """The moment at which the status said that nothing moves, with the table spread over the members."""

        async def safe() -> bool:
            self._check_processes()
            status = await self.status()
            if not status or not is_whole(status, members):
                return False
            return is_spread(await self.rows(self.series.partitions), members, REPLICAS)

        await self._until(f"{members} members, all safe", safe, EVENT_SECONDS_MAX)
        return time.monotonic()

    def _check_processes(self) -> None:
        """Raise BenchError when a process has ended that nobody asked to: nothing starts it again here."""
        for name, processes in self._pods.items():
            if any(each.returncode is not None for each in processes):
                raise BenchError(f"a process of {name} has ended by itself: see its log")

    # -- what a kubelet does

    async def run_pods(self) -> None:
        """Start pods, and end those that are deleted, in order; until cancelled."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        await self.api.create(NODES, "", node)
        ending: set[str] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                for pod in await self.api.list(PODS, NAMESPACE, "stele.dev/component=member"):
                    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
                    if pod["metadata"].get("deletionTimestamp") and uid not in ending:
                        ending.add(uid)
                        group.create_task(self._end_pod(pod))
                    elif uid not in ending and self._uids.get(name) != uid and name not in self._lost:
                        await self._bind(name)
                        await self._run_pod(name)
                        self._uids[name] = uid
                await asyncio.sleep(POLL_SECONDS)

    async def _bind(self, name: str) -> None:
        """Kubernetes removes a pod without a node as soon as it is deleted."""
        target = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
        await self.api.create(BINDINGS, NAMESPACE, {"apiVersion": "v1", "kind": "Binding", **target})

    async def _end_pod(self, pod: dict[str, Any]) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        processes = self._pods.pop(name, [])
        if processes:
            await self._run_hooks(pod)
        await asyncio.gather(*map(_stop, processes))
        self._ended[uid] = time.monotonic()
        with contextlib.suppress(NotFound):
            await self.api.delete(PODS, NAMESPACE, name, uid, grace_seconds=0)

    async def _run_hooks(self, pod: dict[str, Any]) -> None:
        for container in pod["spec"]["containers"]:
            if hook := container.get("lifecycle"):
                command: Sequence[str] = hook["preStop"]["exec"]["command"]
                await (await self._start(pod, container, command)).wait()

    # -- what is measured

    def cluster_hosts(self) -> list[str]:
        """HOST:PORT of the members that run, for clients that know who owns what."""
        return [f"{self._hosts[name]}:{CLUSTER_PORT}" for name in self._pods]

    def pids(self) -> list[int]:
        """The processes of all members that run, transfer processes included."""
        running = [each for pod in list(self._pods.values()) for each in pod]
        return [each.pid for each in running if each.returncode is None]


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS_MAX)
    except TimeoutError:
        process.kill()
        await process.wait()
