"""A whole cluster on loopback: API server, operator, and for each pod its real processes on a folder."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.bench import machine
from e2e.bench.errors import BenchError
from e2e.bench.master_rig import NAMESPACE, WAIT_SECONDS, AnyRig, Rig, rig
from e2e.cluster import cache
from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CONFIG_MAPS, PODS, Api
from stele.core.table.table import Partition
from stele.wire.configmap import decode_shard, shard_count

RESP_PORT = 6379
WATCH_SECONDS = 0.02
SPREAD_MAX = 2
"""How far apart members may be at the end, in replicas; the planner ends closer."""
NETWORK = "127.79.0"
COMMANDS = {
    "stele-member": "from stele.member.__main__ import main; raise SystemExit(main())",
    "stele-transfer": "from stele.transfer.__main__ import main; raise SystemExit(main())",
}

Process = asyncio.subprocess.Process


def spec_of(members: int, partitions: int) -> dict[str, Any]:
    """The cluster that is measured: everything as a user gets it who asks for nothing else."""
    return {"members": members, "partitions": partitions, "replicas": 2, "storage": {"size": "8Gi"}}


class MemberRig(Rig):
    """Pods become processes here: what a kubelet does with the member's manifest."""

    def __init__(self, plane: ControlPlane, api: Api, directory: Path) -> None:
        super().__init__(plane, api, directory)
        self._pods: dict[str, list[Process]] = {}
        self._addresses = itertools.count(1)
        self.used_seconds: dict[str, float] = {}

    def hosts(self) -> list[tuple[str, int]]:
        """Where clients of the members connect, in the order they were made."""
        return [(host, RESP_PORT) for host in self._hosts.values()]

    async def login(self) -> Sequence[str | Path]:
        """What `copy_load.py` is told of how to log in, once the cluster is whole."""
        return ()

    async def start_members(self) -> None:
        """They come with their pods."""

    async def _run_pod(self, name: str) -> None:
        pod = await self.api.get(PODS, NAMESPACE, name)
        self._hosts[name] = f"{NETWORK}.{next(self._addresses)}"
        containers = pod["spec"]["containers"]
        self._pods[name] = [await self._start(pod, each, each["command"]) for each in containers]
        await self._show(name, {"running": {"startedAt": time_of_kubelet()}})

    async def _start(self, pod: dict[str, Any], container: dict[str, Any], command: Sequence[str]) -> Process:
        """Run a command in a container."""
        name, (program, *words) = pod["metadata"]["name"], command
        folder = self._directory / name
        folder.mkdir(exist_ok=True)
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        env = {**os.environ, **given, **self._environment(pod)}
        with (self._directory / f"{name}-{container['name']}.log").open("ab") as log:
            made = await asyncio.create_subprocess_exec(
                sys.executable, "-c", COMMANDS[program], *words, env=env, stdout=log, stderr=log
            )
        self._processes.append(made)
        return made

    def _environment(self, pod: dict[str, Any]) -> dict[str, str]:
        """What its containers get beside their manifest."""
        name = pod["metadata"]["name"]
        return {
            "STELE_POD_UID": pod["metadata"]["uid"],
            "STELE_DATA_DIR": str(self._directory / name),
            "STELE_BIND": self._hosts[name],
        }

    async def until_whole(self, members: int) -> dict[str, Any]:
        """Until the status says that all is well and nothing moves."""
        return await self.until_status(
            f"{members} members, all safe", lambda status: is_whole(status, members)
        )

    async def rows(self, partitions: int) -> list[Partition]:
        """The table as it is stored."""
        found: list[Partition] = []
        for number in range(shard_count(partitions)):
            stored = await self.api.find(CONFIG_MAPS, NAMESPACE, f"bench-table-{number}")
            if stored is None:
                raise BenchError(f"ConfigMap bench-table-{number} is not there")
            found += decode_shard(stored["data"], number, partitions).rows
        return found

    async def until_spread(self, partitions: int, members: int, replicas: int) -> float:
        """The moment at which the stored table had every member at its fair share for the first time."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            rows = await self.rows(partitions)
            if is_spread(rows, members, replicas):
                return time.monotonic()
            await asyncio.sleep(WATCH_SECONDS)
        raise BenchError(f"the table was not spread over {members} members in {WAIT_SECONDS:g} s")

    async def until_joined(self) -> float:
        """The moment at which the last pod that was made runs and its member is in the dictionary."""
        known, end = await self._members(), time.monotonic() + WAIT_SECONDS
        while len(await self._members()) <= len(known):
            if time.monotonic() > end:
                raise BenchError(f"no member joined in {WAIT_SECONDS:g} s")
            await asyncio.sleep(WATCH_SECONDS)
        return time.monotonic()

    async def _members(self) -> list[str]:
        stored = await self.api.get(CONFIG_MAPS, NAMESPACE, "bench-table")
        return str(stored["data"]["members"]).splitlines()

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far of each pod's processes and of the operator."""
        used = {
            f"{name}-{place}": machine.cpu_seconds(each.pid, with_children=True)
            for name, pod in self._pods.items()
            for place, each in enumerate(pod)
            if each.returncode is None
        }
        return used | {"operator": self.operator_usage()[0]}

    def note_cpu(self, before: dict[str, float]) -> None:
        """Remember what was used since then, for the report."""
        self.used_seconds = {
            name: round(now - before.get(name, 0.0), 2) for name, now in self.cpu_seconds().items()
        }


def time_of_kubelet() -> str:
    """Now, as a kubelet writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_whole(status: dict[str, Any], members: int) -> bool:
    """Whether the status says that all partitions are safe, so many members are ready and nothing moves."""
    parts, found, moves = status["partitions"], status["members"], status["migrations"]
    quiet = not moves["active"] and not moves["waiting"] and parts["total"] > 0
    return bool(quiet and parts["safe"] == parts["total"] and found["ready"] == members)


def is_spread(rows: Sequence[Partition], members: int, replicas: int) -> bool:
    """Whether every row is whole and the members' numbers of replicas and of owned rows are even."""
    if any(len(row.replicas) != replicas or None in row.replicas for row in rows):
        return False
    held: dict[int | None, int] = {}
    owned: dict[int | None, int] = {}
    for row in rows:
        owned[row.owner] = owned.get(row.owner, 0) + 1
        for member in row.replicas:
            held[member] = held.get(member, 0) + 1
    counts = (held.values(), owned.values())
    return all(len(each) == members and max(each) - min(each) <= SPREAD_MAX for each in counts)


def member_rig(kind: type[AnyRig]) -> AbstractAsyncContextManager[AnyRig]:
    """The cluster, on folders of the cache: their disk is the one that is measured."""
    place = cache.root() / "work"
    place.mkdir(parents=True, exist_ok=True)
    return rig(kind, place)
