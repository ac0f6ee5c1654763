"""Who the holder of a certificate is: a part of one cluster, by a URI that the certificate names.

A certificate proves that the cluster's CA signed it; who may do what is decided by cluster, role and name,
and never by a host's name or an address.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a part of a cluster does."""

    MEMBER = "member"
    MASTER = "master"
    COPIER = "copier"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Holder:
    """A part of a cluster. `cluster` is the UID of its volumes."""

    cluster: str
    role: Role
    name: str

    @property
    def uri(self) -> str:
        """What its certificate names."""
        return f"{SCHEME}{self.cluster}/{self.role}/{self.name}"


SCHEME = "stele://"
URI_CHARACTERS_MAX = 512
_URI = re.compile(
    rf"{SCHEME}(?P<cluster>[A-Za-z0-9-]{{1,64}})/(?P<role>{'|'.join(Role)})/(?P<name>[a-z0-9][a-z0-9.-]{{0,252}})"
)


def parse_uri(uri: str) -> Holder | None:
    """Return whom a URI of a certificate names; None when it is not exactly of Stele's form."""
    found = _URI.fullmatch(uri) if len(uri) <= URI_CHARACTERS_MAX else None
    return None if found is None else Holder(found["cluster"], Role(found["role"]), found["name"])


def refusal(uris: Iterable[str], cluster: str, roles: Iterable[Role], name: str = "") -> str:
    """Return why the holder of a certificate with these URIs is not taken, or nothing.

    It has to be one part of this cluster, with one of the roles and, unless it is empty, this name.
    """
    named = [holder for uri in uris if (holder := parse_uri(uri)) is not None]
    if len(named) != 1:
        return f"its certificate names {len(named)} parts of clusters; expected one URI {SCHEME}UID/ROLE/NAME"
    holder, allowed = named[0], list(roles)
    if holder.cluster != cluster:
        return f"it is of cluster {holder.cluster}, and this is {cluster}"
    if holder.role not in allowed:
        return f"it is a {holder.role}; expected {' or '.join(allowed)}"
    if name and holder.name != name:
        return f"it is {holder.name}; expected {name}"
    return ""
