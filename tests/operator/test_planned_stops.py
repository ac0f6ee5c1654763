"""Pods are deleted one after the other, as a drain does it, while clients count: none of them sees it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from stele.adapters.kubernetes.api import EVENTS, PODS, Api
from tests.member.harness.load import Load, Service
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes

pytestmark = pytest.mark.control_plane

RESP_PORT = 6379


async def follow(kubelet: RealKubelet, service: Service) -> None:
    """What Kubernetes does: a pod that ends takes no new connections."""
    while True:
        service.hosts[:] = [each for each in kubelet.addresses.values() if each not in kubelet.terminating]
        await asyncio.sleep(0.05)


async def replace_pod(stage: Stage, name: str) -> None:
    pod = await stage.api.get(PODS, stage.namespace, name)
    uid = pod["metadata"]["uid"]
    await stage.api.delete(PODS, stage.namespace, name, uid)

    async def replaced() -> bool:
        found = await stage.api.find(PODS, stage.namespace, name)
        return found is not None and found["metadata"]["uid"] != uid

    await stage.until(f"another pod {name}", replaced)
    await stage.until_converged(3)


async def mentions(operator: Operator, text: str) -> bool:
    return text in operator.log.read_text()


@asynccontextmanager
async def counted(kubelet: RealKubelet) -> AsyncIterator[Load]:
    """Clients count meanwhile, and none of their requests fails, is lost or runs twice."""
    service = Service(list(kubelet.addresses.values()), RESP_PORT)
    following = asyncio.create_task(follow(kubelet, service))
    load = Load(service, [b"key-%d" % number for number in range(200)])
    try:
        yield load
    finally:
        await load.end()
        following.cancel()
    assert load.failures == []
    async with service.asyncio_client() as client:
        for key, count in load.counts.items():
            assert int(await client.get(key)) == count > 0


async def test_no_request_fails_while_every_pod_is_replaced(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    real_kubelet.hooks = True
    async with with_processes(api, namespace, operator, real_kubelet) as stage, counted(real_kubelet):
        for number in range(3):
            await replace_pod(stage, f"demo-{number}")


@pytest.mark.parametrize("replicas", [1, 2])
async def test_the_event_of_a_planned_stop_says_what_it_costs(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet, replicas: int
) -> None:
    real_kubelet.hooks = True
    async with with_processes(api, namespace, operator, real_kubelet, replicas=replicas) as stage:
        rows = (await stage.rows()).rows
        owned, held = sum(row.owner == 0 for row in rows), sum(0 in row.members for row in rows)
        await replace_pod(stage, "demo-0")
        listed = await api.list(EVENTS, namespace)
    stopping = [each for each in listed if each["reason"] == "MemberStopping"]
    assert sorted(each["involvedObject"]["name"] for each in stopping) == ["demo", "demo-0"]
    events = [each for each in stopping if each["involvedObject"]["name"] == "demo"]
    if replicas == 1:
        cost = f"{owned} partitions have no other copy and do not answer until it is back"
        told = "Warning", f"demo-0 stops soon: it hands over 0 partitions and leaves 0 other rows; {cost}"
    else:
        text = f"it hands over {owned} partitions and leaves {held - owned} other rows"
        told = "Normal", f"demo-0 stops soon: {text}"
    assert [(each["type"], each["message"]) for each in events] == [told]


@pytest.mark.long
async def test_a_member_waits_for_an_operator_that_is_evicted_at_the_same_time(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    real_kubelet.hooks = True
    async with with_processes(api, namespace, operator, real_kubelet) as stage, counted(real_kubelet):
        replaced = asyncio.create_task(replace_pod(stage, "demo-0"))
        assert await operator.end() == 0
        await asyncio.sleep(6)
        await operator.start()
        await replaced


async def test_an_operator_that_ends_in_a_hand_over_leaves_no_partition_without_an_owner(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    real_kubelet.hooks = True
    async with with_processes(api, namespace, operator, real_kubelet) as stage, counted(real_kubelet) as load:
        replaced = asyncio.create_task(replace_pod(stage, "demo-0"))
        await stage.until("a hand-over", partial(mentions, operator, "MemberStopping"))
        assert await operator.end() == 0
        before = dict(load.counts)
        await asyncio.sleep(3)
        waiting = [key for key, count in load.counts.items() if count == before[key]]
        await operator.start()
        await replaced
    assert waiting == []
