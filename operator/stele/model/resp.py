"""spec.resp of a TabletCluster: the Service of clients, and the addresses that cluster clients are given."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from stele.core.kv.announce import HOST_CHARACTERS_MAX, POD_ADDRESSES, Announce
from stele.model.common import Model, cel, matching, whole
from stele.model.network_policy import block_of_addresses, network_of
from stele.model.pod_template import (
    LABEL_NAME,
    LABEL_NAME_LENGTH,
    OWN_LABELS,
    OWN_PREFIX,
    AnnotationValue,
    Key,
    LabelKey,
    LabelValue,
)

SERVICE_ENTRIES_MAX = 32
"""Most labels, and most annotations, that spec.resp adds to the Service."""
SOURCE_RANGES_MAX = 64
"""Most blocks of addresses in spec.resp.loadBalancerSourceRanges."""

_OWN = ", ".join(f"'{label}'" for label in OWN_LABELS)
_IS_NAME = f"self.all(key, key.size() <= {LABEL_NAME_LENGTH} && key.matches('{LABEL_NAME}'))"


class ServiceType(StrEnum):
    """Type of the Service that clients connect to."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ExternalTrafficPolicy(StrEnum):
    """What a node does with connections from outside.

    Cluster: it passes them to any member, which sees the node's address. Local: only to members of the same
    node, which see the client's.
    """

    CLUSTER = "Cluster"
    LOCAL = "Local"


class IpFamilyPolicy(StrEnum):
    """Whether the Service has an address of one family, IPv4 or IPv6, or of both."""

    SINGLE_STACK = "SingleStack"
    PREFER_DUAL_STACK = "PreferDualStack"
    REQUIRE_DUAL_STACK = "RequireDualStack"


_HOST = "^([A-Za-z0-9.:-]|[{](member|ordinal)[}])+$"


class AnnounceAddresses(Model):
    """Addresses of the members for cluster clients that cannot reach the pods' own."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.host.contains('{member}') || self.host.contains('{ordinal}') || self.portStep > 0",
                "spec.resp.cluster.announce gives all members one address; put {member} or {ordinal} into "
                "host, or set portStep",
            )
        )
    )

    host: str = matching(
        _HOST,
        HOST_CHARACTERS_MAX,
        "spec.resp.cluster.announce.host must be a host name or an address, with {member} or {ordinal} in "
        "place of what differs",
    )
    """Host name or address; `{member}` is the member's name, `{ordinal}` the number at its end."""
    port: int = whole("spec.resp.cluster.announce.port", 1, 65_535, 6380)
    read_port: int = whole("spec.resp.cluster.announce.readPort", 1, 65_535, 6381)
    """Port where backups answer reads."""
    port_step: int = whole("spec.resp.cluster.announce.portStep", 0, 100, 0)
    """Times the member's number, added to both ports."""


class RespCluster(Model):
    """What clients of the Redis Cluster protocol are given."""

    announce: AnnounceAddresses | None = None
    """Addresses instead of the pods' own."""

    @property
    def announced(self) -> Announce:
        """What members announce."""
        found = self.announce
        if found is None:
            return POD_ADDRESSES
        return Announce(found.host, found.port, found.read_port, found.port_step)


def _names(field: str, own: str, *more: str) -> Any:
    """Return the field of a map whose keys are names that Kubernetes takes, and none of the operator's."""
    at = f"spec.resp.{field}"
    mine = " && ".join([f"!key.startsWith('{OWN_PREFIX}')", *more])
    rules = (
        (_IS_NAME, f"{at}: each key needs a name as Kubernetes has it, such as example.com/team"),
        (f"self.all(key, {mine})", f"{at}: {own} are set by the operator; leave them out"),
    )
    return Field(default_factory=dict, max_length=SERVICE_ENTRIES_MAX, json_schema_extra=cel(*rules))


SourceRange = Annotated[
    str, block_of_addresses("spec.resp.loadBalancerSourceRanges", "203.0.113.0/24 or 2001:db8::/64")
]


def _needs(field: str, types: tuple[str, ...], absent: str = "!has(self.{})") -> tuple[str, str]:
    """Return the rule that a field may only be set with these types of the Service."""
    among = ", ".join(f"'{each}'" for each in types)
    rule = f"{absent.format(field)} || self.serviceType in [{among}]"
    text = f"spec.resp.{field} needs spec.resp.serviceType {' or '.join(types)}"
    return rule, f"{text}; set the type or leave {field} out"


_FROM_OUTSIDE = ServiceType.NODE_PORT.value, ServiceType.LOAD_BALANCER.value
_BALANCED = (ServiceType.LOAD_BALANCER.value,)


class Resp(Model):
    """Service for Redis clients, on port 6379."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            _needs("nodePort", _FROM_OUTSIDE),
            _needs("externalTrafficPolicy", _FROM_OUTSIDE),
            _needs("loadBalancerClass", _BALANCED),
            _needs("loadBalancerSourceRanges", _BALANCED, "!has(self.{0}) || self.{0}.size() == 0"),
            (
                "oldSelf.serviceType != 'LoadBalancer' || self.serviceType != 'LoadBalancer' || "
                "(has(self.loadBalancerClass) ? [self.loadBalancerClass] : []) == "
                "(has(oldSelf.loadBalancerClass) ? [oldSelf.loadBalancerClass] : [])",
                "spec.resp.loadBalancerClass cannot change while the Service has a load balancer: "
                "set spec.resp.serviceType to ClusterIP and leave it out, then set both again",
            ),
        )
    )

    service_type: ServiceType = ServiceType.CLUSTER_IP
    node_port: int | None = whole(
        "spec.resp.nodePort", 1, 65_535, None, "most clusters allow 30000 to 32767 only"
    )
    """Port on the nodes; chosen by Kubernetes when omitted."""
    annotations: dict[Key, AnnotationValue] = _names("annotations", f"{OWN_PREFIX}*")
    """Annotations of the Service, such as those that a cloud reads."""
    labels: dict[LabelKey, LabelValue] = _names(
        "labels", f"{OWN_PREFIX}* and {', '.join(OWN_LABELS)}", f"!(key in [{_OWN}])"
    )
    """Further labels of the Service."""
    load_balancer_class: str | None = matching(
        LABEL_NAME,
        LABEL_NAME_LENGTH,
        "spec.resp.loadBalancerClass must be a name as Kubernetes has it, such as example.com/nlb",
        default=None,
    )
    """Which controller makes the load balancer; the default one when omitted."""
    load_balancer_source_ranges: tuple[SourceRange, ...] = Field(
        default_factory=tuple, max_length=SOURCE_RANGES_MAX
    )
    """Blocks of addresses that the load balancer lets in; everyone when empty."""
    external_traffic_policy: ExternalTrafficPolicy | None = None
    """What a node does with connections from outside; Cluster when omitted."""
    ip_family_policy: IpFamilyPolicy | None = None
    """Whether the Service has an address of each family; SingleStack when omitted."""
    cluster: RespCluster = Field(default_factory=RespCluster)

    @property
    def lets_everyone_in(self) -> bool:
        """Whether the Service has a load balancer that takes connections from any address."""
        ranges = self.load_balancer_source_ranges
        everyone = not ranges or any(each.endswith("/0") for each in ranges)
        return self.service_type is ServiceType.LOAD_BALANCER and everyone

    @property
    def service_spec(self) -> dict[str, Any]:
        """Return the fields that the spec adds to the Service, as far as its type has them."""
        balanced = self.service_type is ServiceType.LOAD_BALANCER
        reachable = self.service_type is not ServiceType.CLUSTER_IP
        asked: dict[str, Any] = {
            "loadBalancerClass": self.load_balancer_class if balanced else None,
            "loadBalancerSourceRanges": list(self.load_balancer_source_ranges) if balanced else None,
            "externalTrafficPolicy": self.external_traffic_policy if reachable else None,
            "ipFamilyPolicy": self.ip_family_policy,
        }
        return {name: value for name, value in asked.items() if value}

    def problems(self) -> list[str]:
        """Describe blocks of addresses that Kubernetes refuses."""
        at = "spec.resp.loadBalancerSourceRanges"
        return [
            f"{at}[{number}] is {text}, which is no block of addresses; write one such as 2001:db8::/64"
            for number, text in enumerate(self.load_balancer_source_ranges)
            if network_of(text) is None
        ]
