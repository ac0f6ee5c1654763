"""A kubelet for tests that runs the containers of member Pods as processes, as their manifest says.

Pods get addresses 127.78.x.y and the ports of the manifest; a claim is a folder.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from stele.adapters.kubernetes.api import PODS, Api, NotFound

POLL_SECONDS = 0.1

COMMANDS = {
    "stele-member": "from stele.member.__main__ import main; raise SystemExit(main([]))",
    "stele-transfer": "from stele.member.transfer_main import main; raise SystemExit(main())",
}

_networks = itertools.count(os.getpid() % 200)

Process = asyncio.subprocess.Process


class RealKubelet:
    """Runs the members of one namespace, until closed. `commands`: Python text by a container's command."""

    commands = COMMANDS

    def __init__(self, api: Api, namespace: str, directory: Path) -> None:
        self._api, self._namespace, self._directory = api, namespace, directory
        self.addresses: dict[str, str] = {}
        self._processes: dict[str, dict[str, Process]] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._restarts: dict[str, int] = {}
        self._network = next(_networks)
        self._hosts = itertools.count(1)
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "RealKubelet":
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for name in list(self._processes):
            await self._end(name, signal.SIGKILL)

    async def _run(self) -> None:
        while True:
            async with self._lock:
                await self._sync()
            await asyncio.sleep(POLL_SECONDS)

    async def _sync(self) -> None:
        listed = await self._api.list(PODS, self._namespace, "stele.dev/component=member")
        found = {each["metadata"]["name"]: each for each in listed}
        for name in [name for name in self._pods if name not in found]:
            await self._end(name, signal.SIGKILL)
        for name, pod in found.items():
            known = self._pods.get(name)
            if pod["metadata"].get("deletionTimestamp"):
                await self._end(name, signal.SIGTERM)
                with contextlib.suppress(NotFound):
                    await self._api.delete(PODS, self._namespace, name, pod["metadata"]["uid"], 0)
            elif known is None or known["metadata"]["uid"] != pod["metadata"]["uid"]:
                await self._end(name, signal.SIGKILL)
                await self._start_pod(name, pod)

    async def _start_pod(self, name: str, pod: dict[str, Any]) -> None:
        self.addresses[name] = f"127.78.{self._network}.{next(self._hosts)}"
        self._pods[name], self._processes[name] = pod, {}
        for container in pod["spec"]["containers"]:
            await self._start(name, container)
        await self._status(name, {"running": {}})

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        folder = self._directory / name
        folder.mkdir(exist_ok=True)
        given = {each["name"]: each.get("value", "") for each in container["env"]}
        with (self._directory / f"{name}-{container['name']}.log").open("ab") as log:
            self._processes[name][container["name"]] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                self.commands[container["command"][0]],
                env={**os.environ, **given, **self._environment(name, container)},
                stdout=log,
                stderr=log,
            )

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        """What the container gets beside its manifest."""
        return {"STELE_DATA_DIR": str(self._directory / name), "STELE_BIND": self.addresses[name]}

    async def _status(self, name: str, state: dict[str, Any]) -> None:
        restarts = self._restarts.setdefault(name, 0)
        container = {
            "name": "member",
            "image": "x",
            "imageID": "x",
            "ready": "running" in state,
            "restartCount": restarts,
            "containerID": f"test://{name}-{restarts}",
            "state": state,
        }
        status = {"phase": "Running", "podIP": self.addresses[name], "containerStatuses": [container]}
        await self._api.patch_status(PODS, self._namespace, name, status)

    async def _end(self, name: str, number: int) -> None:
        self._pods.pop(name, None)
        for process in self._processes.pop(name, {}).values():
            if process.returncode is None:
                process.send_signal(number)
            await process.wait()

    async def kill(self, name: str, back_after_seconds: float, container: str = "member") -> None:
        """SIGKILL of the pod's container; it is started again on the same pod, address and volume."""
        await self.crash(name, container)
        await asyncio.sleep(back_after_seconds)
        await self.revive(name, container)

    async def crash(self, name: str, container: str = "member") -> None:
        """SIGKILL of the pod's container, which is not started again by itself."""
        process = self._processes[name][container]
        if process.returncode is None:
            process.kill()
        await process.wait()
        if container == "member":
            await self._status(name, {"terminated": {"exitCode": 137}})

    async def revive(self, name: str, container: str = "member") -> None:
        """Start the container again, on the same pod, address and volume."""
        containers = self._pods[name]["spec"]["containers"]
        await self._start(name, next(each for each in containers if each["name"] == container))
        if container == "member":
            self._restarts[name] += 1
            await self._status(name, {"running": {}})
