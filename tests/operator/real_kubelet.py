"""A kubelet for tests that runs the containers of member Pods as processes, as their manifest says.

Pods get addresses 127.x.y.z and the ports of the manifest; a claim is a folder.
"""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from stele.adapters.kubernetes.api import NODES, Api, Kind
from tests.member.harness.forked import Forked, fork_server
from tests.operator.pods import PodWatch
from tests.worker import networks

MODULES = {"stele-member": "stele.member.__main__", "stele-transfer": "stele.transfer.__main__"}
COMMANDS = {
    program: f"from {module} import main; raise SystemExit(main())" for program, module in MODULES.items()
}

BINDINGS = Kind("v1", "bindings", "Binding")
NODE = "node"

_networks = networks(78)

Process = Forked | asyncio.subprocess.Process


class RealKubelet(PodWatch):
    """Runs the members of one namespace, until closed. `commands`: Python text by a container's command.

    With `hooks`, a pod that is deleted runs its preStop hooks, for as long as they take; its address is
    `terminating` before.
    """

    commands = COMMANDS
    hooks = False

    def __init__(self, api: Api, namespace: str, directory: Path) -> None:
        super().__init__(api, namespace)
        self._directory = directory
        self.addresses: dict[str, str] = {}
        self.terminating: set[str] = set()
        self._hooks: dict[str, Callable[[], Awaitable[Process]]] = {}
        self._processes: dict[str, dict[str, Process]] = {}
        self._network = next(_networks)
        self._hosts = itertools.count(1)

    def folder(self, name: str) -> Path:
        """The volume of a pod."""
        return self._directory / name

    async def _start_pod(self, name: str, pod: dict[str, Any]) -> None:
        if self.hooks:
            await self._bind(name)
        self.addresses[name] = f"{self._network}.{next(self._hosts)}"
        self._processes[name] = {}
        for container in pod["spec"]["containers"]:
            await self._start(name, container)

    async def _bind(self, name: str) -> None:
        """A Pod without a node would be gone as soon as it is deleted; one on a lost node is replaced."""
        if await self._api.find(NODES, "", NODE) is None:
            await self._api.create(
                NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            )
        body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
        await self._api.create(BINDINGS, self._namespace, {"apiVersion": "v1", "kind": "Binding", **body})

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        folder = self._directory / name
        folder.mkdir(exist_ok=True)
        given = {each["name"]: each.get("value", "") for each in container["env"]}
        given["STELE_POD_UID"] = self._pods[name]["metadata"]["uid"]
        env = {**os.environ, **given, **self._environment(name, container)}
        log = self._directory / f"{name}-{container['name']}.log"
        self._processes[name][container["name"]] = await self._run_command(container["command"], env, log)
        if hook := container.get("lifecycle"):
            self._hooks[name] = partial(self._run_command, hook["preStop"]["exec"]["command"], env, log)

    async def _run_command(self, command: list[str], env: dict[str, str], log: Path) -> Process:
        program, *words = command
        if self.commands[program] == COMMANDS[program]:
            return fork_server().fork(MODULES[program], env, log, *words)
        with log.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-c", self.commands[program], *words, env=env, stdout=out, stderr=out
            )

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        """What the container gets beside its manifest."""
        return {"STELE_DATA_DIR": str(self._directory / name), "STELE_BIND": self.addresses[name]}

    def _address(self, name: str) -> str:
        return self.addresses[name]

    async def _end(self, name: str, *, politely: bool = False) -> None:
        processes, hook = self._processes.pop(name, {}), self._hooks.pop(name, None)
        if politely and self.hooks and hook is not None:
            self.terminating.add(self.addresses[name])
            processes["transfer"].terminate()
            assert await (await hook()).wait() == 0
        for process in processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM if politely else signal.SIGKILL)
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
        self._began[name] = datetime.now(UTC) if container == "member" else self._began[name]
        await self._start(name, next(each for each in containers if each["name"] == container))
        if container == "member":
            self._restarts[name] += 1
            await self._status(name, {"running": {}})
