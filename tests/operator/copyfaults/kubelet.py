"""A kubelet whose members' transfer processes are behind the wire, and which runs the copier too."""

import asyncio
import contextlib
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from stele.adapters.kubernetes.api import PODS, Api, NotFound
from tests.operator.copyfaults.fake_spark import MODULE
from tests.operator.copyfaults.wire import Wire
from tests.operator.real_kubelet import COMMANDS, RealKubelet
from tests.worker import networks

ROOT = Path(__file__).parents[3]
COPIER = "demo-copier"
GC_INTERVAL_SECONDS = 0.5
BACK_SECONDS = 0.5
STAGING_AGE_SECONDS = 3.0
# What is swept once in ten seconds, or after an hour, is swept at once: a test does not wait for it.
SOON = (
    "from stele.member import limits; "
    f"limits.GC_INTERVAL_SECONDS, limits.STAGING_AGE_SECONDS = {GC_INTERVAL_SECONDS}, {STAGING_AGE_SECONDS}; "
)

Process = asyncio.subprocess.Process
_inner_networks = networks(79)


class FaultKubelet(RealKubelet):
    """Runs members and copier of one namespace, until closed."""

    commands = COMMANDS | {"stele-member": SOON + COMMANDS["stele-member"]}

    def __init__(self, api: Api, namespace: str, directory: Path, wire: Wire) -> None:
        super().__init__(api, namespace, directory)
        self._wire = wire
        self._inner_network = next(_inner_networks)
        self._copier: Process | None = None
        self._copier_uid = ""
        self._addresses_used = itertools.count(200)
        self._killing: set[str] = set()
        self.spark_folder = directory / "fake-spark"
        self.spark_folder.mkdir()

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        await self.kill_copier()

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        if container["name"] == "transfer":
            await self._wire.put(name, self.addresses[name], self._inner(name))
        await super()._start(name, container)

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        own = super()._environment(name, container)
        return own | {"STELE_BIND": self._inner(name)} if container["name"] == "transfer" else own

    def _inner(self, name: str) -> str:
        return self.addresses[name].replace(self._network, self._inner_network)

    async def kill(self, name: str, back_after_seconds: float, container: str = "member") -> None:
        """See RealKubelet."""
        self._killing.add(name)
        try:
            await super().kill(name, back_after_seconds, container)
        finally:
            self._killing.remove(name)

    async def _restart_ended(self) -> None:
        """A container that ended by itself is started again, as on a real node."""
        for name, processes in list(self._processes.items()):
            for container, process in list(processes.items()):
                if process.returncode is not None and name not in self._killing:
                    await self.kill(name, BACK_SECONDS, container)

    # -- the copier

    async def _sync(self) -> None:
        await super()._sync()
        await self._restart_ended()
        found = await self._api.find(PODS, self._namespace, COPIER)
        if found is None:
            return
        if found["metadata"].get("deletionTimestamp"):
            await self.kill_copier()
            with contextlib.suppress(NotFound):
                await self._api.delete(PODS, self._namespace, COPIER, found["metadata"]["uid"], 0)
        elif found["metadata"]["uid"] != self._copier_uid:
            await self.kill_copier()
            self._copier_uid = found["metadata"]["uid"]
            await self.start_copier()

    async def start_copier(self) -> None:
        """Start the container of the pod that is there, at an address of its own as a new pod has."""
        address = f"{self._network}.{next(self._addresses_used)}"
        env = {
            "POD_IP": address,
            "POD_NAME": COPIER,
            "POD_NAMESPACE": self._namespace,
            "STELE_SPARK_IMAGE": "spark",
            "STELE_SPARK_MASTER": "k8s://https://127.0.0.1:1",
            "STELE_SCRATCH": str(self.spark_folder),
            "FAKE_SPARK_FOLDER": str(self.spark_folder),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}",
            **await self._copier_environment(address),
        }
        with (self._directory / "copier.log").open("ab") as log:
            self._copier = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, "copier", env={**os.environ, **env}, stdout=log, stderr=log
            )
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": address, "conditions": conditions}
        await self._api.patch_status(PODS, self._namespace, COPIER, status)

    async def _copier_environment(self, address: str) -> dict[str, str]:
        """What the copier of the pod with this address gets besides."""
        return {"STELE_BIND": address}

    async def kill_copier(self) -> None:
        """SIGKILL of the copier alone; its drivers see the end of their orders, and end."""
        if self._copier is not None and self._copier.returncode is None:
            self._copier.kill()
            await self._copier.wait()

    def running(self) -> dict[str, str]:
        """Addresses of the members that have a pod, by name."""
        return {name: self.addresses[name] for name in sorted(self._pods)}

    def pids(self) -> dict[str, int]:
        """Process ids of all containers, by `<pod>/<container>`."""
        return {
            f"{name}/{container}": process.pid
            for name, processes in self._processes.items()
            for container, process in processes.items()
            if process.returncode is None
        }

    def alive(self, role: str, destination: str) -> list[int]:
        """Process ids of the `driver`s or `executor`s for a destination that live."""
        found = (
            int(path.name.rpartition(".")[2]) for path in self.spark_folder.glob(f"{role}.{destination}.*")
        )
        return [pid for pid in found if _runs(pid)]

    def the(self, role: str, destination: str) -> int:
        """The only one that lives."""
        (found,) = self.alive(role, destination)
        return found


def _runs(pid: int) -> bool:
    """A zombie, which nobody waits for, runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
