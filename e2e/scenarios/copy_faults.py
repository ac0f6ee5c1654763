"""Faults of copying that need pods: each strikes while Spark copies into a new member, and clients go on.

One cluster grows by a member four times, and shrinks again in between without Spark. A fault strikes by the
progress that the plan itself tells: some bytes are copied, others are not.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster import cache, kind
from e2e.demo import padded, stage, verify
from e2e.demo.__main__ import shrink
from e2e.demo.admin_ports import admin_ports
from e2e.demo.clients import Clients, config_of, ledger_of
from e2e.demo.errors import DemoError
from e2e.demo.history import Violation
from e2e.demo.judge import Tally
from e2e.demo.kube import GROUP, Api, kubectl, proxy
from e2e.demo.loader import load
from e2e.demo.resp import Endpoint
from e2e.demo.settings import LEDGER_KEYSPACE, PADDED_KEYSPACE, SAFE_HELD_SECONDS, SMOKE_NAMESPACE, Settings
from e2e.demo.state import unsafe_reason
from e2e.demo.victims import container_of, kill

CLUSTER, NODE_PORT, PARTITIONS, MEMBERS = "faults", 30382, 31, 3
PADDED_ENTRIES = 3_000
BANDWIDTH = "4Mi"
"""So slow that a copy of 12 MB to a new member is under way for seconds: a fault can strike amid it."""
NO_NODE_HAS = "1Ti"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
SAFE_SECONDS_MAX, POLL_SECONDS, LEFT_SECONDS_MAX = 240.0, 0.2, 60.0

Json = Mapping[str, Any]
Strike = Callable[["Faults"], Awaitable[str]]


@dataclass
class Blow:
    """One fault, which struck when `copied_bytes` of `planned_bytes` were copied; and the plans after it."""

    name: str
    done: str = ""
    seconds: float = 0.0
    copied_bytes: int = 0
    planned_bytes: int = 0
    plans: list[Json] = field(default_factory=list)

    @property
    def bytes_by_spark(self) -> int:
        return sum(each.get("bytesBySpark", 0) for each in self.plans)

    @property
    def text(self) -> str:
        """All that the plans say."""
        return json.dumps(self.plans)


@dataclass
class Found:
    """What the run found. `left` are folders of copies and executors without a copier, after the sweep."""

    blows: list[Blow] = field(default_factory=list)
    clients: dict[str, Any] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    violations: list[Violation] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def settings() -> Settings:
    """Beside whatever a demo or the smoke test left."""
    return Settings(
        namespace=SMOKE_NAMESPACE,
        cluster=CLUSTER,
        node_port=NODE_PORT,
        partitions=PARTITIONS,
        members=MEMBERS,
        engine="Spark",
        padded_entries=PADDED_ENTRIES,
        live=False,
    )


def run() -> Found:
    """All faults, one after the other. The TabletCluster and its volumes are removed afterwards."""
    wanted = shrink(settings())
    stage.check(wanted)
    folder = cache.root() / "results" / f"{CLUSTER}-{int(time.time())}"
    folder.mkdir(parents=True)
    prepared = stage.Stage(settings(), folder)
    try:
        return asyncio.run(Faults(prepared, prepared.prepare()).run(kind.env()))
    finally:
        stage.clear(SMOKE_NAMESPACE, CLUSTER, folder / "clear.log")


class Faults:
    """The course of one run."""

    def __init__(self, prepared: stage.Stage, endpoint: Endpoint) -> None:
        self._folder, self._endpoint, self._settings = prepared.folder, endpoint, prepared.settings
        self._found = Found()
        self.env: Mapping[str, str] = {}
        self._plans_before: frozenset[str] = frozenset()

    async def run(self, env: Mapping[str, str]) -> Found:
        """What all of it gave. Raises DemoError when the cluster does not become safe again in time."""
        self.env = env
        pairs = padded.entries(PADDED_ENTRIES)
        await load(self._endpoint, PADDED_KEYSPACE, pairs, lambda _: None)
        async with proxy(env) as api:
            self.api = api
            config = config_of(self._endpoint, self._folder, CLUSTER, rate=100.0)
            clients = Clients(config, self._folder)
            try:
                await clients.start()
                await self._blows(clients)
                self._found.clients = await clients.stop()
            finally:
                await clients.kill()
            await self._verify(api)
            self._found.left = await self._left()
            events = await api.list(f"/api/v1/namespaces/{SMOKE_NAMESPACE}/events")
            self._found.events = [(each["reason"], each.get("message", "")) for each in events]
        return self._found

    async def _blows(self, clients: Clients) -> None:
        strikes: dict[str, Strike] = {
            "executor": kill_executor,
            "driver": kill_driver,
            "copier": delete_copier,
            "no-room": wait_only,
        }
        for name, strike in strikes.items():
            await clients.phase(name)
            memory = NO_NODE_HAS if name == "no-room" else "896Mi"
            await self._set_copying(MEMBERS + 1, "Spark", spark={"memory": memory, "cores": 1})
            self._found.blows.append(await self._blow(name, strike, amid=name != "no-room"))
            await self._set_copying(MEMBERS, "Auto", spark={"thresholdBytes": "1Ti"})
            await self._until_safe(MEMBERS)

    async def _set_copying(self, members: int, engine: str, spark: Json) -> None:
        migration = {"engine": engine, "bandwidthPerMember": BANDWIDTH if engine == "Spark" else None}
        patch = json.dumps({"spec": {"members": members, "migration": migration, "spark": spark}})
        self._plans_before |= (await self._plans()).keys()
        await self.kubectl("patch", self._settings.resource, "--type=merge", "--patch", patch)

    async def _blow(self, name: str, strike: Strike, *, amid: bool) -> Blow:
        """Let it strike amid the copy, and wait until all is safe again."""
        start, blow = time.monotonic(), Blow(name)
        while not blow.planned_bytes or (amid and not 0 < blow.copied_bytes < blow.planned_bytes):
            self._check_time(start, f"a copy that {name} can strike")
            statuses = (await self._plans()).values()
            copied = [each for status in statuses for each in status.get("destinations") or ()]
            blow.copied_bytes = sum(each.get("bytesCopied", 0) for each in copied)
            blow.planned_bytes = sum(each.get("bytesPlanned", 0) for each in copied)
            await asyncio.sleep(POLL_SECONDS)
        blow.done = await strike(self)
        await self._until_safe(MEMBERS + 1)
        blow.seconds, blow.plans = round(time.monotonic() - start, 1), list((await self._plans()).values())
        return blow

    async def _plans(self) -> dict[str, Json]:
        """Statuses of the plans since the last wish, by name."""
        path = f"{GROUP}/namespaces/{SMOKE_NAMESPACE}/tabletrebalances"
        found = {each["metadata"]["name"]: each for each in await self.api.list(path)}
        mine = {name: each for name, each in found.items() if each["spec"]["cluster"] == CLUSTER}
        return {name: mine[name].get("status") or {} for name in mine.keys() - self._plans_before}

    async def _until_safe(self, members: int) -> None:
        """For `SAFE_HELD_SECONDS`: a member that has just joined is there before the plan that fills it."""
        start = safe_since = time.monotonic()
        path = f"{GROUP}/namespaces/{SMOKE_NAMESPACE}/tabletclusters/{CLUSTER}"
        while time.monotonic() - safe_since < SAFE_HELD_SECONDS:
            if reason := unsafe_reason(await self.api.get(path), members):
                safe_since = time.monotonic()
                self._check_time(start, f"safety with {members} members ({reason})")
            await asyncio.sleep(POLL_SECONDS)

    @staticmethod
    def _check_time(start: float, what: str) -> None:
        if time.monotonic() - start > SAFE_SECONDS_MAX:
            raise DemoError(f"{what} did not come in {SAFE_SECONDS_MAX:.0f} s")

    async def pods(self, selector: str) -> list[dict[str, Any]]:
        """Pods of the namespace with these labels."""
        query = selector.replace("=", "%3D").replace(",", "%2C")
        return await self.api.list(f"/api/v1/namespaces/{SMOKE_NAMESPACE}/pods?labelSelector={query}")

    async def kubectl(self, *words: str) -> str:
        return await kubectl(self.env, "--namespace", SMOKE_NAMESPACE, *words)

    # -- afterwards

    async def _verify(self, api: Api) -> None:
        ledger = ledger_of(self._folder)
        table = await verify.read_table(api, SMOKE_NAMESPACE, CLUSTER)
        wanted = verify.expected({}, PADDED_ENTRIES, ledger, CLUSTER, len(table.rows))
        kept = {keyspace: wanted[keyspace] for keyspace in (PADDED_KEYSPACE, LEDGER_KEYSPACE)}
        async with admin_ports(kind.env(), SMOKE_NAMESPACE, CLUSTER) as ports:
            reader = verify.ReplicaReader(ports)
            self._found.tally = await verify.ReplicaCheck(reader, table, kept, lambda _: None).run()
        self._found.violations = await verify.read_ledger(self._endpoint, ledger)

    async def _left(self) -> list[str]:
        """What is left of copies when time is up."""
        end = time.monotonic() + LEFT_SECONDS_MAX
        while True:
            left = await self._look()
            if not left or time.monotonic() > end:
                return left
            await asyncio.sleep(1.0)

    async def _look(self) -> list[str]:
        left: list[str] = []
        for pod in await self.pods(f"{stage.CLUSTER_LABEL}={CLUSTER},stele.dev/component=member"):
            name = pod["metadata"]["name"]
            if pod["metadata"].get("deletionTimestamp"):
                # A member that was removed stops for some seconds.
                continue
            words = ("exec", name, "-c", "member", "--", "find", "/data/staging", "/data/checkpoints")
            found = await self.kubectl(*words, "-mindepth", "1", "-maxdepth", "1")
            left += [f"{name}:{path}" for path in found.split()]
        copiers = {pod["metadata"]["uid"] for pod in await self._copiers()}
        for pod in await self.pods("spark-role=executor"):
            owners = {each["uid"] for each in pod["metadata"].get("ownerReferences") or ()}
            left += [] if owners & copiers else [pod["metadata"]["name"]]
        return left

    async def _copiers(self) -> list[dict[str, Any]]:
        return await self.pods(f"{stage.CLUSTER_LABEL}={CLUSTER},stele.dev/component=copier")

    async def copier(self) -> str:
        """Name of the copier pod."""
        (pod,) = await self._copiers()
        return str(pod["metadata"]["name"])


async def kill_executor(faults: Faults) -> str:
    """SIGKILL the executor that copies."""
    running = [pod for pod in await faults.pods("spark-role=executor") if pod["status"]["phase"] == "Running"]
    return await kill(faults.env, container_of(running[-1], EXECUTOR_CONTAINER))


async def kill_driver(faults: Faults) -> str:
    """SIGKILL the driver processes in the copier pod, and nothing else there."""
    name = await faults.copier()
    await faults.kubectl("exec", name, "-c", "copier", "--", "pkill", "-KILL", "-f", "stele.copyjob.driver")
    return f"SIGKILL to the drivers in {name}"


async def delete_copier(faults: Faults) -> str:
    """Take the copier pod away by force."""
    name = await faults.copier()
    await faults.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    return f"deleted pod {name} by force"


async def wait_only(faults: Faults) -> str:
    """The fault is in the wish: executors ask for more memory than any node has."""
    return f"executors that ask for {NO_NODE_HAS}"
