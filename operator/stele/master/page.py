"""What the page shows, from the supervisor's memory: members are not asked, so it costs them nothing."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, REBALANCES, Kind
from stele.master.cache import Object
from stele.master.supervisor import Supervisor
from stele.model import TabletCluster, TabletMember, TabletRebalance
from stele.model.common import Resource
from stele.web.facts import Facts, Key

R = TypeVar("R", bound=Resource)


class SupervisorFacts:
    """Implements web.facts.Source. `refusal` returns why this process knows nothing, or nothing."""

    def __init__(self, supervisor: Supervisor, refusal: Callable[[], str] = str) -> None:
        self._supervisor, self._refusal = supervisor, refusal
        self._read: dict[tuple[Kind, str, str], tuple[Object, Resource | None]] = {}

    def refusal(self) -> str:
        """Implement Source."""
        return self._refusal()

    def clusters(self) -> Sequence[Key]:
        """Implement Source."""
        metas = (each["metadata"] for each in self._supervisor.cache.all(CLUSTERS))
        return sorted((meta["namespace"], meta["name"]) for meta in metas)

    def facts(self, key: Key) -> Facts | None:
        """Implement Source."""
        state = self._supervisor.states().get(key)
        before, self._read = self._read, {}
        clusters = [
            each
            for each in self._all(before, CLUSTERS, key[0], TabletCluster)
            if each.metadata.name == key[1]
        ]
        if state is None or not clusters:
            return None
        members = [
            each for each in self._all(before, MEMBERS, key[0], TabletMember) if each.spec.cluster == key[1]
        ]
        plans = [
            each
            for each in self._all(before, REBALANCES, key[0], TabletRebalance)
            if each.spec.cluster == key[1]
        ]
        members.sort(key=lambda each: each.spec.index)
        return Facts(state, clusters[0], members, plans, time.monotonic())

    def _all(
        self,
        before: dict[tuple[Kind, str, str], tuple[Object, Resource | None]],
        kind: Kind,
        namespace: str,
        model: type[R],
    ) -> list[R]:
        """Return the objects of a kind that can be read; each version of one is parsed once."""
        found = []
        for stored in self._supervisor.cache.all(kind):
            if stored["metadata"]["namespace"] != namespace:
                continue
            name = kind, namespace, stored["metadata"]["name"]
            known = before.get(name)
            if known is None or known[0] is not stored:
                read = model.read(stored)
                known = stored, read if isinstance(read, model) else None
            self._read[name] = known
            if isinstance(known[1], model):
                found.append(known[1])
        return found
