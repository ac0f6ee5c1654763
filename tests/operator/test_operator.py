"""The operator's real process against a real API server; members are fakes behind real ports."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, EVENTS, MEMBERS, PODS, REBALANCES, Api
from stele.errors import Conflict
from stele.wire.configmap import Shard, decode_shard
from tests.fakes.objects import body
from tests.fakes.spec import OPEN
from tests.member.harness.forked import fork_server
from tests.operator.kubelet import Kubelet
from tests.operator.pods import PodWatch
from tests.operator.real_kubelet import Process, RealKubelet

pytestmark = pytest.mark.control_plane

DEADLINE_SECONDS = 60.0


class Operator:
    """The process on a control plane, started and killed at will; `env` is its environment.

    `source` is the root of the modules of another build.
    """

    source: Path | None = None

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path, port: int) -> None:
        self.plane, self.kubeconfig = plane, plane.kubeconfig
        self.env = {
            **os.environ,
            "STELE_MEMBER_IMAGE": "member",
            "STELE_SPARK_IMAGE": "spark",
            "STELE_WATCH_NAMESPACES": namespace,
            "STELE_LEASE_NAME": "stele-test",
            "STELE_HTTP_PORT": str(port),
            "STELE_PAGE_PORT": "0",
            "POD_NAMESPACE": namespace,
            "POD_UID": f"pod-of-{namespace}",
        }
        self._process: Process | None = None
        self.log = directory / "operator.log"

    async def start(self, before: str = "") -> None:
        """`before` is a statement of Python that the process runs first, when it has imported nothing."""
        arguments = "--kubeconfig", str(self.kubeconfig)
        if not before:
            server = fork_server(self.source, "operator")
            self._process = server.fork("stele.master.__main__", self.env, self.log, *arguments)
            return
        text = f"{before}; from stele.master.__main__ import main; raise SystemExit(main())"
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                text,
                *arguments,
                env=self.env,
                stdout=log,
                stderr=log,
            )

    def send(self, number: int) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def end(self, number: int = signal.SIGTERM) -> int:
        self.send(number)
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), 20)


def cluster(name: str, members: int, **spec: Any) -> dict[str, Any]:
    wanted = {
        "members": members,
        "partitions": 31,
        "replicas": 2,
        "storage": {"size": "1Gi"},
        "migration": {"engine": "Direct"},
        "failureDetection": {"heartbeatSeconds": 0.5, "leaseSeconds": 1.5, "rejoinGracePeriodSeconds": 5},
        "security": OPEN,
    }
    return body(CLUSTERS, name, wanted | spec)


class Stage:
    """One namespace with a cluster, its kubelet and the operator."""

    def __init__(self, api: Api, namespace: str, kubelet: PodWatch, operator: Operator) -> None:
        self.api, self.namespace, self.kubelet, self.operator = api, namespace, kubelet, operator

    async def rows(self, partitions: int = 31) -> Shard:
        stored = await self.api.get(CONFIG_MAPS, self.namespace, "demo-table-0")
        return decode_shard(stored["data"], 0, partitions)

    async def cluster(self) -> dict[str, Any]:
        return await self.api.get(CLUSTERS, self.namespace, "demo")

    async def scale(self, members: int) -> None:
        await self.change_spec(members=members)

    async def change_spec(self, **changes: Any) -> None:
        """Put the changed spec, again when another wrote in between, as a client does."""
        while True:
            found = await self.cluster()
            found["spec"] |= changes
            with suppress(Conflict):
                await self.api.replace(CLUSTERS, self.namespace, found)
                return

    async def stele(self, *arguments: str, lines: list[str] | None = None) -> str:
        """What `kubectl stele` prints with these arguments; `lines` get it while it runs."""
        lines = [] if lines is None else lines
        command = [sys.executable, "-m", "stele.cli", *arguments, "-n", self.namespace]
        command += ["--kubeconfig", str(self.operator.kubeconfig)]
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        assert process.stdout is not None
        async for line in process.stdout:
            lines.append(line.decode())
        _, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return "".join(lines).strip()

    async def until(self, what: str, check: Callable[[], Awaitable[bool]]) -> None:
        end = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        while asyncio.get_running_loop().time() < end:
            if await check():
                return
            await asyncio.sleep(0.2)
        log = self.operator.log.read_text(encoding="utf-8")[-6000:]
        raise AssertionError(f"{what} did not come in {DEADLINE_SECONDS} s\n{await self.cluster()}\n{log}")

    async def ready(self, members: int) -> bool:
        found = await self.cluster()
        status = found.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
        return (
            conditions.get("Ready") == "True"
            and status["members"]["ready"] == members
            and status["observedGeneration"] == found["metadata"]["generation"]
        )

    async def table_snapshot(self, epoch: int) -> None:
        """A master of that epoch tells: what the one before wrote says nothing of it."""

        async def check() -> bool:
            return ((await self.cluster()).get("status") or {}).get("epoch") == epoch

        await self.until(f"epoch {epoch}", check)

    async def until_converged(self, members: int) -> None:
        """The status says so, and the table is so; the status may be a second older than the table."""

        async def check() -> bool:
            return await self.ready(members) and await self.safe_and_balanced(members)

        await self.until(f"{members} members, safe and balanced,", check)

    async def safe_and_balanced(self, members: int) -> bool:
        rows, replicas = (await self.rows()).rows, (await self.cluster())["spec"]["replicas"]
        owned = Counter(row.owner for row in rows)
        even = max(owned.values()) - min(owned.values()) <= 1
        return even and len(owned) == members and all(len(row.members) == replicas for row in rows)


@asynccontextmanager
async def staged(api: Api, namespace: str, operator: Operator, **spec: Any) -> AsyncIterator[Stage]:
    """Members are fakes."""
    made = await api.create(CLUSTERS, namespace, cluster("demo", 3, **spec))
    async with Kubelet(api, namespace, made["metadata"]["uid"]) as kubelet:
        await operator.start()
        try:
            yield Stage(api, namespace, kubelet, operator)
        finally:
            await operator.end(signal.SIGKILL)


@asynccontextmanager
async def with_processes(
    api: Api, namespace: str, operator: Operator, kubelet: RealKubelet, members: int = 3, **spec: Any
) -> AsyncIterator[Stage]:
    """Members are processes, each with its files; the operator ends politely."""
    await api.create(CLUSTERS, namespace, cluster("demo", members, **spec))
    async with kubelet:
        await operator.start()
        stage = Stage(api, namespace, kubelet, operator)
        try:
            await stage.until_converged(members)
            yield stage
        finally:
            assert await operator.end() == 0


@pytest.fixture
def page(operator: Operator, unused_tcp_port_factory: Callable[[], int]) -> str:
    """The address of the operator's page; it begins with the operator."""
    port = operator.env["STELE_PAGE_PORT"] = str(unused_tcp_port_factory())
    return f"http://127.0.0.1:{port}"


async def shown(page: str, namespace: str) -> Any:
    """What the page of the operator has of the cluster."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{page}/v1/clusters/{namespace}/demo") as answer,
    ):
        return await answer.json()


async def test_create_scale_up_kill_and_scale_down(page: str, stage: Stage, namespace: str) -> None:
    await stage.until_converged(3)
    document = await shown(page, namespace)
    stored = [[number, *row.replicas] for number, row in enumerate((await stage.rows()).rows)]
    assert sorted(document["rows"]) == stored
    assert [each["name"] for each in document["members"]] == ["demo-0", "demo-1", "demo-2"]
    await stage.scale(4)
    await asyncio.sleep(1.5)
    await stage.operator.end(signal.SIGKILL)
    await stage.operator.start()
    await stage.table_snapshot(2)
    await stage.until_converged(4)
    await stage.kubelet.kill("demo-0", 1.0)
    await stage.until_converged(4)
    await stage.scale(3)
    await stage.until_converged(3)
    assert len(await stage.api.list(PODS, namespace, "stele.dev/component=member")) == 3
    assert len(await stage.api.list(MEMBERS, namespace)) == 3
    plans = await stage.api.list(REBALANCES, namespace)
    assert any(each["status"]["phase"] == "Done" for each in plans)
    reasons = {each["reason"] for each in await stage.api.list(EVENTS, namespace)}
    assert {"MemberJoined", "RebalanceFinished", "MemberUnreachable", "MasterTookOver"} <= reasons
    assert await stage.operator.end() == 0
