"""Restarts of members' pods, noted at their TabletMember first, so that the next master continues them."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from stele.adapters.kubernetes.api import MEMBERS, PODS, Api
from stele.core.control.failure_detector import NEVER
from stele.master.cache import Cache

RESTARTING_UNTIL = "stele.dev/restarting-until"
"""Annotation of a TabletMember that the operator restarts: the time by which it should be back."""

MAINTENANCE_UNTIL = "stele.dev/maintenance-until"
"""Annotation that users set on a TabletMember, an RFC 3339 time: until then its place is kept."""

RESTART_SECONDS = 600.0
"""Seconds that a restarted member may take until it serves again; until then its place is kept."""

STARTING_REASONS = ("ContainerCreating", "PodInitializing")
"""Reasons of a waiting container that are not problems."""

Object = dict[str, Any]


class Restarts:
    """Marks of one cluster's members. `clock_at` converts monotonic seconds to the time of day."""

    def __init__(self, api: Api, cache: Cache, clock_at: Callable[[float], datetime]) -> None:
        self._api, self._cache, self._clock_at = api, cache, clock_at

    async def begin(self, member: Object, pod_uid: str) -> None:
        """Note the restart, then delete the pod with this UID and no other."""
        until = self._clock_at(asyncio.get_running_loop().time()) + timedelta(seconds=RESTART_SECONDS)
        await self._annotate(member, until.isoformat(timespec="seconds"))
        meta = member["metadata"]
        await self._api.delete(PODS, meta["namespace"], meta["name"], pod_uid)

    async def finish(self, member: Object) -> None:
        """Remove the note."""
        await self._annotate(member, None)

    async def _annotate(self, member: Object, value: str | None) -> None:
        """Set or remove the note, unless somebody changed the object meanwhile. Raises Conflict then."""
        meta = member["metadata"]
        annotations = dict(meta.get("annotations") or {})
        annotations.pop(RESTARTING_UNTIL, None)
        if value is not None:
            annotations[RESTARTING_UNTIL] = value
        body = {**member, "metadata": {**meta, "annotations": annotations}}
        self._cache.put(MEMBERS, await self._api.replace(MEMBERS, meta["namespace"], body))

    def seconds_of(self, annotations: Mapping[str, str], name: str) -> float | None:
        """Return an annotation's time in monotonic seconds; None when it is missing or no RFC 3339 time."""
        try:
            at = datetime.fromisoformat(annotations[name])
            return (at - self._clock_at(0.0)).total_seconds()
        except (KeyError, TypeError, ValueError):
            return None

    def kept_until_seconds(self, annotations: Mapping[str, str]) -> float:
        """Return until when a user has the member's place kept."""
        return self.seconds_of(annotations, MAINTENANCE_UNTIL) or NEVER


def problem_of(pod: Object) -> str:
    """Return why Kubernetes cannot start a pod; empty while it says nothing."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting and waiting.get("reason") not in (*STARTING_REASONS, None):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""
