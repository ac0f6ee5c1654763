"""spec.security.networkPolicy: peers as Kubernetes has them, and what is wrong with others."""

from typing import Any

import pytest

from stele.model import TabletCluster, Unreadable
from stele.model.conditions import Reason
from stele.model.validation import Problem, problems
from tests.model.test_reading import stored

AT = "spec.security.networkPolicy"
LABELS = ".podSelector.matchLabels"
CONDITIONS: list[dict[str, Any]] = [
    {"key": "app.kubernetes.io/name", "operator": "In", "values": ["shop", ""]},
    {"key": "a", "operator": "DoesNotExist"},
]
PEERS = [
    {"podSelector": {}},
    {"podSelector": {"matchLabels": {"stele.dev/cluster": "b"}}, "namespaceSelector": {}},
    {"namespaceSelector": {"matchExpressions": CONDITIONS}},
    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.3.4/32"]}},
    {"ipBlock": {"cidr": "fd00:10::/64", "except": ["fd00:10::1/128"]}},
]


def read(**policy: Any) -> TabletCluster | Unreadable:
    return TabletCluster.read(stored(security={"networkPolicy": policy}, replicas=1))


def test_every_peer_is_kept_as_it_was_written() -> None:
    found = read(enabled=True, clients=PEERS, metrics=PEERS[:1], admins=PEERS[3:])
    assert isinstance(found, TabletCluster)
    policy = found.spec.security.network_policy
    assert policy.enabled
    clients = policy.clients or ()
    dumped = [each.model_dump(mode="json", by_alias=True, exclude_defaults=True) for each in clients]
    assert dumped == PEERS
    assert problems(found) == []


def test_nothing_is_asked_for_by_itself() -> None:
    found = read()
    assert isinstance(found, TabletCluster)
    policy = found.spec.security.network_policy
    assert (policy.enabled, policy.clients, policy.metrics, policy.admins) == (None, None, None, None)
    assert found.spec.to_dict()["security"]["networkPolicy"] == {}


@pytest.mark.parametrize(
    ("peer", "field", "text"),
    [
        ({}, "", "a peer needs ipBlock alone, or podSelector, namespaceSelector or both"),
        ({"podSelector": {}, "ipBlock": {"cidr": "1.2.3.4/32"}}, "", "a peer needs ipBlock alone, or"),
        ({"ipBlock": {"cidr": "1.2.3.4"}}, ".ipBlock.cidr", "should match pattern"),
        ({"ipBlock": {"cidr": "1.2.3.4/33"}}, ".ipBlock.cidr", "should match pattern"),
        ({"ipBlock": {"cidr": "1.2.3.0/24", "except": ["x"]}}, ".ipBlock.except.0", "should match pattern"),
        ({"podSelector": {"matchLabels": {"a b": "c"}}}, f"{LABELS}.a b", "no name of a label"),
        ({"podSelector": {"matchLabels": {"a": "b c"}}}, f"{LABELS}.a", "should match pattern"),
        (
            {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            ".podSelector.matchExpressions.0",
            "In with 0 values: a condition needs values with In and NotIn, and none with",
        ),
        (
            {"namespaceSelector": {"matchExpressions": [CONDITIONS[1] | {"values": ["b"]}]}},
            ".namespaceSelector.matchExpressions.0",
            "DoesNotExist with 1 values",
        ),
    ],
)
def test_a_bad_peer_names_its_field_and_what_is_expected(peer: Any, field: str, text: str) -> None:
    found = read(clients=[PEERS[0], peer])
    assert isinstance(found, Unreadable)
    problem = found.problems[0]
    assert problem.field.removesuffix(".[key]") == f"{AT}.clients.1{field}"
    assert text in problem.message


def test_no_peers_at_all_say_neither_everyone_nor_nobody() -> None:
    found = read(clients=[])
    assert isinstance(found, Unreadable)
    assert found.problems[0].field == f"{AT}.clients"
    assert "at least 1 item" in found.problems[0].message


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"cidr": "::::/64"}, ".ipBlock.cidr is ::::/64, which is no block of addresses"),
        (
            {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16"]},
            ".ipBlock.except[1] is 11.0.0.0/16, which must be a smaller block inside of 10.0.0.0/8",
        ),
        ({"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}, ".ipBlock.except[0] is 10.0.0.0/8, which"),
        ({"cidr": "10.0.0.0/8", "except": ["fd00::/64"]}, ".ipBlock.except[0] is fd00::/64, which"),
        ({"cidr": "fd00::/64", "except": ["fd00::/65", "10.0.0.0/8"]}, ".ipBlock.except[1] is 10.0.0.0/8"),
    ],
)
def test_blocks_that_kubernetes_refuses_are_a_condition(block: dict[str, Any], text: str) -> None:
    found = read(enabled=True, admins=[PEERS[0], {"ipBlock": block}])
    assert isinstance(found, TabletCluster)
    (problem,) = problems(found)
    assert problem == Problem(Reason.INVALID_RESOURCE, problem.message)
    assert problem.message.startswith(f"{AT}.admins[1]{text}")
    unasked = read(enabled=False, admins=[PEERS[0], {"ipBlock": block}])
    assert isinstance(unasked, TabletCluster)
    assert problems(unasked) == []
