"""What Kubernetes showed while the storm went on: pods, rows of the partition table, logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from e2e.demo.errors import DemoError
from e2e.demo.kube import GROUP, Api
from e2e.demo.stage import CLUSTER_LABEL
from e2e.demo.verify import names_of
from e2e.demo.victims import runs
from stele.errors import Corrupt
from stele.wire.configmap import decode_head, decode_shard, shard_count

POLL_SECONDS = 0.4
COMPONENT_LABEL = "stele.dev/component"
LOGGED = ("member", "operator")
"""Containers whose logs are kept."""

Json = Mapping[str, Any]


@dataclass
class Watch:
    """`rows` has, by partition, every row that was seen: (time, version, members with the owner first).

    `looked_at` is when what is known was asked for.
    """

    api: Api
    namespace: str
    cluster: str
    folder: Path
    pods: Sequence[Json] = field(default_factory=list)
    resource: Json = field(default_factory=dict)
    looked_at: float = 0.0
    rows: dict[int, list[tuple[float, int, tuple[str, ...]]]] = field(default_factory=dict)
    _logs: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Until it is cancelled; what cannot be read now is read at the next turn."""
        try:
            while True:
                with suppress(DemoError, Corrupt, KeyError):
                    await self.look()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for task in self._logs.values():
                task.cancel()
            await asyncio.gather(*self._logs.values(), return_exceptions=True)

    async def look(self) -> None:
        """Read everything once."""
        core, now = f"/api/v1/namespaces/{self.namespace}", time.time()
        self.pods = await self.api.list(f"{core}/pods")
        for pod in self.pods:
            self._follow(pod)
        path = f"{GROUP}/namespaces/{self.namespace}/tabletclusters/{self.cluster}"
        self.resource = await self.api.get(path)
        head = decode_head((await self.api.get(f"{core}/configmaps/{self.cluster}-table"))["data"])
        first = 0
        for number in range(shard_count(head.rows)):
            data = (await self.api.get(f"{core}/configmaps/{self.cluster}-table-{number}"))["data"]
            for row in decode_shard(data, number, head.rows).rows:
                self._note(first, row.version, names_of(head, row.replicas))
                first += 1
        self.looked_at = now

    def _note(self, partition: int, version: int, members: tuple[str, ...]) -> None:
        seen = self.rows.setdefault(partition, [])
        if not seen or seen[-1][1:] != (version, members):
            seen.append((time.time(), version, members))

    # -- pods

    def members(self) -> list[Json]:
        """The pods of members whose container runs, by name."""
        found = [each for each in self.of("member") if runs(each, "member")]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def staying(self) -> list[Json]:
        """Those of `members` that are not being deleted: after a scale-down the last one may still run."""
        return [each for each in self.members() if not each["metadata"].get("deletionTimestamp")]

    def ready(self) -> int:
        """How many members are ready."""
        return sum(
            each["name"] == "member" and bool(each.get("ready"))
            for pod in self.of("member")
            for each in (pod.get("status") or {}).get("containerStatuses") or ()
        )

    def safe(self) -> bool:
        """Whether each partition has all its copies."""
        partitions: Json = (self.resource.get("status") or {}).get("partitions") or {}
        return bool(partitions.get("total")) and partitions.get("safe") == partitions.get("total")

    def of(self, component: str) -> list[Json]:
        """Pods of the cluster with this component."""
        wanted = {CLUSTER_LABEL: self.cluster, COMPONENT_LABEL: component}
        return [
            each for each in self.pods if (each["metadata"].get("labels") or {}).items() >= wanted.items()
        ]

    def operators(self) -> list[Json]:
        """Pods of the operator whose container runs."""
        return [each for each in self.pods if runs(each, "operator")]

    # -- logs

    def _follow(self, pod: Json) -> None:
        """Keep the log of each start of a container that is logged, from the moment it is seen."""
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            name, starts = status["name"], status.get("restartCount", 0)
            if name not in LOGGED or not status.get("containerID"):
                continue
            metadata = pod["metadata"]
            instance = f"{metadata['name']}-{metadata['uid'][:8]}-{starts}"
            task = self._logs.get(instance)
            if task is None or (task.done() and "running" in status["state"]):
                self._logs[instance] = asyncio.create_task(self._keep(metadata["name"], name, instance))
            earlier = f"{metadata['name']}-{metadata['uid'][:8]}-{starts - 1}"
            if starts and earlier not in self._logs:
                keeping = self._keep(metadata["name"], name, earlier, previous=True)
                self._logs[earlier] = asyncio.create_task(keeping)

    async def _keep(self, pod: str, container: str, instance: str, previous: bool = False) -> None:
        path = self.folder / f"{instance}.log"
        query = f"container={container}&timestamps=true&" + ("previous=true" if previous else "follow=true")
        if path.exists() and path.stat().st_size:
            query += f"&sinceTime={quote(_last_time(path))}"
        with suppress(DemoError):
            await self.api.save(f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log?{query}", path)


def _last_time(path: Path) -> str:
    """The time of the last whole line of a log."""
    return path.read_text(errors="replace").rstrip("\n").rsplit("\n", 1)[-1].split(" ", 1)[0]
