"""Secrets of one cluster, read and written one by one: the operator may neither list nor watch them."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stele.adapters.kubernetes.api import SECRETS, AlreadyExists, Api
from stele.errors import Conflict, Corrupt
from stele.model.ownership import CLUSTER_UID_LABEL, NameLeaves, NameTaken, belongs_to, leaves

Object = dict[str, Any]

OPAQUE, TLS = "Opaque", "kubernetes.io/tls"
"""Types of Secrets; the second one has tls.crt and tls.key."""


@dataclass(frozen=True)
class Content:
    """What a Secret is to say. `type` cannot change. Values are never shown."""

    data: Mapping[str, bytes] = field(repr=False)
    annotations: Mapping[str, str] = field(default_factory=dict)
    type: str = OPAQUE


@dataclass(frozen=True)
class StoredSecret:
    """A Secret that belongs to the cluster, at one version."""

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    annotations: Mapping[str, str]
    stored: Object = field(repr=False)

    def says(self, content: Content) -> bool:
        """Return whether it has these values and annotations, and perhaps further annotations."""
        return self.data == content.data and content.annotations.items() <= self.annotations.items()


@dataclass(frozen=True)
class Mark:
    """What makes a Secret the cluster's: the UID in its label, its owner, its labels."""

    cluster_uid: str
    owner: Object
    labels: Mapping[str, str]

    @property
    def all_labels(self) -> dict[str, str]:
        return dict(self.labels) | {CLUSTER_UID_LABEL: self.cluster_uid}


class SecretStore:
    """Reads and writes the Secrets of one namespace that belong to one cluster.

    All raise Refused without the right, NameTaken for a Secret of others, which is left alone, and NameLeaves
    for one that is being deleted.
    """

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def read(self, name: str, mark: Mark) -> StoredSecret | None:
        """Return the Secret, or None when there is none."""
        stored = await self._api.find(SECRETS, self._namespace, name)
        return None if stored is None else _own(stored, mark)

    async def read_of_anybody(self, name: str) -> StoredSecret | None:
        """Return the Secret, ours or not. It is for reading only."""
        stored = await self._api.find(SECRETS, self._namespace, name)
        return None if stored is None else _stored(stored)

    async def create(self, name: str, content: Content, mark: Mark) -> StoredSecret:
        """Create it, or return the one that another process has created meanwhile."""
        metadata = {
            "name": name,
            "labels": mark.all_labels,
            "annotations": dict(content.annotations),
            "ownerReferences": [mark.owner],
        }
        body = {"apiVersion": "v1", "kind": "Secret", "type": content.type, "metadata": metadata}
        body["data"] = _encoded(content.data)
        try:
            return _own(await self._api.create(SECRETS, self._namespace, body), mark)
        except AlreadyExists:
            found = await self.read(name, mark)
            if found is None:
                raise Conflict(f"Secret {name} was deleted meanwhile") from None
            return found

    async def replace(self, before: StoredSecret, content: Content, mark: Mark) -> StoredSecret:
        """Write over this version of it. Raises Conflict when it has changed."""
        meta = before.stored["metadata"]
        metadata = {
            **meta,
            "labels": (meta.get("labels") or {}) | mark.all_labels,
            "annotations": (meta.get("annotations") or {}) | dict(content.annotations),
            "ownerReferences": [mark.owner],
        }
        body = {**before.stored, "metadata": metadata, "data": _encoded(content.data)}
        return _own(await self._api.replace(SECRETS, self._namespace, body), mark)

    async def delete(self, secret: StoredSecret) -> None:
        """Delete this Secret, and no later one of its name."""
        uid = secret.stored["metadata"]["uid"]
        await self._api.delete(SECRETS, self._namespace, secret.name, uid)


def _own(stored: Object, mark: Mark) -> StoredSecret:
    meta = stored["metadata"]
    text = f"Secret {meta['name']}"
    if not (belongs_to(stored, mark.cluster_uid) or belongs_to(stored, mark.owner["uid"])):
        raise NameLeaves([text]) if leaves(stored, [mark.owner]) else NameTaken([text])
    if meta.get("deletionTimestamp"):
        raise NameLeaves([text])
    return _stored(stored)


def _stored(stored: Object) -> StoredSecret:
    meta = stored["metadata"]
    data = _decoded(stored, f"Secret {meta['name']}")
    return StoredSecret(meta["name"], data, meta.get("annotations") or {}, stored)


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def _decoded(stored: Object, text: str) -> dict[str, bytes]:
    try:
        given = (stored.get("data") or {}).items()
        return {name: base64.b64decode(value, validate=True) for name, value in given}
    except (binascii.Error, ValueError) as error:
        raise Corrupt(f"{text}: {error}") from None
