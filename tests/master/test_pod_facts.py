"""What a pod's status shows: when the state of its container began, and why it cannot start."""

from datetime import UTC, datetime
from typing import Any

import pytest

from stele.master.pods import pod_facts, problem_of

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


NO_IMAGE = {"reason": "ErrImagePull", "message": "no:such is not found"}
CRASHES = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}


def ended_with(message: str) -> dict[str, Any]:
    """A process that ends at once, with the end of its log as the kubelet takes it."""
    terminated = {"reason": "Error", "exitCode": 1, "message": message}
    return {"containerStatuses": [{"state": {"waiting": CRASHES}, "lastState": {"terminated": terminated}}]}


NO_ROOM = "0/3 nodes are available: 3 Insufficient memory."


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"containerStatuses": [{"state": {"waiting": NO_IMAGE}}]}, "ErrImagePull: no:such is not found"),
        (
            {
                "containerStatuses": [
                    {
                        "state": {"waiting": CRASHES},
                        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                    }
                ]
            },
            "CrashLoopBackOff: OOMKilled, exit code 137; back-off 10s restarting failed container",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": NO_ROOM,
                    }
                ]
            },
            f"Unschedulable: {NO_ROOM}",
        ),
        (
            ended_with("x\nstele-member: UNKNOWN_FORMAT: the volume /data was used by a newer build\n"),
            "CrashLoopBackOff: Error, exit code 1; stele-member: UNKNOWN_FORMAT: the volume /data was used "
            "by a newer build; back-off 10s restarting failed container",
        ),
        (
            ended_with(
                'x\n{"timestamp":"t","level":"CRITICAL","logger":"stele.process","message":"LOCKED: no"}\n'
            ),
            "CrashLoopBackOff: Error, exit code 1; LOCKED: no; back-off 10s restarting failed container",
        ),
        (
            ended_with("a\x1b[31mb\x00c"),
            "CrashLoopBackOff: Error, exit code 1; a [31mb c; back-off 10s restarting failed container",
        ),
        (
            ended_with("x" * 2048),
            f"CrashLoopBackOff: Error, exit code 1; {'x' * 500}...; back-off 10s restarting failed container",
        ),
        (
            ended_with(" \n\n"),
            "CrashLoopBackOff: Error, exit code 1; back-off 10s restarting failed container",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "InvalidImageName"}}}]}, "InvalidImageName"),
        ({"containerStatuses": [{"state": {"running": {}}}]}, ""),
        ({}, ""),
    ],
)
def test_why_a_pod_cannot_start(status: dict[str, Any], problem: str) -> None:
    assert problem_of({"status": status}) == problem
