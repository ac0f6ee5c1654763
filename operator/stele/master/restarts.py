"""Restarts of members' pods, noted at their TabletMember first, so that the next master continues them."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from stele.adapters.kubernetes.api import MEMBERS, PODS, Api
from stele.core.control.failure_detector import NEVER
from stele.master.cache import Cache
from stele.master.maintenance import seconds_at

RESTARTING_UNTIL = "stele.dev/restarting-until"
"""Annotation of a TabletMember that the operator restarts: the time by which it should be back."""

Object = dict[str, Any]


class Restarts:
    """Marks of one cluster's members. `clock_at` converts monotonic seconds to the time of day."""

    def __init__(self, api: Api, cache: Cache, clock_at: Callable[[float], datetime]) -> None:
        self._api, self._cache, self._clock_at = api, cache, clock_at

    async def begin(self, member: Object, pod_uid: str, keep_seconds: float) -> None:
        """Note the restart, then delete the pod with this UID and no other.

        The place is kept for so long, or until the time that was noted before.
        """
        meta, until = member["metadata"], asyncio.get_running_loop().time() + keep_seconds
        noted = self.until_seconds(member)
        at = self._clock_at(max(until, noted or NEVER))
        await self._annotate(member, at.isoformat(timespec="seconds"))
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

    def until_seconds(self, member: Object) -> float | None:
        """Return the time that was noted; None when none was."""
        time = (member["metadata"].get("annotations") or {}).get(RESTARTING_UNTIL)
        return None if time is None else seconds_at(time, self._clock_at)
