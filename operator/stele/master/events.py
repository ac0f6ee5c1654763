"""Kubernetes Events of a cluster, as `kubectl describe` shows them."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from stele.adapters.kubernetes.api import EVENTS, Api
from stele.core.control.state import ClusterEvent
from stele.model import API_VERSION, TabletCluster

EVENTS_MAX = 20
"""Events posted per tick; the log has all of them."""

MESSAGE_LETTERS_MAX = 1000

_numbers = itertools.count(1)


async def post(api: Api, cluster: TabletCluster, events: Sequence[ClusterEvent]) -> None:
    """Create the Event objects, at most EVENTS_MAX of them."""
    for each in events[:EVENTS_MAX]:
        await api.create(EVENTS, cluster.metadata.namespace, event_of(cluster, each, datetime.now(UTC)))


def event_of(cluster: TabletCluster, event: ClusterEvent, now: datetime) -> dict[str, Any]:
    """Return the Event object; its message is cut at MESSAGE_LETTERS_MAX."""
    meta = cluster.metadata
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    name = f"{meta.name}.{int(now.timestamp() * 1_000_000):x}{next(_numbers):x}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": meta.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": "TabletCluster",
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        },
        "reason": event.reason,
        "message": event.message[:MESSAGE_LETTERS_MAX],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": "stele-operator"},
        "reportingComponent": "stele-operator",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
