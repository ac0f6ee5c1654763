"""Problems of a spec that CEL cannot detect or should not reject; they become conditions."""

from typing import NamedTuple

from stele.model.cluster import TabletCluster
from stele.model.common import parse_quantity
from stele.model.conditions import Reason

STORAGE_SIZE_MIN = "512Mi"
"""Smallest volume of a member that can be of use: it accepts no copy with less than 256Mi free, and no write
with less than 64Mi.

No rule of the definition: before Kubernetes 1.30 that would refuse every change, and every status, of a
cluster that was created with less.
"""


class Problem(NamedTuple):
    """Reason of a condition, and its message with the remedy."""

    reason: Reason
    message: str


def problems(cluster: TabletCluster) -> list[Problem]:
    """Return everything in the spec that cannot be fulfilled as written. Pure."""
    return [
        *_too_few_members(cluster),
        *_requests_above_limits(cluster),
        *_volume_too_small(cluster),
        *_unusable_addresses(cluster),
    ]


def _too_few_members(cluster: TabletCluster) -> list[Problem]:
    spec = cluster.spec
    if spec.replicas <= spec.members:
        return []
    message = (
        f"spec.replicas is {spec.replicas}, but spec.members is {spec.members}: "
        f"a member holds at most one copy, so each partition has {spec.members} of {spec.replicas} copies; "
        f"raise spec.members to {spec.replicas} or lower spec.replicas to {spec.members}"
    )
    return [Problem(Reason.FEWER_MEMBERS_THAN_REPLICAS, message)]


def _requests_above_limits(cluster: TabletCluster) -> list[Problem]:
    resources = cluster.spec.resources
    return [
        Problem(
            Reason.REQUESTS_EXCEED_LIMITS,
            f"spec.resources.requests.{name} is {request}, but spec.resources.limits.{name} is "
            f"{resources.limits[name]}: Kubernetes rejects such a pod; lower the request or raise the limit",
        )
        for name, request in sorted(resources.requests.items())
        if name in resources.limits and parse_quantity(request) > parse_quantity(resources.limits[name])
    ]


def _volume_too_small(cluster: TabletCluster) -> list[Problem]:
    size = cluster.spec.storage.size
    if parse_quantity(size) >= parse_quantity(STORAGE_SIZE_MIN):
        return []
    message = (
        f"spec.storage.size is {size}, but must be at least {STORAGE_SIZE_MIN}: with less than 256Mi free a "
        "member accepts no copy, and with less than 64Mi no write; raise it"
    )
    return [Problem(Reason.VOLUME_TOO_SMALL, message)]


def _unusable_addresses(cluster: TabletCluster) -> list[Problem]:
    """Report addresses, and blocks of them, of which Kubernetes or a certificate can have none."""
    security = cluster.security
    blocks = security.network_policy.problems() if security.network_policy.enabled else ()
    found = (*blocks, *cluster.spec.resp.problems(), *security.clients.problems())
    return [Problem(Reason.INVALID_RESOURCE, text) for text in found]
