"""What CEL cannot see, or must not refuse: problems of a cluster that become conditions."""

from typing import NamedTuple

from stele.model.cluster import TabletCluster
from stele.model.common import parse_quantity
from stele.model.conditions import Reason


class Problem(NamedTuple):
    """A reason for a condition, and the message with what to do."""

    reason: Reason
    message: str


def problems(cluster: TabletCluster) -> list[Problem]:
    """Everything in the spec that cannot be fulfilled as written; empty when all can. Pure."""
    return [*_too_few_members(cluster), *_requests_above_limits(cluster)]


def _too_few_members(cluster: TabletCluster) -> list[Problem]:
    spec = cluster.spec
    if spec.replicas <= spec.members:
        return []
    message = (
        f"spec.replicas is {spec.replicas}, but spec.members is {spec.members}: "
        f"copies never share a member, so a partition has {spec.members} of {spec.replicas} copies; "
        f"raise spec.members to {spec.replicas} or lower spec.replicas to {spec.members}"
    )
    return [Problem(Reason.FEWER_MEMBERS_THAN_REPLICAS, message)]


def _requests_above_limits(cluster: TabletCluster) -> list[Problem]:
    wanted = cluster.spec.resources
    return [
        Problem(
            Reason.REQUESTS_EXCEED_LIMITS,
            f"spec.resources.requests.{name} is {request}, but spec.resources.limits.{name} is "
            f"{wanted.limits[name]}: no pod can be made so; lower the request or raise the limit",
        )
        for name, request in sorted(wanted.requests.items())
        if name in wanted.limits and parse_quantity(request) > parse_quantity(wanted.limits[name])
    ]
