"""Rolling updates on a real API server: one whose pods cannot start stops, says why, and is taken back; and
nobody is told that an update is done before it began.
"""

import asyncio
import signal
from functools import partial
from typing import Any

import pytest

from stele.adapters.kubernetes.api import PODS
from tests.operator.test_operator import Stage
from tests.operator.test_operator_loss import until_condition

pytestmark = pytest.mark.control_plane

WRONG = "no:such"
UNKNOWN = {"name": "member", "image": WRONG, "imageID": "", "ready": False, "restartCount": 0}
NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
}
STATUSES: dict[str, dict[str, Any]] = {
    "ErrImagePull: no:such is not found": {
        "containerStatuses": [
            {
                **UNKNOWN,
                "state": {"waiting": {"reason": "ErrImagePull", "message": "no:such is not found"}},
            }
        ]
    },
    "CrashLoopBackOff: OOMKilled, exit code 137": {
        "containerStatuses": [
            {
                **UNKNOWN,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            }
        ]
    },
    "Unschedulable: 0/3 nodes are available: 3 Insufficient memory.": {"conditions": [NO_ROOM]},
}


async def pods(stage: Stage) -> dict[str, tuple[str, str]]:
    """UID and image of each member's pod."""
    found = await stage.api.list(PODS, stage.namespace, "stele.dev/component=member")
    return {
        each["metadata"]["name"]: (each["metadata"]["uid"], each["spec"]["containers"][0]["image"])
        for each in found
    }


@pytest.mark.parametrize("text", STATUSES)
async def test_a_revision_that_cannot_start_stops_at_the_first_member_and_is_taken_back(
    stage: Stage, text: str
) -> None:
    await stage.until_converged(3)
    before = await pods(stage)

    def cannot_start(pod: dict[str, Any]) -> dict[str, Any] | None:
        wrong = pod["spec"]["containers"][0]["image"] == WRONG
        return {"phase": "Pending", **STATUSES[text]} if wrong else None

    stage.kubelet.cannot_start = cannot_start
    await stage.change_spec(images={"member": WRONG})
    await until_condition(stage, "Stalled", "True", "UpdateFailed")
    conditions = {each["type"]: each for each in (await stage.cluster())["status"]["conditions"]}
    assert f"demo-2 does not come back after its restart: {text}" in conditions["Stalled"]["message"]
    assert "kubectl stele rollout undo demo" in conditions["Stalled"]["message"]
    assert conditions["Available"]["status"] == "True"
    now = await pods(stage)
    assert now["demo-2"][1] == WRONG
    assert {name: now[name] for name in ("demo-0", "demo-1")} == {
        name: before[name] for name in ("demo-0", "demo-1")
    }
    await stage.stele("rollout", "undo", "demo")
    await until_condition(stage, "Stalled", "False", "AsDesired")
    await stage.until_converged(3)
    assert {image for _, image in (await pods(stage)).values()} == {"member"}


async def test_a_new_member_with_a_wrong_image_starts_once_it_is_corrected(stage: Stage) -> None:
    await stage.until_converged(3)
    before = await pods(stage)

    def cannot_start(pod: dict[str, Any]) -> dict[str, Any] | None:
        wrong = pod["spec"]["containers"][0]["image"] == WRONG
        return {"phase": "Pending", **STATUSES["ErrImagePull: no:such is not found"]} if wrong else None

    stage.kubelet.cannot_start = cannot_start
    await stage.change_spec(members=4, images={"member": WRONG}, updateStrategy={"paused": True})

    async def lacks_image() -> bool:
        return (await pods(stage)).get("demo-3", ("", ""))[1] == WRONG

    await stage.until("demo-3", lacks_image)
    await stage.change_spec(images={"member": "member"})
    await stage.until_converged(4)
    now = await pods(stage)
    assert now["demo-3"][1] == "member"
    assert {name: now[name] for name in before} == before, "the others were never outdated for long"


async def has_told(lines: list[str]) -> bool:
    return bool(lines)


async def test_rollout_status_waits_for_a_restart_that_the_operator_has_not_seen(stage: Stage) -> None:
    await stage.until_converged(3)
    before = await pods(stage)
    stage.operator.send(signal.SIGSTOP)
    told = await stage.stele("rollout", "restart", "demo")
    assert told == "demo: members are restarted one after the other"
    lines: list[str] = []
    waits = asyncio.create_task(stage.stele("rollout", "status", "demo", lines=lines))
    await stage.until("its first look", partial(has_told, lines))
    done, _ = await asyncio.wait([waits], timeout=3)
    assert not done
    stage.operator.send(signal.SIGCONT)
    told = await asyncio.wait_for(waits, 120)
    now = await pods(stage)
    assert all(now[name][0] != uid for name, (uid, _) in before.items()), told
    assert "the operator has not seen stele.dev/restartedAt" in told
    assert told.endswith("demo: 3 of 3 members are as the spec says (image member)")


async def test_rollout_status_waits_for_the_operator_of_an_upgrade(stage: Stage) -> None:
    await stage.until_converged(3)
    lines: list[str] = []
    status = stage.stele("rollout", "status", "demo", "--image", "upgraded", lines=lines)
    waits = asyncio.create_task(status)
    await stage.until("its first look", partial(has_told, lines))
    done, _ = await asyncio.wait([waits], timeout=3)
    assert not done, "the operator of before says that all is done"
    assert await stage.operator.end() == 0
    stage.operator.env["STELE_MEMBER_IMAGE"] = "upgraded"
    await stage.operator.start()
    told = await waits
    assert {image for _, image in (await pods(stage)).values()} == {"upgraded"}, told
    assert "demo: the operator wants members of member, not of upgraded yet" in told


@pytest.mark.long
async def test_rollout_status_says_that_users_delete_the_pods(stage: Stage) -> None:
    await stage.until_converged(3)
    await stage.change_spec(updateStrategy={"type": "OnDelete"})
    told = await stage.stele("rollout", "restart", "demo")
    why = "spec.updateStrategy.type is OnDelete: delete their pods one by one"
    assert told == f"demo: no member is restarted by itself: {why}"
    before = await pods(stage)

    async def says_why() -> bool:
        return why in await stage.stele("rollout", "status", "demo", "--no-watch")

    await stage.until("the reason", says_why)
    with pytest.raises(AssertionError, match=f"HELD_BACK: demo: no member is restarted by itself: {why}"):
        await stage.stele("rollout", "status", "demo")
    for number, (name, (uid, _)) in enumerate(before.items(), 1):
        await stage.api.delete(PODS, stage.namespace, name, uid)

        async def updated(number: int = number) -> bool:
            return bool((await stage.cluster())["status"]["members"]["updated"] == number)

        await stage.until(f"{number} updated members", updated)
    await stage.stele("rollout", "status", "demo")
    now = await pods(stage)
    assert all(now[name][0] != uid for name, (uid, _) in before.items())
