"""When what a pod's status shows of the container began, by its node's clock."""

from datetime import UTC, datetime
from typing import Any

import pytest

from stele.master.kubernetes import pod_facts

EARLIER, LATER = "2030-01-01T12:00:05Z", "2030-01-01T12:00:09Z"
ENDED_LATER = {"terminated": {"finishedAt": LATER}}


def shown(state: dict[str, Any], last: dict[str, Any] | None = None) -> str:
    """The time in the form in which the kubelet wrote it; empty when there is none."""
    container = {"name": "member", "containerID": "c", "state": state, "lastState": last or {}}
    pod = {"metadata": {"uid": "pod"}, "status": {"containerStatuses": [container]}}
    since = pod_facts(pod).since_seconds
    return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if since else ""


def test_of_a_running_container_only_its_start_counts() -> None:
    """Its node's clock was set back after the process before it ended."""
    assert shown({"running": {"startedAt": EARLIER}}, ENDED_LATER) == EARLIER
    assert shown({"running": {"startedAt": None}}, ENDED_LATER) == ""


def test_of_a_waiting_container_the_last_end_counts() -> None:
    assert shown({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED_LATER) == LATER


def test_of_an_ended_container_its_own_end_counts() -> None:
    assert shown({"terminated": {"startedAt": "x", "finishedAt": EARLIER}}, ENDED_LATER) == EARLIER
    assert shown({"terminated": {"finishedAt": None}}, ENDED_LATER) == ""


@pytest.mark.parametrize("state", [{}, {"waiting": {}}])
def test_without_a_start_and_an_end_there_is_none(state: dict[str, Any]) -> None:
    assert shown(state) == ""
