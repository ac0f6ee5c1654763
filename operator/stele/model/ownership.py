"""Whose an object is. Its name says nothing: somebody else may have taken the name first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stele.errors import Refused, Unavailable

CLUSTER_UID_LABEL = "stele.dev/cluster-uid"


class NameTaken(Refused):
    """Objects of somebody else have names that a cluster needs. `names`: each with its kind."""

    code_default = "NAME_TAKEN"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(taken_text(names))
        self.names = tuple(names)


class NameLeaves(Unavailable):
    """What has the names that a cluster needs goes by itself. `names`: each with its kind."""

    code_default = "NAME_LEAVES"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(leaving_text(names))
        self.names = tuple(names)


def taken_text(names: Sequence[str]) -> str:
    """What is the matter, and what to do."""
    return (
        f"{', '.join(names)}: there already, and not of this cluster, so nothing is done with it; "
        "remove what is not needed, or create the cluster under another name"
    )


def leaving_text(names: Sequence[str]) -> str:
    """What is waited for; nothing is to be done."""
    return f"waiting for the objects of the deleted cluster to be removed: {', '.join(names)}"


def leaves(stored: Mapping[str, Any], owners: Iterable[Mapping[str, Any]]) -> bool:
    """Whether an object that is not ours goes by itself: it is being deleted, or all its owners are gone.

    One that has the kind and name of one of our `owners` is gone: there is one object of a name.
    """
    meta, ours = stored["metadata"], {_named(each) for each in owners}
    theirs = [_named(each) for each in meta.get("ownerReferences") or ()]
    return bool(meta.get("deletionTimestamp")) or (bool(theirs) and ours.issuperset(theirs))


def _named(owner: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(owner["apiVersion"]).rpartition("/")[0], owner["kind"], owner["name"]


def belongs_to(stored: Mapping[str, Any], uid: str) -> bool:
    """Whether the object is labelled with that UID of a cluster, or owned by the object with that UID."""
    meta = stored["metadata"]
    owners = (each.get("uid") for each in meta.get("ownerReferences") or ())
    return (meta.get("labels") or {}).get(CLUSTER_UID_LABEL) == uid or uid in owners
