"""All members restart while the cluster is Passive or Frozen: real processes, and the table is as before."""

import pytest

from stele.adapters.kubernetes.api import MEMBERS, PODS, Api
from tests.member.harness.load import Service
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes

pytestmark = pytest.mark.control_plane

RESP_PORT = 6379
KEYS = [b"key-%d" % number for number in range(100)]


async def change_state(stage: Stage, state: str) -> None:
    await stage.change_spec(state=state)

    async def in_force() -> bool:
        return (await stage.cluster())["status"]["state"] == state

    await stage.until(state, in_force)


async def restart_all(stage: Stage) -> None:
    pods = await stage.api.list(PODS, stage.namespace, "stele.dev/component=member")
    before = {each["metadata"]["uid"] for each in pods}
    for each in pods:
        await stage.api.delete(PODS, stage.namespace, each["metadata"]["name"], each["metadata"]["uid"])

    async def back() -> bool:
        found = await stage.api.list(PODS, stage.namespace, "stele.dev/component=member")
        if len(found) < 3 or before & {each["metadata"]["uid"] for each in found}:
            return False
        members = [each["status"] for each in await stage.api.list(MEMBERS, stage.namespace)]
        if any(each["state"] != "Active" or each["incarnation"] < 2 for each in members):
            return False
        conditions = {
            each["type"]: each["status"] for each in (await stage.cluster())["status"]["conditions"]
        }
        return conditions["Available"] == conditions["ReplicationSatisfied"] == "True"

    await stage.until("all members are back", back)


@pytest.mark.parametrize("state", ["Passive", "Frozen"])
async def test_all_members_restart_and_no_row_changes(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet, state: str
) -> None:
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        await stage.until_converged(3)
        async with Service(list(real_kubelet.addresses.values()), RESP_PORT).asyncio_client() as client:
            for key in KEYS:
                await client.set(key, key)
        await change_state(stage, state)
        before = [row.replicas for row in (await stage.rows()).rows]
        await restart_all(stage)
        assert [row.replicas for row in (await stage.rows()).rows] == before
        await change_state(stage, "Active")
        await stage.until_converged(3)
        assert [row.replicas for row in (await stage.rows()).rows] == before
        async with Service(list(real_kubelet.addresses.values()), RESP_PORT).asyncio_client() as client:
            assert [await client.get(key) for key in KEYS] == KEYS
