"""Against a real API server: partitions that lost all copies, and plans that leave fewer copies."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import redis.asyncio as redis

from stele.adapters.kubernetes.api import EVENTS, MEMBERS, PODS, Api
from stele.core.kv.keyslot import partition_of
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes
from tests.operator.test_operator_plans import in_phase, plans, until_phase

pytestmark = pytest.mark.control_plane

PARTITIONS = 31
KEYS = [f"key-{number}" for number in range(400)]


@asynccontextmanager
async def client_of(kubelet: RealKubelet, name: str) -> AsyncIterator["redis.Redis[bytes]"]:
    client = redis.Redis(host=kubelet.addresses[name], port=6379, socket_timeout=30)
    try:
        yield client
    finally:
        await client.aclose()


async def condition(stage: Stage, type_: str) -> tuple[str, str]:
    found = (await stage.cluster()).get("status") or {}
    return next(
        ((each["status"], each["reason"]) for each in found.get("conditions", ()) if each["type"] == type_),
        ("", ""),
    )


async def until_condition(stage: Stage, type_: str, status: str, reason: str) -> None:
    async def holds() -> bool:
        return await condition(stage, type_) == (status, reason)

    await stage.until(f"condition {type_} {status} {reason}", holds)


async def copies(stage: Stage) -> set[int]:
    return {len(row.members) for row in (await stage.rows()).rows}


async def reasons(stage: Stage) -> set[str]:
    return {each["reason"] for each in await stage.api.list(EVENTS, stage.namespace)}


async def quarantined(kubelet: RealKubelet, name: str) -> set[int]:
    """Partitions of which a member put a copy aside."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{kubelet.addresses[name]}:7001/v1/quarantine") as answer,
    ):
        return {each["partition"] for each in (await answer.json())["tablets"]}


async def test_what_nobody_has_any_more_begins_anew_only_when_that_is_set(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    kubelet = real_kubelet
    async with with_processes(api, namespace, operator, kubelet) as stage:
        async with client_of(kubelet, "demo-0") as client:
            for key in KEYS:
                await client.set(key, b"first")
        rows = (await stage.rows()).rows
        gone = {number for number, row in enumerate(rows) if 0 not in row.members}
        await asyncio.gather(kubelet.crash("demo-1"), kubelet.crash("demo-2"))
        await until_condition(stage, "DataLoss", "True", "AllReplicasLost")
        await asyncio.sleep(6)
        # The grace period is over, and they still wait: that is the default.
        rows = (await stage.rows()).rows
        assert all(rows[number].members <= {1, 2} for number in gone)

        await stage.change_spec(onPartitionLoss="ResetToEmpty")
        await until_condition(stage, "DataLoss", "True", "PartitionsReset")
        rows = (await stage.rows()).rows
        assert {row.replicas for row in rows} == {(0,)}
        async with client_of(kubelet, "demo-0") as client:
            for key in KEYS:
                lost = partition_of(key.encode(), PARTITIONS) in gone
                assert await client.get(key) == (None if lost else b"first")
                await client.set(key, b"second")

        await asyncio.gather(kubelet.revive("demo-1"), kubelet.revive("demo-2"))
        await stage.until_converged(3)
        assert {"DataLoss", "PartitionsReset"} <= await reasons(stage)
        assert await quarantined(kubelet, "demo-1") | await quarantined(kubelet, "demo-2") >= gone
        for name in kubelet.addresses:
            async with client_of(kubelet, name) as client:
                assert {await client.get(key) for key in KEYS} == {b"second"}
        assert await condition(stage, "DataLoss") == ("True", "PartitionsReset"), (
            "it says so until Wait is set"
        )


@pytest.mark.long
async def test_fewer_copies_wait_for_an_approval_that_says_how_many_are_left(
    stage: Stage, namespace: str
) -> None:
    await stage.until_converged(3)
    await stage.scale(1)
    name = await in_phase(stage, "Proposed")
    plan = (await plans(stage))[name]
    assert plan.status.copies_left == 1
    assert await copies(stage) == {2}
    await until_condition(stage, "Paused", "True", "WaitsForApproval")
    why = json.loads(await stage.stele("why", "demo", "-o", "json"))
    assert name in json.dumps(why)
    # Nothing goes on its own, however long it takes.
    await asyncio.sleep(3)
    assert await copies(stage) == {2}
    assert await stage.stele("approve", name) == f"{name} is approved"

    async def alone() -> bool:
        gone = len(await stage.api.list(PODS, namespace, "stele.dev/component=member")) == 1
        return gone and {row.replicas for row in (await stage.rows()).rows} == {(0,)}

    await stage.until("one member with all partitions", alone)
    assert [each["metadata"]["name"] for each in await stage.api.list(MEMBERS, namespace)] == ["demo-0"]
    await until_phase(stage, name, "Done")


async def test_a_plan_for_fewer_copies_is_void_when_the_members_come_back(stage: Stage) -> None:
    await stage.until_converged(3)
    await stage.scale(1)
    await in_phase(stage, "Proposed")
    await stage.scale(3)
    await stage.until_converged(3)
    assert await copies(stage) == {2}
    assert await condition(stage, "Paused") == ("False", "AsDesired")
