"""Whose an object is. Its name says nothing: somebody else may have taken the name first."""

from collections.abc import Mapping, Sequence
from typing import Any

from stele.core.errors import Refused

CLUSTER_UID_LABEL = "stele.dev/cluster-uid"


class NameTaken(Refused):
    """Objects of somebody else have names that a cluster needs. `names`: each with its kind."""

    code_default = "NAME_TAKEN"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(taken_text(names))
        self.names = tuple(names)


def taken_text(names: Sequence[str]) -> str:
    """What is the matter, and what to do."""
    return (
        f"{', '.join(names)}: there already, and not of this cluster, so nothing is done with it; "
        "remove what is not needed, or create the cluster under another name"
    )


def belongs_to(stored: Mapping[str, Any], uid: str) -> bool:
    """Whether the object is labelled with that UID of a cluster, or owned by the object with that UID."""
    meta = stored["metadata"]
    owners = (each.get("uid") for each in meta.get("ownerReferences") or ())
    return (meta.get("labels") or {}).get(CLUSTER_UID_LABEL) == uid or uid in owners
