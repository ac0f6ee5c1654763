"""The cluster of `copy_rig.py` as a user gets it who asks for nothing else: closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from e2e.bench.copy_rig import MemberRig
from e2e.bench.master_rig import NAMESPACE, POLL_SECONDS
from e2e.cluster.mounting import mount
from stele.adapters.kubernetes.api import SECRETS
from stele.master.manifests import TLS_DIR
from stele.master.secret_volumes import USERS_KEY, tls_name, users_name
from stele.model.user import default_user_name

CLUSTER = "bench"
CLOSED = ("Secured", "CertificatesHealthy")


class SecuredRig(MemberRig):
    """Mounts the Secrets of pods, which come and change later."""

    security: ClassVar[dict[str, Any]] = {}

    async def run_pods(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run_pods())
            group.create_task(self._mount_all())

    async def _mount_all(self) -> None:
        while True:
            for pod in [*self._hosts]:
                await self._mount(tls_name(pod), self._folder(pod, "tls"))
                await self._mount(users_name(CLUSTER), self._folder(pod, "users"))
            await asyncio.sleep(POLL_SECONDS)

    async def _mount(self, secret: str, folder: Path) -> None:
        stored = await self.api.find(SECRETS, NAMESPACE, secret)
        if stored is not None:
            mount(folder, stored)

    def _folder(self, pod: str, volume: str) -> Path:
        return self._directory / "mounted" / pod / volume

    def _environment(self, pod: dict[str, Any]) -> dict[str, str]:
        name = pod["metadata"]["name"]
        return super()._environment(pod) | {
            TLS_DIR: str(self._folder(name, "tls")),
            "STELE_USERS_FILE": str(self._folder(name, "users") / USERS_KEY),
        }

    async def until_whole(self, members: int) -> dict[str, Any]:
        await self.until_status("a closed cluster", is_closed)
        return await super().until_whole(members)

    async def login(self) -> Sequence[str | Path]:
        await self._mount(default_user_name(CLUSTER), self._folder("clients", "default"))
        ca = self._folder(f"{CLUSTER}-0", "tls") / "ca.crt"
        return "--login", ca, self._folder("clients", "default") / "password"


def is_closed(status: dict[str, Any]) -> bool:
    """Whether the status says that all is encrypted and asks for certificates and passwords."""
    found = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return all(found.get(each) == "True" for each in CLOSED)
