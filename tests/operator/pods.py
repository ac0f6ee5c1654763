"""What kubelets of tests have in common: they look for member Pods again and again, and say how those are."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Self

from stele.adapters.kubernetes.api import PODS, Api, NotFound

POLL_SECONDS = 0.1


class PodWatch(ABC):
    """Follows the member Pods of one namespace, until closed. `pods`: those that run, by name.

    `cannot_start` gives the status of a Pod that cannot start, None of one that can.
    """

    cannot_start: Callable[[dict[str, Any]], dict[str, Any] | None] = staticmethod(lambda pod: None)

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._pods: dict[str, dict[str, Any]] = {}
        self._restarts: dict[str, int] = {}
        self._began: dict[str, datetime] = {}
        self._lost: set[str] = set()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _start_pod(self, name: str, pod: dict[str, Any]) -> None:
        """Run what the Pod says."""

    @abstractmethod
    async def _end(self, name: str, *, politely: bool = False) -> None:
        """End what runs of the Pod, if anything does."""

    async def lose_node(self, name: str, *, volume: bool) -> None:
        """The node of a pod is lost: its process ends, and nobody says so or ends the pod.

        With `volume` its next pods cannot run either, because only that node has it.
        """
        async with self._lock:
            self._lost.add(name if volume else self._pods[name]["metadata"]["uid"])
            await self._end(name)

    @abstractmethod
    def _address(self, name: str) -> str: ...

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for name in list(self._pods):
            await self._forget(name)

    async def _run(self) -> None:
        while True:
            async with self._lock:
                await self._sync()
            await asyncio.sleep(POLL_SECONDS)

    async def _sync(self) -> None:
        """Start what is new, end what is gone."""
        listed = await self._api.list(PODS, self._namespace, "stele.dev/component=member")
        found = {each["metadata"]["name"]: each for each in listed}
        for name in [name for name in self._pods if name not in found]:
            await self._forget(name)
        for name, pod in found.items():
            known, uid = self._pods.get(name), pod["metadata"]["uid"]
            if self._lost & {name, uid}:
                continue
            if pod["metadata"].get("deletionTimestamp"):
                await self._forget(name, politely=True)
                with contextlib.suppress(NotFound):
                    await self._api.delete(PODS, self._namespace, name, uid, grace_seconds=0)
            elif known is None or known["metadata"]["uid"] != uid:
                await self._forget(name)
                self._pods[name] = pod
                self._began[name] = datetime.now(UTC)
                if status := self.cannot_start(pod):
                    await self._api.patch_status(PODS, self._namespace, name, status)
                    continue
                await self._start_pod(name, pod)
                await self._status(name, {"running": {}})

    async def _forget(self, name: str, *, politely: bool = False) -> None:
        self._pods.pop(name, None)
        await self._end(name, politely=politely)

    async def _status(self, name: str, state: dict[str, Any]) -> None:
        restarts = self._restarts.setdefault(name, 0)
        what = next(iter(state))
        times = {"startedAt": _second(self._began[name])}
        if what == "terminated":
            times["finishedAt"] = _second(datetime.now(UTC))
        container = {
            "name": "member",
            "image": "x",
            "imageID": "x",
            "ready": "running" in state,
            "restartCount": restarts,
            "containerID": f"test://{name}-{restarts}",
            "state": {what: {**state[what], **times}},
        }
        status = {"phase": "Running", "podIP": self._address(name), "containerStatuses": [container]}
        # Of a Pod that is gone already the next look ends what runs.
        with contextlib.suppress(NotFound):
            await self._api.patch_status(PODS, self._namespace, name, status)


def _second(time: datetime) -> str:
    """As the kubelet writes times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
