"""The operator of the last release, then this one in its place: it takes a cluster over with its data."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane, running
from stele.adapters.kubernetes.api import CLAIMS, MEMBERS, PODS, REBALANCES, SERVICES, Api, Kind
from stele.core.formats import FIRST, SPOKEN
from stele.model.ownership import SPEC_COPY
from tests.member.harness.clients import Client
from tests.member.harness.forked import fork_server
from tests.member.harness.releases import last_release, last_release_crds
from tests.operator.real_kubelet import Process, RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes

pytestmark = pytest.mark.control_plane

RELEASED, COPIER = "member:released", "spark:next"
NAMESPACE = "stele"
KEYS = 100
PAUSE_SECONDS = 0.01


class MixedKubelet(RealKubelet):
    """Pods with the image of the last release run its processes. `starts`: how often pods began, by name."""

    hooks = True

    def __init__(self, api: Api, namespace: str, directory: Path) -> None:
        super().__init__(api, namespace, directory)
        self.starts: dict[str, int] = {}

    async def _start_pod(self, name: str, pod: dict[str, Any]) -> None:
        self.starts[name] = self.starts.get(name, 0) + 1
        await super()._start_pod(name, pod)

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        return super()._environment(name, container) | {"IMAGE": container["image"]}

    async def _run_command(self, command: list[str], env: dict[str, str], log: Path) -> Process:
        if len(command) > 1:
            return await super()._run_command(command, env, log)
        server = fork_server(last_release() if env["IMAGE"] == RELEASED else None)
        return server.fork(command[0].removeprefix("stele-"), env, log)


class Members:
    """Where a Client finds the members of a kubelet: at their present addresses."""

    def __init__(self, kubelet: RealKubelet) -> None:
        self._kubelet = kubelet
        self.clients: list[Client] = []

    @property
    def members(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(host=host, ports=[6379]) for host in self._kubelet.addresses.values()]


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """An API server of its own, with the custom resources of the last release."""
    (tmp_path / "plane").mkdir()
    with running(tmp_path / "plane") as plane:
        plane.install_crds(last_release_crds())
        plane.kubectl("create", "namespace", NAMESPACE)
        yield plane


@pytest.fixture
def released(control_plane: ControlPlane, tmp_path: Path, unused_tcp_port: int) -> Operator:
    """The operator of the last release; it is not started."""
    operator = Operator(control_plane, NAMESPACE, tmp_path, unused_tcp_port)
    operator.source = last_release()
    operator.env["STELE_MEMBER_IMAGE"] = RELEASED
    return operator


async def replace_operator(operator: Operator) -> None:
    """End the one of the last release, and start that of this build in its place."""
    assert await operator.end() == 0
    operator.source = None
    operator.env |= {"STELE_MEMBER_IMAGE": "member:next", "STELE_SPARK_IMAGE": COPIER, "POD_UID": "next"}
    await operator.start()


@asynccontextmanager
async def written(kubelet: RealKubelet) -> AsyncIterator[None]:
    """A client writes at all members meanwhile; afterwards each of them reads what was acknowledged."""
    client, over = Client(Members(kubelet)), asyncio.Event()  # type: ignore[arg-type]
    writer = asyncio.create_task(write(kubelet, client, over))
    try:
        yield
    finally:
        over.set()
        await writer
        await client.close()
    assert len(client.acknowledged) == KEYS
    for member in range(3):
        await client.check(member)
    await client.close()


async def write(kubelet: RealKubelet, client: Client, over: asyncio.Event) -> None:
    """Write each value once, at any member that may be down just then."""
    chance = random.Random(7)
    for value in count():
        if over.is_set():
            return
        await client.set(chance.randrange(len(kubelet.addresses)), b"key-%d" % (value % KEYS), b"%d" % value)
        await asyncio.sleep(PAUSE_SECONDS)


async def uids(stage: Stage, kind: Kind) -> dict[str, str]:
    found = await stage.api.list(kind, NAMESPACE, "stele.dev/component=member")
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}


async def holds_partitions(stage: Stage, member: int) -> bool:
    return any(member in row.members for row in (await stage.rows()).rows)


async def status_is(stage: Stage, features: int, updated: int) -> bool:
    """Whether the operator reports these features, and members that all serve."""
    status = (await stage.cluster())["status"]
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    counts = {"desired": 3, "current": 3, "ready": 3, "lite": 0, "updated": updated}
    return (
        status.get("features") == features
        and status["members"] == counts
        and all(conditions[name] == "True" for name in ("Available", "ReplicationSatisfied"))
        and all(conditions[name] == "False" for name in ("DataLoss", "Stalled"))
    )


async def check_objects(stage: Stage) -> None:
    """What the last release made is as this operator makes it."""
    service = await stage.api.get(SERVICES, NAMESPACE, "demo")
    assert {each["port"] for each in service["spec"]["ports"]} == {6379, 6380, 6381}
    copier = await stage.api.get(PODS, NAMESPACE, "demo-copier")
    assert copier["spec"]["containers"][0]["image"] == COPIER
    for claim in await stage.api.list(CLAIMS, NAMESPACE):
        assert SPEC_COPY in claim["metadata"]["annotations"]
        assert "app.kubernetes.io/instance" not in claim["metadata"]["labels"]


async def plans_ended(stage: Stage) -> bool:
    """Whether all have ended; none has copied anything, or failed."""
    plans = [each["status"] for each in await stage.api.list(REBALANCES, NAMESPACE)]
    ended = [each for each in plans if each.get("phase") in ("Done", "Superseded")]
    if len(ended) < len(plans):
        return False
    assert {(each["bytesCopied"], each["failed"]) for each in ended} == {(0, 0)}
    return True


async def test_this_operator_takes_over_a_cluster_of_the_last_release_in_the_middle_of_a_plan(
    api: Api, released: Operator, tmp_path: Path
) -> None:
    """Nothing restarts while updates are paused; then each member is replaced once, and the features rise."""
    kubelet = MixedKubelet(api, NAMESPACE, tmp_path)
    slow = {"maxParallelPerMember": 1}
    async with (
        with_processes(api, NAMESPACE, released, kubelet, 2, migration=slow) as stage,
        written(kubelet),
    ):
        await stage.scale(3)
        await stage.until("the first migration of the scale-up", partial(holds_partitions, stage, 2))
        released.plane.install_crds()
        await stage.change_spec(updateStrategy={"paused": True})
        before = [await uids(stage, kind) for kind in (MEMBERS, CLAIMS, PODS)]
        table = await stage.rows()
        await replace_operator(released)
        await stage.until("a status of this operator", partial(status_is, stage, FIRST, 0))
        assert (await stage.rows()).epoch == table.epoch + 1
        assert [await uids(stage, kind) for kind in (MEMBERS, CLAIMS, PODS)] == before
        assert set(kubelet.starts.values()) == {1}

        await stage.change_spec(updateStrategy={"paused": False}, migration={})
        await stage.until("all of this build", partial(status_is, stage, SPOKEN.most, 3))
        await stage.until_converged(3)
        assert [await uids(stage, kind) for kind in (MEMBERS, CLAIMS)] == before[:2]
        assert set(kubelet.starts.values()) == {2}
        rows = zip(table.rows, (await stage.rows()).rows, strict=True)
        assert all(new.version >= old.version for old, new in rows)
        await stage.until("the end of every plan", partial(plans_ended, stage))
        await check_objects(stage)
    assert "Traceback" not in released.log.read_text()
