"""The catalog of keyspaces in a ConfigMap, written by compare-and-set.

Versions are unique: of two masters that store the next version only one succeeds, and the other loads again.
No epoch is needed: what a deposed master stores differs from what its successor has loaded, whose own write
then fails.
"""

from collections.abc import Mapping
from typing import Any

from stele.adapters.kubernetes.api import CONFIG_MAPS, Api, NotFound
from stele.core.kv.keyspaces import NO_CATALOG, Catalog
from stele.errors import Conflict
from stele.model.ownership import NameLeaves, NameTaken, belongs_to, leaves
from stele.wire.keyspaces import decode_catalog, encode_catalog


class KeyspaceStore:
    """One cluster's catalog. `save` raises Conflict when another process has written since `load`."""

    def __init__(
        self, api: Api, namespace: str, name: str, owner: Mapping[str, Any], labels: Mapping[str, str]
    ) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._owner, self._labels = dict(owner), dict(labels)
        self._version: str | None = None

    async def load(self) -> Catalog:
        """Return the stored catalog, NO_CATALOG when there is none.

        Raises NameTaken when a foreign object has its name, NameLeaves when that is being removed.
        """
        self._version = None
        stored = await self._api.find(CONFIG_MAPS, self._namespace, self._name)
        if stored is None:
            return NO_CATALOG
        if not belongs_to(stored, self._owner["uid"]):
            names = [f"{CONFIG_MAPS.kind} {self._name}"]
            raise NameLeaves(names) if leaves(stored, [self._owner]) else NameTaken(names)
        self._version = stored["metadata"]["resourceVersion"]
        return decode_catalog(stored.get("data") or {})

    async def save(self, catalog: Catalog) -> None:
        """Store the catalog; it may be sent to members once this returns."""
        metadata = {"name": self._name, "labels": self._labels, "ownerReferences": [self._owner]}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        body["data"] = encode_catalog(catalog)
        if self._version is None:
            written = await self._api.create(CONFIG_MAPS, self._namespace, body)
        else:
            metadata["resourceVersion"] = self._version
            try:
                written = await self._api.replace(CONFIG_MAPS, self._namespace, body)
            except NotFound as error:
                raise Conflict(f"ConfigMap {self._name} was deleted while its cluster exists") from error
        self._version = written["metadata"]["resourceVersion"]
