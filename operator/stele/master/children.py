"""The child objects of one cluster, changed and deleted only while the cluster owns them.

An object with the name of a child that has another owner is left unchanged and reported by `taken`; one that
is being deleted, by `leaving`. What the API server refuses is reported by `refused`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from stele.adapters.kubernetes.api import AlreadyExists, Api, Kind
from stele.errors import BadInput, Refused
from stele.master.applied import over
from stele.master.cache import Cache
from stele.model.ownership import belongs_to, leaves

Object = dict[str, Any]

RETRY_SECONDS = 10.0
"""Seconds until an object that the API server refused is tried again as it was."""


class Refusal(NamedTuple):
    """An object that the API server refused, and why."""

    body: Object
    why: str
    at_seconds: float


class Children:
    """Each call names the owner: the UID of the cluster, or for a pod that of its member."""

    def __init__(self, api: Api, cache: Cache, namespace: str) -> None:
        self._api, self._cache, self._namespace = api, cache, namespace
        self._written: dict[str, Object] = {}
        self._obstacles: dict[str, bool] = {}
        self._obstacles_before: dict[str, bool] = {}
        self._refusals: dict[str, str] = {}
        self._refusals_before: dict[str, str] = {}
        self._refused: dict[str, Refusal] = {}
        self._now_seconds = float("-inf")

    def begin_round(self, now_seconds: float) -> None:
        """Start a new round: an obstacle is reported until two rounds in a row did not meet it."""
        self._now_seconds = now_seconds
        self._obstacles_before, self._obstacles = self._obstacles, {}
        self._refusals_before, self._refusals = self._refusals, {}

    def refused(self) -> dict[str, str]:
        """Return why the API server refuses objects, by their kind and name."""
        return self._refusals_before | self._refusals

    def taken(self) -> tuple[str, ...]:
        """Return the kind and name of objects that have another owner."""
        return self._names(leaving=False)

    def leaving(self) -> tuple[str, ...]:
        """Return the kind and name of objects whose cluster or member is deleted, or that are being
        deleted."""
        return self._names(leaving=True)

    def _names(self, *, leaving: bool) -> tuple[str, ...]:
        obstacles = self._obstacles_before | self._obstacles
        return tuple(sorted(name for name, leaves in obstacles.items() if leaves is leaving))

    def find(self, kind: Kind, name: str, owner: str) -> Object | None:
        """Return the cached object if `owner` owns it."""
        stored = self._cache.get(kind, self._namespace, name)
        return stored if stored is not None and belongs_to(stored, owner) else None

    async def ensure(self, kind: Kind, body: Object, owner: str) -> Object | None:
        """Return our object, created when the cache lacks it; None when its name is taken."""
        stored = self._cache.get(kind, self._namespace, body["metadata"]["name"])
        return self._own(kind, body, stored, owner) if stored else await self.create(kind, body, owner)

    async def create(self, kind: Kind, body: Object, owner: str) -> Object | None:
        """Create the object, or return ours if it exists; None when its name is taken."""
        try:
            with self._noting_refusal(kind, body):
                stored = await self._api.create(kind, self._namespace, body)
        except AlreadyExists:
            stored = await self._api.get(kind, self._namespace, body["metadata"]["name"])
        own = self._own(kind, body, stored, owner)
        if own is not None:
            self._cache.put(kind, own)
        return own

    async def apply(self, kind: Kind, body: Object, owner: str) -> None:
        """Create our object, or overwrite the fields in `body`, unless this process wrote the same last.

        What was refused is reported, and tried again after a while or once `body` is another.
        """
        name = f"{kind.kind} {body['metadata']['name']}"
        refused = self._refused.get(name)
        if refused and refused.body == body and self._now_seconds - refused.at_seconds < RETRY_SECONDS:
            self._refusals[name] = refused.why
            return
        self._refused.pop(name, None)
        try:
            with self._noting_refusal(kind, body):
                await self._apply(kind, body, owner)
        except (BadInput, Refused):
            self._refused[name] = Refusal(body, self._refusals[name], self._now_seconds)
            raise

    async def _apply(self, kind: Kind, body: Object, owner: str) -> None:
        name = body["metadata"]["name"]
        if self._written.get(f"{kind.plural}/{name}") == body:
            return
        stored = await self._api.find(kind, self._namespace, name)
        if stored is None:
            await self._api.create(kind, self._namespace, body)
        elif self._own(kind, body, stored, owner) is None:
            return
        else:
            await self._api.replace(kind, self._namespace, over(stored, body))
        self._written[f"{kind.plural}/{name}"] = body

    def look_again(self, kind: Kind) -> None:
        """Have `apply` write each object of a kind once more, in case others changed or deleted it."""
        self._written = {
            name: body for name, body in self._written.items() if not name.startswith(f"{kind.plural}/")
        }

    async def withdraw(self, kind: Kind, name: str, owner: str) -> None:
        """Delete our object, of a kind that is not cached, if it exists."""
        self._written.pop(f"{kind.plural}/{name}", None)
        with self._noting_refusal(kind, {"metadata": {"name": name}}):
            stored = await self._api.find(kind, self._namespace, name)
            if stored is not None and belongs_to(stored, owner):
                await self._api.delete(kind, self._namespace, name, stored["metadata"]["uid"])

    async def replace(self, kind: Kind, stored: Object, body: Object) -> None:
        """Write `body` over our cached object, unless it is the same or the object has changed."""
        if body != stored:
            self._cache.put(kind, await self._api.replace(kind, self._namespace, body))

    async def delete(self, kind: Kind, name: str, owner: str) -> None:
        """Delete our object, unless that has begun already."""
        stored = self.find(kind, name, owner)
        if stored is not None and not stored["metadata"].get("deletionTimestamp"):
            await self._api.delete(kind, self._namespace, name, stored["metadata"]["uid"])

    @contextmanager
    def _noting_refusal(self, kind: Kind, body: Object) -> Iterator[None]:
        try:
            yield
        except (BadInput, Refused) as error:
            self._refusals[f"{kind.kind} {body['metadata']['name']}"] = str(error.args[0])
            raise

    def _own(self, kind: Kind, body: Object, stored: Object, owner: str) -> Object | None:
        """Return `stored` if `owner` owns it; otherwise note the obstacle."""
        if belongs_to(stored, owner):
            return stored
        going = leaves(stored, body["metadata"].get("ownerReferences", ()))
        self._obstacles[f"{kind.kind} {stored['metadata']['name']}"] = going
        return None
