"""The nodes that members run on: their topology domains (zone, rack, ...), and whether they are lost.

A member without a pod keeps its last domain. Nodes are cluster-scoped, so reading them needs a ClusterRole;
without it planning treats all members as in one domain, no node counts as lost, and the status says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stele.adapters.kubernetes.api import NODES, Api, NotFound
from stele.core.control.failure_detector import NodeState
from stele.errors import Refused, SteleError

REFRESH_SECONDS = 300.0
"""Labels of nodes rarely change."""

DOUBT_SECONDS = 5.0
"""Seconds between two reads of a node whose member does not answer."""

OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"

Labels = Mapping[str, str]
Annotations = Mapping[str, str]


@dataclass(frozen=True)
class Read:
    """What was read of a node, and when. A node that is gone keeps its last labels, not its annotations."""

    at_seconds: float
    labels: Labels
    state: NodeState
    annotations: Annotations


class Nodes:
    """The nodes that were requested."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes: dict[str, Read] = {}
        self._refused = ""

    async def refresh(self, names: Iterable[str], now: float, seconds: float = REFRESH_SECONDS) -> None:
        """Read nodes that are new or were read that long ago; failed reads are retried later."""
        for name in sorted({*names}):
            before = self.read(name)
            if before is not None and now - before.at_seconds < seconds:
                continue
            labels, annotations = ({}, {}) if before is None else (before.labels, before.annotations)
            try:
                stored = await self._api.get(NODES, "", name)
                meta, state = stored["metadata"], state_of(stored)
                labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
                self._refused = ""
            except NotFound:
                state, annotations = NodeState.GONE, {}
            except Refused as error:
                state, self._refused = NodeState.UNKNOWN, f"nodes cannot be read: {error}"
            except SteleError:
                return
            self._nodes[name] = Read(now, labels, state, annotations)

    def read(self, name: str) -> Read | None:
        """Return what was last read of a node; None before."""
        return self._nodes.get(name)

    def state(self, name: str) -> NodeState:
        """Return the node's state when it was last read."""
        read = self.read(name)
        return NodeState.UNKNOWN if read is None else read.state

    def annotations(self, name: str) -> Annotations:
        """Return those of the node when it was last read; none before."""
        read = self.read(name)
        return {} if read is None else read.annotations

    def path(self, name: str, keys: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the node's domain for each key; None when it has not been read yet."""
        read = self.read(name)
        return None if read is None else tuple(read.labels.get(key, "") for key in keys)

    def unreadable(self) -> str:
        """Return why nodes cannot be read, and what to do; empty when they can."""
        needed = "the operator's ServiceAccount needs get on nodes (rbac.clusterScoped)"
        return f"{self._refused}; {needed}" if self._refused else ""

    def problem(self, keys: tuple[str, ...], names: Iterable[str]) -> str:
        """Return why these keys cannot tell members apart; empty when they can."""
        if self._refused:
            return self.unreadable()
        for name in sorted({*names}):
            for key in keys:
                if name in self._nodes and key not in self._nodes[name].labels:
                    return f"node {name} has no label {key}: its members count as one domain"
        return ""


def state_of(node: Mapping[str, Any]) -> NodeState:
    """Return what a Node object says of its node."""
    if any(taint["key"] == OUT_OF_SERVICE_TAINT for taint in (node.get("spec") or {}).get("taints") or []):
        return NodeState.OUT_OF_SERVICE
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return NodeState.READY if ready else NodeState.NOT_READY
