"""Problems of a spec that CEL cannot detect or should not reject; they become conditions."""

from typing import NamedTuple

from stele.model.cluster import TabletCluster
from stele.model.common import parse_quantity
from stele.model.conditions import Reason


class Problem(NamedTuple):
    """Reason of a condition, and its message with the remedy."""

    reason: Reason
    message: str


def problems(cluster: TabletCluster) -> list[Problem]:
    """Return everything in the spec that cannot be fulfilled as written. Pure."""
    return [*_too_few_members(cluster), *_requests_above_limits(cluster)]


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
