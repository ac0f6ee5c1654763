"""Kubernetes objects of one namespace in files, with all that a master relies on.

Writes compare resourceVersions and last before they are answered; versions only grow; a changed spec has
another generation; pods are marked, and removed by their kubelet. `table/` has the ConfigMaps, `cluster.yaml`
the TabletCluster and `objects/` all others.
"""

import re
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stele.adapters.kubernetes.api import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    KEYSPACES,
    MEMBERS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    REBALANCES,
    REVISIONS,
    SECRETS,
    SERVICES,
    USERS,
    AlreadyExists,
    Kind,
    NotFound,
)
from stele.errors import BadInput, Conflict, Corrupt
from stele.master.merge_patch import merged
from stele.model import TabletCluster, TabletMember, TabletRebalance
from stele.model.common import Resource, Unreadable
from stele.model.crd import UNOBSERVED
from stele.model.keyspace import Keyspace
from stele.model.user import TabletUser
from stele.playground.files import Object, read_object, remove_file, write_object
from stele.playground.limits import CONFIG_MAP_BYTES_MAX, OBJECTS_MAX

NAMESPACE = "playground"

MODELS: dict[Kind, type[Resource]] = {
    CLUSTERS: TabletCluster,
    MEMBERS: TabletMember,
    REBALANCES: TabletRebalance,
    KEYSPACES: Keyspace,
    USERS: TabletUser,
}
WITH_STATUS = frozenset({*MODELS, PODS, CLAIMS})
"""Kinds whose status only `patch_status` writes."""

_OTHERS = (CONFIG_MAPS, PODS, CLAIMS, SERVICES, EVENTS, BUDGETS, NETWORK_POLICIES, REVISIONS, NODES, SECRETS)
KINDS = {kind.plural: kind for kind in (*MODELS, *_OTHERS)}

FIXED = ("uid", "creationTimestamp", "generation", "deletionTimestamp")
"""Metadata that no client writes."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

Watcher = Callable[[Kind, Object, bool], None]


class ObjectFiles:
    """`changed` hears of each change once it is stored: kind, object, and whether it is gone.

    Stored objects are never changed in place. Not for several processes at a time.
    """

    def __init__(self, folder: Path) -> None:
        """Raises Corrupt for a file that cannot be read."""
        self._folder = folder
        self._objects: dict[tuple[str, str], Object] = {}
        self.changed: list[Watcher] = []
        for kind in KINDS.values():
            for path in self._files(kind):
                self._take(kind, path)
        self._version = max(map(_version, self._objects.values()), default=0)

    def _files(self, kind: Kind) -> Iterator[Path]:
        if kind is CLUSTERS:
            path = self._folder / "cluster.yaml"
            return iter([path] if path.exists() else [])
        return self._path(kind, "any").parent.glob("[!.]*.yaml")

    def _take(self, kind: Kind, path: Path) -> None:
        stored = read_object(path)
        meta = stored["metadata"]
        if not isinstance(meta.get("uid"), str) or not str(meta.get("resourceVersion", "")).isdigit():
            raise Corrupt(
                f"{path} lacks metadata.uid or resourceVersion; restore it, or remove the playground"
            )
        self._objects[kind.plural, meta["name"]] = stored

    def _path(self, kind: Kind, name: str) -> Path:
        if kind is CLUSTERS:
            return self._folder / "cluster.yaml"
        if kind is CONFIG_MAPS:
            return self._folder / "table" / f"{name}.yaml"
        return self._folder / "objects" / kind.plural / f"{name}.yaml"

    # -- reads

    def find(self, kind: Kind, name: str) -> Object | None:
        return self._objects.get((kind.plural, name))

    def get(self, kind: Kind, name: str) -> Object:
        """Raises NotFound."""
        found = self.find(kind, name)
        if found is None:
            raise NotFound(f'there is no {kind.kind} "{name}"')
        return found

    def list(self, kind: Kind, selector: str = "") -> list[Object]:
        """Return the objects that have these labels, NAME or NAME=VALUE, by name."""
        listed = (stored for (plural, _), stored in sorted(self._objects.items()) if plural == kind.plural)
        return [stored for stored in listed if _selected(stored, selector)]

    # -- writes

    def create(self, kind: Kind, body: Object) -> Object:
        """Raises AlreadyExists, and BadInput for an object that is not valid."""
        meta = {**body["metadata"]}
        if prefix := meta.pop("generateName", ""):
            meta["name"] = meta.get("name") or f"{prefix}{secrets.token_hex(3)}"
        name = str(meta.get("name", ""))
        if not _NAME.fullmatch(name):
            raise BadInput(f"metadata.name is {name[:80]!r}; expected letters a-z, 0-9, - and .")
        if self.find(kind, name) is not None:
            raise AlreadyExists(f"{kind.kind} {name} exists")
        if len(self._objects) >= OBJECTS_MAX or (kind is CLUSTERS and self.list(CLUSTERS)):
            raise BadInput(f"a playground has one TabletCluster and at most {OBJECTS_MAX} objects")
        fresh = {key: value for key, value in body.items() if key != "status" or kind not in WITH_STATUS}
        if kind in MODELS:
            fresh["status"] = {"observedGeneration": UNOBSERVED}
        began = {"uid": str(uuid.uuid4()), "creationTimestamp": now_text(), "generation": 1}
        made = {**fresh, "metadata": {**meta, "namespace": NAMESPACE, **began}}
        if kind is EVENTS:
            self._tell(kind, made, gone=False)
            return made
        return self._store(kind, made)

    def replace(self, kind: Kind, body: Object) -> Object:
        """Raises NotFound, and Conflict when the body has another UID or version than what is stored."""
        name = body["metadata"]["name"]
        old = self.get(kind, name)
        for key in ("uid", "resourceVersion"):
            if body["metadata"].get(key, old["metadata"][key]) != old["metadata"][key]:
                raise Conflict(f"{kind.kind} {name} was changed by another writer")
        status = {"status": old["status"]} if kind in WITH_STATUS and "status" in old else {}
        return self._change(kind, old, {**body, **status})

    def patch(self, kind: Kind, name: str, patch: Mapping[str, Any]) -> Object:
        """Merge into spec, labels and annotations, as users do."""
        old = self.get(kind, name)
        meta = {
            key: value
            for key, value in (patch.get("metadata") or {}).items()
            if key in ("labels", "annotations")
        }
        given = {"spec": patch["spec"]} if "spec" in patch else {}
        return self._change(kind, old, merged(old, {**given, "metadata": meta}))

    def patch_status(self, kind: Kind, name: str, status: Object, version: str = "") -> Object:
        """Merge into the status. Raises Conflict unless the object has that version, if one is given."""
        old = self.get(kind, name)
        if version and old["metadata"]["resourceVersion"] != version:
            raise Conflict(f"{kind.kind} {name} was changed since version {version}")
        return self._change(kind, old, {**old, "status": merged(old.get("status") or {}, status)})

    def delete(self, kind: Kind, name: str, uid: str | None, grace_seconds: int | None = None) -> None:
        """Delete the object with that UID. A pod with grace, and what has finalizers, is only marked."""
        old = self.find(kind, name)
        if old is None or uid not in (None, old["metadata"]["uid"]):
            return
        if (kind is PODS and grace_seconds != 0) or old["metadata"].get("finalizers"):
            if not old["metadata"].get("deletionTimestamp"):
                self._store(kind, {**old, "metadata": {**old["metadata"], "deletionTimestamp": now_text()}})
        else:
            self._remove(kind, name)

    def _change(self, kind: Kind, old: Object, wanted: Object) -> Object:
        fixed = {key: old["metadata"][key] for key in FIXED if key in old["metadata"]}
        version = {"namespace": NAMESPACE, "resourceVersion": old["metadata"]["resourceVersion"]}
        new = {**wanted, "metadata": {**wanted["metadata"], **version, **fixed}}
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
            _check_partitions(kind, old, new)
        if new == old:
            return old
        if kind is not PODS and fixed.get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._remove(kind, old["metadata"]["name"])
            return new
        return self._store(kind, new)

    def _store(self, kind: Kind, new: Object) -> Object:
        _check(kind, new)
        meta = {**new["metadata"], "resourceVersion": str(self._version + 1)}
        stored = {"apiVersion": kind.api, "kind": kind.kind, **new, "metadata": meta}
        write_object(self._path(kind, meta["name"]), stored)
        self._version += 1
        self._objects[kind.plural, meta["name"]] = stored
        self._tell(kind, stored, gone=False)
        return stored

    def _remove(self, kind: Kind, name: str) -> None:
        remove_file(self._path(kind, name))
        stored = self._objects.pop((kind.plural, name))
        self._version += 1
        meta = {**stored["metadata"], "resourceVersion": str(self._version)}
        self._tell(kind, {**stored, "metadata": meta}, gone=True)

    def _tell(self, kind: Kind, stored: Object, *, gone: bool) -> None:
        for each in tuple(self.changed):
            each(kind, stored, gone)


def now_text() -> str:
    """Return the present time as Kubernetes writes it, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _selected(stored: Object, selector: str) -> bool:
    labels = stored["metadata"].get("labels") or {}
    pairs = (each.partition("=") for each in selector.split(",") if each)
    return all(labels.get(key) == value if equal else key in labels for key, equal, value in pairs)


def _version(stored: Object) -> int:
    return int(stored["metadata"]["resourceVersion"])


def _check(kind: Kind, stored: Object) -> None:
    """Raise BadInput for an object that Kubernetes would refuse."""
    data = stored.get("data") or {}
    if kind is CONFIG_MAPS and sum(len(value.encode()) for value in data.values()) > CONFIG_MAP_BYTES_MAX:
        raise BadInput(f"a ConfigMap may have at most {CONFIG_MAP_BYTES_MAX} bytes of data")
    if kind in MODELS:
        read = MODELS[kind].read(stored)
        if isinstance(read, Unreadable):
            raise BadInput("; ".join(map(str, read.problems)))


def _check_partitions(kind: Kind, old: Object, new: Object) -> None:
    if kind is CLUSTERS and new["spec"].get("partitions") != old["spec"].get("partitions"):
        raise BadInput(
            f"spec.partitions is {new['spec'].get('partitions')} but was {old['spec'].get('partitions')}: "
            "keys would belong to other partitions; remove the playground and begin another one"
        )
