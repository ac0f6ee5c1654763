"""Where members are: the domains (zone, rack, ...) of the nodes that their pods run on.

A member without a pod keeps the place that it had last. Nodes belong to no namespace, so reading them needs a
ClusterRole; without it members are planned for as if all were in one place, and the status says so.
"""

from collections.abc import Iterable, Mapping

from stele.adapters.kubernetes.api import NODES, Api, NotFound
from stele.errors import Refused, SteleError

REFRESH_SECONDS = 300.0
"""Labels of nodes hardly ever change."""

Labels = Mapping[str, str]


class Nodes:
    """Labels of the nodes that were asked for."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._labels: dict[str, tuple[float, Labels]] = {}
        self._refused = ""

    async def refresh(self, names: Iterable[str], now: float) -> None:
        """Read those that are new or were read long ago; what cannot be read now is asked for again later."""
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
        """The node's domain for each key, None while it was not read yet."""
        read = self._labels.get(name)
        return None if read is None else tuple(read[1].get(key, "") for key in keys)

    def problem(self, keys: tuple[str, ...], names: Iterable[str]) -> str:
        """Why members cannot be told apart by these keys, empty when they can."""
        if self._refused:
            return f"{self._refused}; the operator's ServiceAccount needs get on nodes (rbac.clusterScoped)"
        for name in sorted({*names}):
            for key in keys:
                if name in self._labels and key not in self._labels[name][1]:
                    return f"node {name} has no label {key}: its members count as one place of their own"
        return ""
