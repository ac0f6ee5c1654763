"""When what a pod's status shows of the container began, by its node's clock."""

from datetime import UTC, datetime
from typing import Any

import pytest

from stele.master.kubernetes import pod_facts

EARLIER, LATER = "2030-01-01T12:00:05Z", "2030-01-01T12:00:09Z"
ENDED_LATER = {"terminated": {"finishedAt": LATER}}


def shown(state: dict[str, Any], last: dict[str, Any]) -> str:
    """The time in the form in which the kubelet wrote it; empty when there is none."""
    container = {"name": "member", "containerID": "c", "state": state, "lastState": last}
    pod = {"metadata": {"uid": "pod"}, "status": {"containerStatuses": [container]}}
    since = pod_facts(pod).since_seconds
    return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if since else ""


@pytest.mark.parametrize(
    ("state", "last", "since"),
    [
        # The node's clock was set back after the process before this one ended.
        ({"running": {"startedAt": EARLIER}}, ENDED_LATER, EARLIER),
        ({"running": {"startedAt": None}}, ENDED_LATER, ""),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED_LATER, LATER),
        ({"terminated": {"startedAt": "x", "finishedAt": EARLIER}}, {}, EARLIER),
        ({"terminated": {"finishedAt": None}}, {}, ""),
        ({"waiting": {}}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_the_start_of_what_runs_counts_or_the_last_end(
    state: dict[str, Any], last: dict[str, Any], since: str
) -> None:
    assert shown(state, last) == since
