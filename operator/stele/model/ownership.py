"""Ownership of Kubernetes objects.

A name alone proves nothing, since another party may have used it first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stele.errors import Refused, Unavailable

CLUSTER_LABEL = "stele.dev/cluster"
CLUSTER_UID_LABEL = "stele.dev/cluster-uid"

SPEC_COPY = "stele.dev/cluster-spec"
"""Annotation of volume claims: the spec of their TabletCluster and its generation, as JSON."""


class NameTaken(Refused):
    """Names that a cluster needs belong to objects of others. `names` include their kinds."""

    code_default = "NAME_TAKEN"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(taken_text(names))
        self.names = tuple(names)


class NameLeaves(Unavailable):
    """Names that a cluster needs belong to objects that are being removed. `names` include their kinds."""

    code_default = "NAME_LEAVES"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(leaving_text(names))
        self.names = tuple(names)


def taken_text(names: Sequence[str]) -> str:
    """Return the error text, with the remedy."""
    return (
        f"{', '.join(names)}: taken by objects that do not belong to this cluster, which are left alone; "
        "delete them if they are not needed, or create the cluster under another name"
    )


def leaving_text(names: Sequence[str]) -> str:
    """Return what the cluster waits for; nothing needs to be done."""
    return f"waiting for the objects of the deleted cluster to be removed: {', '.join(names)}"


def leaves(stored: Mapping[str, Any], owners: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a foreign object will go by itself: it is being deleted, or its owners are gone.

    An owner with the kind and name of one of our `owners` but another UID is gone, since names are unique.
    """
    meta, ours = stored["metadata"], {_named(each) for each in owners}
    theirs = [_named(each) for each in meta.get("ownerReferences") or ()]
    return bool(meta.get("deletionTimestamp")) or (bool(theirs) and ours.issuperset(theirs))


def _named(owner: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(owner["apiVersion"]).rpartition("/")[0], owner["kind"], owner["name"]


def belongs_to(stored: Mapping[str, Any], uid: str) -> bool:
    """Return whether the object is labelled with the cluster's UID, or owned by the object with that UID."""
    meta = stored["metadata"]
    owners = (each.get("uid") for each in meta.get("ownerReferences") or ())
    return (meta.get("labels") or {}).get(CLUSTER_UID_LABEL) == uid or uid in owners
