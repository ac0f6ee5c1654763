"""Lite members against a real API server: they join, are promoted, and become lite again."""

from typing import Any

import pytest

from stele.adapters.kubernetes.api import MEMBERS, PODS
from tests.operator.test_operator import Stage

pytestmark = pytest.mark.control_plane


async def status_of(stage: Stage, name: str) -> dict[str, Any]:
    member = await stage.api.find(MEMBERS, stage.namespace, name)
    return {} if member is None else member.get("status") or {}


async def test_a_lite_member_joins_is_promoted_and_becomes_lite_again(stage: Stage) -> None:
    await stage.until_converged(3)
    await stage.change_spec(joinAs="Lite", members=4)

    async def is_lite() -> bool:
        return bool((await status_of(stage, "demo-3")).get("lite")) and await stage.ready(4)

    await stage.until("a lite member", is_lite)
    assert all(3 not in row.members for row in (await stage.rows()).rows)
    assert "it is lite: it holds no partitions" in await stage.stele("why", "demo-3")
    await stage.kubelet.lose_node("demo-3", volume=False)

    async def unreachable() -> bool:
        return (await status_of(stage, "demo-3")).get("state") == "Unreachable"

    await stage.until("a silent member", unreachable)
    await stage.stele("promote", "demo-3")

    async def waits() -> bool:
        conditions = (await status_of(stage, "demo-3"))["conditions"]
        return any(each["message"] == "it becomes a data member once it answers" for each in conditions)

    await stage.until("what the promotion waits for", waits)
    assert "it is being promoted" in await stage.stele("why", "demo-3")
    pod = await stage.api.get(PODS, stage.namespace, "demo-3")
    await stage.api.delete(PODS, stage.namespace, "demo-3", pod["metadata"]["uid"], grace_seconds=0)
    await stage.until_converged(4)

    async def is_data() -> bool:
        return not await is_lite()

    await stage.until("a data member", is_data)
    await stage.api.patch_spec(MEMBERS, stage.namespace, "demo-3", {"lite": True})
    await stage.until("a lite member again", is_lite)
    assert all(3 not in row.members for row in (await stage.rows()).rows)
