"""Kubernetes Events of a cluster, its members and plans, as `kubectl describe` shows them.

`kubectl describe` shows the Events that involve an object, and not those that are related to it. So what is
about a member or a plan is posted twice: for it and for the cluster, each related to the other.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from stele.adapters.kubernetes.api import CLUSTERS, EVENTS, Api, Kind, NotFound
from stele.core.control.state import AboutPlan, ClusterEvent, Subject
from stele.model import TabletCluster

EVENTS_MAX = 20
"""Events posted per tick, each for the cluster and for what it is about; the log has all of them."""

WAITING_MAX = 20
"""Events that wait for the object of their plan; of more only the latest are posted."""

REMEMBERED_MAX = 200
"""Posted Events that are counted when they are repeated; of others another one is made."""

EVENT_REPEAT_SECONDS = 600.0
"""Seconds in which the same Event is counted rather than posted again."""

MESSAGE_LETTERS_MAX = 1000

_numbers = itertools.count(1)

Reference = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Posted:
    """One Event object: how often it was seen, and when last."""

    name: str
    count: int
    last: datetime


class EventRecorder:
    """Posts the Events of one cluster. `find` returns a reference to what an Event is about, None while
    there is no such object."""

    def __init__(
        self,
        api: Api,
        find: Callable[[Subject], Reference | None] = lambda subject: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._find, self._now = api, find, now
        self._posted: OrderedDict[tuple[object, ...], _Posted] = OrderedDict()
        self._waiting: deque[ClusterEvent] = deque(maxlen=WAITING_MAX)

    async def post(self, cluster: TabletCluster, events: Sequence[ClusterEvent]) -> None:
        """Post at most EVENTS_MAX of them for the cluster, and for what they are about.

        Those about plans without an object wait for `post_waiting`.
        """
        own = _of_cluster(cluster)
        for each in events[:EVENTS_MAX]:
            subject = None if each.about is None else self._find(each.about)
            await self._note(own, subject, each)
            if subject is not None:
                await self._note(subject, own, each)
            elif isinstance(each.about, AboutPlan):
                self._waiting.append(each)

    async def post_waiting(self, cluster: TabletCluster) -> None:
        """Post what waits for plans, whose objects have been made by now, and forget the rest."""
        own = _of_cluster(cluster)
        while self._waiting:
            each = self._waiting.popleft()
            subject = None if each.about is None else self._find(each.about)
            if subject is not None:
                await self._note(subject, own, each)

    async def _note(self, involved: Reference, related: Reference | None, event: ClusterEvent) -> None:
        """Count the Event that was posted a moment ago, or post another one."""
        message, now = event.message[:MESSAGE_LETTERS_MAX], self._now()
        key = involved["uid"], event.reason, message, event.warning
        known, posted = self._posted.pop(key, None), None
        if known is not None and now - known.last <= timedelta(seconds=EVENT_REPEAT_SECONDS):
            posted = await self._count(involved, known, now)
        if posted is None:
            body = event_of(involved, related, event, now)
            await self._api.create(EVENTS, involved["namespace"], body)
            posted = _Posted(body["metadata"]["name"], 1, now)
        self._posted[key] = posted
        while len(self._posted) > REMEMBERED_MAX:
            self._posted.popitem(last=False)

    async def _count(self, involved: Reference, known: _Posted, now: datetime) -> _Posted | None:
        """Raise the count of a posted Event; None when it is gone."""
        counted = _Posted(known.name, known.count + 1, now)
        fields = {"count": counted.count, "lastTimestamp": _text(now)}
        try:
            await self._api.merge(EVENTS, involved["namespace"], known.name, fields)
        except NotFound:
            return None
        return counted


async def post(api: Api, cluster: TabletCluster, events: Sequence[ClusterEvent]) -> None:
    """Create the Events of the cluster, without counting what is repeated."""
    await EventRecorder(api).post(cluster, events)


def _of_cluster(cluster: TabletCluster) -> Reference:
    meta = cluster.metadata
    return reference_to(CLUSTERS, meta.namespace, meta.name, meta.uid)


def reference_to(kind: Kind, namespace: str, name: str, uid: str) -> Reference:
    """Return a reference to an object, for Events."""
    return {"apiVersion": kind.api, "kind": kind.kind, "name": name, "namespace": namespace, "uid": uid}


def event_of(
    involved: Reference, related: Reference | None, event: ClusterEvent, now: datetime
) -> dict[str, Any]:
    """Return the Event object; its message is cut at MESSAGE_LETTERS_MAX."""
    moment = _text(now)
    name = f"{involved['name']}.{int(now.timestamp() * 1_000_000):x}{next(_numbers):x}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": involved["namespace"]},
        "involvedObject": involved,
        **({} if related is None else {"related": related}),
        "reason": event.reason,
        "message": event.message[:MESSAGE_LETTERS_MAX],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": "stele-operator"},
        "reportingComponent": "stele-operator",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
