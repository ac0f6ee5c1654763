"""The objects of one cluster: made, changed and deleted only while they are its own.

What has the name of one of them and belongs to somebody else is left as it is, and is told by `taken`; what
is about to go, by `leaving`.
"""

from typing import Any

from stele.adapters.kubernetes.api import AlreadyExists, Api, Kind
from stele.master.cache import Cache
from stele.model.ownership import belongs_to, leaves

Object = dict[str, Any]


class Children:
    """Each call names who owns the object: the UID of the cluster, or of one of its members for a pod."""

    def __init__(self, api: Api, cache: Cache, namespace: str) -> None:
        self._api, self._cache, self._namespace = api, cache, namespace
        self._written: dict[str, Object] = {}
        self._met: dict[str, bool] = {}
        self._met_before: dict[str, bool] = {}

    def next_look(self) -> None:
        """What is in the way is told until two looks in a row did not meet it."""
        self._met_before, self._met = self._met, {}

    def taken(self) -> tuple[str, ...]:
        """Kind and name of what belongs to somebody else."""
        return self._told(leaving=False)

    def leaving(self) -> tuple[str, ...]:
        """Kind and name of what belonged to a cluster or member that is gone, or is being deleted."""
        return self._told(leaving=True)

    def _told(self, *, leaving: bool) -> tuple[str, ...]:
        met = self._met_before | self._met
        return tuple(sorted(name for name, leaves in met.items() if leaves is leaving))

    def find(self, kind: Kind, name: str, owner: str) -> Object | None:
        """Our object as the cache has it."""
        stored = self._cache.get(kind, self._namespace, name)
        return stored if stored is not None and belongs_to(stored, owner) else None

    async def have(self, kind: Kind, body: Object, owner: str) -> Object | None:
        """Our object, made when there is none; None when its name is taken."""
        stored = self._cache.get(kind, self._namespace, body["metadata"]["name"])
        return self._own(kind, body, stored, owner) if stored else await self.make(kind, body, owner)

    async def make(self, kind: Kind, body: Object, owner: str) -> Object | None:
        """As `have`, without a look at the cache: it says what is there now."""
        try:
            stored = await self._api.create(kind, self._namespace, body)
        except AlreadyExists:
            stored = await self._api.get(kind, self._namespace, body["metadata"]["name"])
        found = self._own(kind, body, stored, owner)
        if found is not None:
            self._cache.put(kind, found)
        return found

    async def keep(self, kind: Kind, body: Object, owner: str) -> None:
        """Make it, or write what `body` names over it, unless this process wrote the same last."""
        name = body["metadata"]["name"]
        if self._written.get(f"{kind.plural}/{name}") == body:
            return
        stored = await self._api.find(kind, self._namespace, name)
        if stored is None:
            await self._api.create(kind, self._namespace, body)
        elif self._own(kind, body, stored, owner) is None:
            return
        else:
            await self._api.replace(kind, self._namespace, _over(stored, body))
        self._written[f"{kind.plural}/{name}"] = body

    async def delete(self, kind: Kind, name: str, owner: str) -> None:
        stored = self.find(kind, name, owner)
        if stored is not None and not stored["metadata"].get("deletionTimestamp"):
            await self._api.delete(kind, self._namespace, name, stored["metadata"]["uid"])

    def _own(self, kind: Kind, body: Object, stored: Object, owner: str) -> Object | None:
        """`stored` if it is ours; otherwise note what has the name of `body`."""
        if belongs_to(stored, owner):
            return stored
        going = leaves(stored, body["metadata"].get("ownerReferences", ()))
        self._met[f"{kind.kind} {stored['metadata']['name']}"] = going
        return None


def _over(stored: Object, body: Object) -> Object:
    """The stored object, of that version and no other, with what `body` names."""
    meta, ours = stored["metadata"], body["metadata"]
    labels = {**(meta.get("labels") or {}), **ours["labels"]}
    metadata = {**meta, "labels": labels, "ownerReferences": ours["ownerReferences"]}
    return {**stored, "metadata": metadata, "spec": {**stored["spec"], **body["spec"]}}
