"""A rolling update whose pods cannot start, on a real API server: it stops, says why, and is taken back."""

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
