"""The topology domains (zone, rack, ...) of the nodes that members run on.

A member without a pod keeps its last domain. Nodes are cluster-scoped, so reading them needs a ClusterRole;
without it planning treats all members as in one domain, and the status says so.
"""

from collections.abc import Iterable, Mapping

from stele.adapters.kubernetes.api import NODES, Api, NotFound
from stele.errors import Refused, SteleError

REFRESH_SECONDS = 300.0
"""Labels of nodes rarely change."""

Labels = Mapping[str, str]


class Nodes:
    """Labels of the nodes that were requested."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._labels: dict[str, tuple[float, Labels]] = {}
        self._refused = ""

    async def refresh(self, names: Iterable[str], now: float) -> None:
        """Read nodes that are new or were read long ago; failed reads are retried later."""
        for name in sorted({*names}):
            read = self._labels.get(name)
            if read is not None and now - read[0] < REFRESH_SECONDS:
                continue
            try:
                stored = await self._api.get(NODES, "", name)
                self._labels[name], self._refused = (now, stored["metadata"].get("labels") or {}), ""
            except NotFound:
                self._labels[name] = (now, {})
            except Refused as error:
                self._labels[name], self._refused = (now, {}), f"nodes cannot be read: {error}"
            except SteleError:
                return

    def path(self, name: str, keys: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the node's domain for each key; None when it has not been read yet."""
        read = self._labels.get(name)
        return None if read is None else tuple(read[1].get(key, "") for key in keys)

    def problem(self, keys: tuple[str, ...], names: Iterable[str]) -> str:
        """Return why these keys cannot tell members apart; empty when they can."""
        if self._refused:
            return f"{self._refused}; the operator's ServiceAccount needs get on nodes (rbac.clusterScoped)"
        for name in sorted({*names}):
            for key in keys:
                if name in self._labels and key not in self._labels[name][1]:
                    return f"node {name} has no label {key}: its members count as one domain"
        return ""
