"""Who sent a request, and whether it is of the own cluster and has the role.

Without aiohttp: what only dials needs none of it, and its import takes as long as all else of a copy process.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

from stele.adapters.tls.identity import Contexts
from stele.adapters.tls.peer import UNTRUSTED, Certificate, Expected, holders, peer_refusal
from stele.core.security.identity import Role


@dataclass(frozen=True, slots=True)
class Caller:
    """The other side of a request that came with TLS: its certificate, and those by which it was verified."""

    certificate: Certificate
    chain: frozenset[bytes]


def own_cluster(contexts: Contexts) -> str:
    """Return the cluster that the own certificate names; nothing without one."""
    return next((holder.cluster for holder in holders(contexts.certificate)), "")


def caller_refusal(
    contexts: Contexts | None, found: Caller, roles: Collection[Role], grace_seconds: float = 0.0
) -> str:
    """Return why who sent a request is not taken, or nothing: it has to be of the cluster that the own
    certificate names, of a CA that is trusted now, and of one of the roles."""
    if contexts is None:
        return "there is no usable certificate here"
    if not found.chain & contexts.trusted:
        return UNTRUSTED
    expected = Expected(own_cluster(contexts), roles)
    return peer_refusal(found.certificate, expected, time.time(), grace_seconds)
