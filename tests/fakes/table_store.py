"""The table's store without an API server: that of ConfigMaps over objects in memory."""

from dataclasses import dataclass, field
from typing import Any

from stele.adapters.kubernetes.api import Kind
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.errors import Conflict

CLUSTER = "demo"
OWNER = {"apiVersion": "v1", "kind": "TabletCluster", "name": CLUSTER, "uid": "1"}
Object = dict[str, Any]


@dataclass
class StoredObjects:
    """Objects shared by the stores of one cluster: `head` or `shard-N` to (version, data)."""

    objects: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    clock: int = 0

    def put(self, name: str, data: dict[str, str], expected: int | None) -> int:
        present = self.objects.get(name)
        if (None if present is None else present[0]) != expected:
            raise Conflict(f"{name} was changed by another writer")
        self.clock += 1
        self.objects[name] = (self.clock, data)
        return self.clock


class MemoryTableStore(KubernetesTableStore):
    """One master's view of the shared objects."""

    def __init__(self, shared: StoredObjects) -> None:
        super().__init__(_Api(self), "", CLUSTER, OWNER, {})  # type: ignore[arg-type]
        self.shared = shared

    def put(self, name: str, data: dict[str, str], expected: int | None) -> int:
        return self.shared.put(name, data, expected)


class _Api:
    """As much of an API server as the store calls."""

    def __init__(self, store: MemoryTableStore) -> None:
        self._store = store

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        stored = self._store.shared.objects.get(_part(name))
        return None if stored is None else _object(name, *stored)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        return self._write(body, None)

    async def replace(self, kind: Kind, namespace: str, body: Object) -> Object:
        return self._write(body, int(body["metadata"]["resourceVersion"]))

    def _write(self, body: Object, expected: int | None) -> Object:
        name, data = body["metadata"]["name"], body["data"]
        return _object(name, self._store.put(_part(name), data, expected), data)


def _part(name: str) -> str:
    """The key of a ConfigMap."""
    shard = name.removeprefix(f"{CLUSTER}-table").removeprefix("-")
    return f"shard-{shard}" if shard else "head"


def _object(name: str, version: int, data: dict[str, str]) -> Object:
    meta = {"name": name, "resourceVersion": str(version), "ownerReferences": [OWNER]}
    return {"metadata": meta, "data": data}
