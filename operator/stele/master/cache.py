"""Cache of Kubernetes objects: filled by Kopf's watches and by lists, read by the loops.

Watches and lists race: the newer resourceVersion wins, and a deleted object is not restored by an older list.
"""

from collections.abc import Callable, Iterable
from typing import Any

from stele.adapters.kubernetes.api import Kind

Object = dict[str, Any]
Key = tuple[str, str]

TOMBSTONES_MAX = 10_000


class Cache:
    """Objects by kind, namespace and name. `changed` is called for each added, changed or deleted object."""

    def __init__(self, changed: Callable[[Kind, Object], None]) -> None:
        self._changed = changed
        self._objects: dict[Kind, dict[Key, Object]] = {}
        self._gone: dict[str, int] = {}
        self._removed: dict[tuple[Kind, Key], Object] = {}
        self._labelled: dict[Kind, dict[tuple[str, str, str], tuple[Object, ...]]] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._objects.get(kind, {}).get((namespace, name))

    def removed(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the last state of the last deleted object with that name; None when none is known."""
        return self._removed.get((kind, (namespace, name)))

    def all(self, kind: Kind) -> Iterable[Object]:
        return list(self._objects.get(kind, {}).values())

    def labelled(self, kind: Kind, namespace: str, label: str, value: str) -> tuple[Object, ...]:
        """Return objects of one namespace with that label, sorted by name: one tuple until an object of the
        kind changes."""
        known, key = self._labelled.setdefault(kind, {}), (namespace, label, value)
        if key not in known:
            labelled = (
                each
                for (place, _), each in self._objects.get(kind, {}).items()
                if place == namespace and (each["metadata"].get("labels") or {}).get(label) == value
            )
            known[key] = tuple(sorted(labelled, key=lambda each: str(each["metadata"]["name"])))
        return known[key]

    def put(self, kind: Kind, stored: Object) -> None:
        """Store an object that the API server returned or streamed."""
        meta = stored["metadata"]
        key, version = (meta["namespace"], meta["name"]), _version(stored)
        if version <= self._gone.get(meta.get("uid", ""), -1):
            return
        objects = self._objects.setdefault(kind, {})
        present = objects.get(key)
        if present is not None and _version(present) >= version:
            return
        objects[key] = stored
        self._labelled.pop(kind, None)
        self._changed(kind, stored)

    def remove(self, kind: Kind, stored: Object) -> None:
        meta = stored["metadata"]
        self._bury(kind, stored)
        objects = self._objects.setdefault(kind, {})
        present = objects.get((meta["namespace"], meta["name"]))
        if present is not None and present["metadata"].get("uid") == meta.get("uid"):
            del objects[meta["namespace"], meta["name"]]
            self._labelled.pop(kind, None)
            self._changed(kind, stored)

    def replace(self, kind: Kind, namespace: str | None, listed: list[Object], asked_version: int) -> None:
        """Apply a full list, of one namespace or of all.

        An object that it lacks is deleted, unless it is newer than `asked_version`.
        """
        keys = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in listed}
        for key, each in list(self._objects.get(kind, {}).items()):
            if namespace in (None, key[0]) and key not in keys and _version(each) <= asked_version:
                self.remove(kind, each)
        for each in listed:
            self.put(kind, each)

    def newest(self) -> int:
        """Return the greatest resourceVersion seen so far."""
        return max((_version(each) for kind in self._objects.values() for each in kind.values()), default=0)

    def _bury(self, kind: Kind, stored: Object) -> None:
        meta = stored["metadata"]
        if len(self._gone) >= TOMBSTONES_MAX:
            self._gone.pop(next(iter(self._gone)))
        if len(self._removed) >= TOMBSTONES_MAX:
            self._removed.pop(next(iter(self._removed)))
        self._gone[meta.get("uid", "")] = 2**63
        self._removed[kind, (meta["namespace"], meta["name"])] = stored


def _version(stored: Object) -> int:
    """Return the resourceVersion as a number; those of one API server increase (guaranteed since
    Kubernetes 1.35)."""
    text = str(stored["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0
