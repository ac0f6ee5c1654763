"""What the operator's process says of itself: whether its loops get on, and the numbers of its clusters."""

import asyncio
from contextlib import suppress
from functools import partial

import aiohttp
import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.connections import HEADERS_SECONDS_MAX
from tests.operator.test_operator import Stage

pytestmark = pytest.mark.control_plane

HANG = """
import asyncio
from stele.master import kubernetes, supervisor
supervisor.SILENT_SECONDS = 3.0
done = kubernetes.KubernetesClusterObjects.ensure_shared
async def hang(self):
    await done(self)
    if self.cluster().metadata.annotations.get("test/hang"):
        await asyncio.Event().wait()
kubernetes.KubernetesClusterObjects.ensure_shared = hang
"""

SLOW = """
import asyncio
from types import SimpleNamespace
from stele.adapters.kubernetes.api import Api
from stele.master import supervisor
supervisor.SILENT_SECONDS = 3.0
passed = [0.0]
supervisor.time = SimpleNamespace(monotonic=lambda: passed[0])
done = Api._exchange
async def slow(self, method, path, *rest):
    if "/configmaps/" in path:
        passed[0] += 1.2
        await asyncio.sleep(0.5)
    return await done(self, method, path, *rest)
Api._exchange = slow
"""
"""A take-over of one shard is four requests, each well within the limit, all together above it. Time passes
with them alone, so that a slow machine changes nothing; each is long enough to be seen from outside.
"""


async def ask(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_a_request_that_does_not_end_is_closed(stage: Stage, unused_tcp_port: int) -> None:
    """The port is for everybody who reaches the pod, and each connection has its limits."""
    await stage.until("the operator answers", partial(_answers, unused_tcp_port))
    reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: ")
    assert await asyncio.wait_for(reader.read(), 3 * HEADERS_SECONDS_MAX) == b""
    writer.close()


async def _answers(port: int) -> bool:
    with suppress(aiohttp.ClientError):
        return (await ask(port, "/metrics"))[0] == 200
    return False


async def test_health_fails_when_a_loop_hangs_and_metrics_count_what_statuses_say(
    stage: Stage, control_plane: ControlPlane, namespace: str, unused_tcp_port: int
) -> None:
    await stage.operator.end()
    await stage.operator.start(f"exec({HANG!r})")
    await stage.until_converged(3)
    place = f'namespace="{namespace}",cluster="demo"'
    wanted = (
        *(
            f'stele_cluster_members{{{place},state="{state}"}} 3.0'
            for state in ("desired", "current", "ready")
        ),
        f'stele_cluster_members{{{place},state="updated"}} 3.0',
        f'stele_cluster_members{{{place},state="lite"}} 0.0',
        f'stele_cluster_partitions{{{place},state="safe"}} 31.0',
        f'stele_cluster_partitions{{{place},state="under_replicated"}} 0.0',
        f'stele_cluster_partitions{{{place},state="lost"}} 0.0',
        f'stele_cluster_condition{{{place},status="True",type="Ready"}} 1.0',
        f'stele_cluster_condition{{{place},status="False",type="Ready"}} 0.0',
        f'stele_migrations{{{place},state="waiting"}} 0.0',
        f"stele_rebalance_remaining_bytes{{{place}}} 0.0",
        "stele_operator_leader 1.0",
        'stele_build_info{version="0.1.0",revision=""} 1.0',
    )
    _, text = await ask(unused_tcp_port, "/metrics")
    lines = {tuple(sorted(line.replace("{", ",").replace("} ", ",").split(","))) for line in text.split("\n")}
    for line in wanted:
        assert tuple(sorted(line.replace("{", ",").replace("} ", ",").split(","))) in lines, (line, text)
    assert "process_cpu_seconds_total" in text
    for line in (
        'stele_kubernetes_requests_total{code="200",kind="tabletclusters",verb="list"} ',
        f'stele_migrations_finished_total{{cluster="demo",namespace="{namespace}",result="done",type="move"}}',
        "stele_reconcile_duration_seconds_count ",
    ):
        assert any(found.startswith(line) for found in text.split("\n")), (line, text)
    assert not any(
        f"{name}{{" in text for name in ("stele_partitions", "stele_members", "stele_migrations_waiting")
    )

    assert await ask(unused_tcp_port, "/healthz") == (200, "ok\n")
    control_plane.kubectl("annotate", "-n", namespace, "tabletcluster", "demo", "test/hang=yes")

    async def fails() -> bool:
        status, said = await ask(unused_tcp_port, "/healthz")
        return status == 503 and said.startswith(f"hangs: the loop of {namespace}/demo for ")

    await stage.until("a failing /healthz", fails)
    await asyncio.sleep(2.5)
    assert await fails(), "the rest of the process goes on, and says so still"


async def test_a_take_over_with_a_slow_api_server_is_no_hang(stage: Stage, unused_tcp_port: int) -> None:
    await stage.until_converged(3)
    await stage.operator.end()
    await stage.operator.start(f"exec({SLOW!r})")

    async def up() -> bool:
        try:
            return bool(await ask(unused_tcp_port, "/healthz"))
        except OSError:
            return False

    await stage.until("the operator's port", up)

    async def leads() -> bool:
        _, text = await ask(unused_tcp_port, "/healthz")
        assert "the loop of" not in text
        return "stele_epoch{" in (await ask(unused_tcp_port, "/metrics"))[1]

    await stage.until("a take-over", leads)
