"""What a pod says of the process in it, and where it runs."""

from datetime import datetime
from typing import Any

from stele.adapters.json_lines import decode
from stele.core.control.failure_detector import PodFacts

Object = dict[str, Any]

STARTING_REASONS = ("ContainerCreating", "PodInitializing")
"""Reasons of a waiting container that are not problems."""

LAST_LINE_LETTERS_MAX = 500
"""What a message shows of the last line that a process logged."""


def pod_facts(pod: Object) -> PodFacts:
    """Return what the pod reports about the member's process."""
    meta, status = pod["metadata"], pod.get("status") or {}
    container: Object = next((c for c in status.get("containerStatuses") or [] if c["name"] == "member"), {})
    state = container.get("state") or {}
    waiting_after = "waiting" in state and bool((container.get("lastState") or {}).get("terminated"))
    ended = "terminated" in state or waiting_after or has_ended(pod)
    started = container.get("containerID", "")
    process = f"{meta['uid']}/{container.get('restartCount', 0)}/{started}" if started else ""
    address = str(status.get("podIP", ""))
    terminating = bool(meta.get("deletionTimestamp"))
    since, scheduled = _since_seconds(container), bool(node_of(pod))
    return PodFacts(
        meta["uid"], address, process, bool(ended), terminating, since, problem_of(pod), scheduled
    )


def _since_seconds(container: Object) -> float:
    """Return when the container's present state began, see PodFacts.

    The end of the previous process is no evidence about the running one: the clock may have been set back in
    between.
    """
    state = container.get("state") or {}
    ended = (container.get("lastState") or {}) if "waiting" in state else state
    time = (state.get("running") or {}).get("startedAt") or (ended.get("terminated") or {}).get("finishedAt")
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def has_ended(pod: Object) -> bool:
    """Return whether none of the pod's containers runs, or will be started again."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def node_of(pod: Object | None) -> str:
    """Return the node that a pod is scheduled on; empty when it is not scheduled."""
    return "" if pod is None else str(pod.get("spec", {}).get("nodeName") or "")


def restarts_of(pod: Object | None) -> int:
    listed = [] if pod is None else (pod.get("status") or {}).get("containerStatuses") or []
    return sum(int(each.get("restartCount", 0)) for each in listed if each["name"] == "member")


def ready_address(pod: Object) -> str:
    """Return the pod's address; empty while it is not ready, or is being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return ""
    conditions = pod.get("status", {}).get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return str(pod["status"].get("podIP", "")) if ready else ""


def problem_of(pod: Object) -> str:
    """Return why Kubernetes cannot start a pod; empty while it says nothing."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting and waiting.get("reason") not in (*STARTING_REASONS, None):
            return f"{waiting['reason']}: {_last_end(container)}{waiting.get('message', '')}".rstrip(":; ")
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _last_end(container: Object) -> str:
    """Return how the container's last process ended, such as OOMKilled with exit code 137, and its last
    words."""
    end = (container.get("lastState") or {}).get("terminated")
    if end is None:
        return ""
    said = _last_line(end.get("message") or "")
    return f"{end.get('reason', 'ended')}, exit code {end.get('exitCode')}; {said}{'; ' if said else ''}"


def _last_line(log: str) -> str:
    """Return the last line of the end of a log, in which a process says why it ends; only text that shows."""
    last = (log.strip().splitlines() or [""])[-1]
    fields = decode(last)
    said = last if fields is None else fields["message"]
    line = "".join(each if each.isprintable() else " " for each in said).strip()
    return line if len(line) <= LAST_LINE_LETTERS_MAX else line[:LAST_LINE_LETTERS_MAX] + "..."
