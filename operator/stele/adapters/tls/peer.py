"""The other side of a connection between parts of a cluster: whether its certificate is that of the part.

Its chain was verified in the handshake (`Contexts.dialling`, `Contexts.dialled`); dates and holder are not.
"""

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stele.adapters.tls.identity import date_fault
from stele.core.security.identity import Holder, Role, parse_uri, refusal
from stele.core.security.user_certificates import COMMON_NAME, OWN_SCHEME, URI, certificate_of

Certificate = Mapping[str, Any]
"""As `ssl.SSLObject.getpeercert` has it."""


UNTRUSTED = "the CA of its certificate is no longer trusted"

CLIENT_NAMES_MAX = 16
"""URIs and common names of a client's certificate; one with more is nobody's."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Who may be on the other side: a part of this cluster with one of the roles and, unless it is empty,
    this name."""

    cluster: str
    roles: Collection[Role]
    name: str = ""


def peer_refusal(certificate: Certificate, expected: Expected, now_s: float, grace_seconds: float) -> str:
    """Return why the other side is not taken, or nothing. It is when its certificate ended up to
    `grace_seconds` ago."""
    wrong = refusal(_uris(certificate), expected.cluster, expected.roles, expected.name)
    return wrong or date_fault(certificate, now_s, grace_seconds)


def holders(certificate: Certificate) -> list[Holder]:
    """Return the parts of clusters that a certificate names."""
    return [holder for uri in _uris(certificate) if (holder := parse_uri(uri)) is not None]


def client_names(certificate: Certificate) -> tuple[str, ...]:
    """Return what stands for a client's certificate, see `core.security.user_certificates`: its URIs and its
    common names. A part of a cluster has none: it is no user."""
    uris = _uris(certificate)
    if any(uri.lower().startswith(OWN_SCHEME) for uri in uris):
        return ()
    fields = (field for part in certificate.get("subject", ()) for field in part)
    common = [value for kind, value in fields if kind == "commonName"]
    found = [*(certificate_of(URI, uri) for uri in uris), *(certificate_of(COMMON_NAME, cn) for cn in common)]
    return tuple(found) if len(found) <= CLIENT_NAMES_MAX else ()


def _uris(certificate: Certificate) -> list[str]:
    return [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]


def has_ended(certificate: Certificate, now_s: float) -> bool:
    """Return whether it is taken for the grace alone."""
    return now_s > ssl.cert_time_to_seconds(str(certificate["notAfter"]))
