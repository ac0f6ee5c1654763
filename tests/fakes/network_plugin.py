"""What a network plugin does that enforces NetworkPolicies, by the rules of their reference."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label that each namespace has by itself."""

Object = dict[str, Any]


@dataclass(frozen=True)
class End:
    """A pod, or, without a namespace, something outside of the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.244.0.1"


class NetworkPlugin:
    """Policies as they are stored: with their namespaces."""

    def __init__(self, policies: Iterable[Object]) -> None:
        self._policies = tuple(policies)

    def connects(self, source: End, target: End, port: int, protocol: str = "TCP") -> bool:
        """Whether both sides allow it."""
        out = self._allows("Egress", source, target, port, protocol)
        return out and self._allows("Ingress", target, source, port, protocol)

    def _allows(self, way: str, own: End, peer: End, port: int, protocol: str) -> bool:
        policies = [each for each in self.selecting(own) if way in each["spec"]["policyTypes"]]
        rules = [(each, rule) for each in policies for rule in each["spec"].get(way.lower()) or ()]
        peers = {"Ingress": "from", "Egress": "to"}[way]
        return not policies or any(
            _has_port(rule.get("ports"), port, protocol)
            and (not rule.get(peers) or any(_is(each, peer, policy) for each in rule[peers]))
            for policy, rule in rules
        )

    def selecting(self, pod: End) -> list[Object]:
        """The policies that a pod is subject to."""
        return [
            each
            for each in self._policies
            if each["metadata"]["namespace"] == pod.namespace
            and _selects(each["spec"]["podSelector"], pod.labels)
        ]


def _has_port(ports: Sequence[Object] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        each.get("protocol", "TCP") == protocol
        and ("port" not in each or each["port"] <= port <= each.get("endPort", each["port"]))
        for each in ports
    )


def _is(peer: Object, end: End, policy: Object) -> bool:
    if "ipBlock" in peer:
        return _within(peer["ipBlock"]["cidr"], end) and not any(
            _within(each, end) for each in peer["ipBlock"].get("except") or ()
        )
    if not end.namespace:
        return False
    if "namespaceSelector" in peer:
        there = _selects(peer["namespaceSelector"], {NAMESPACE_NAME: end.namespace})
    else:
        there = end.namespace == policy["metadata"]["namespace"]
    return there and _selects(peer.get("podSelector", {}), end.labels)


def _within(block: str, end: End) -> bool:
    return ip_address(end.address) in ip_network(block)


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        _meets(each, labels) for each in selector.get("matchExpressions") or ()
    )


def _meets(condition: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(condition["key"]), condition.get("values") or ()
    match condition["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise AssertionError(condition)
