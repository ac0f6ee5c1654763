"""When a load balancer is open to everyone, and which addresses nothing can be made of."""

from typing import Any

import pytest

from stele.model import TabletCluster, Unreadable
from stele.model.conditions import Reason
from stele.model.validation import problems
from tests.model.test_reading import read, stored

OFF = {"tls": "Off", "auth": "Off"}
BALANCED: dict[str, Any] = {"serviceType": "LoadBalancer"}


@pytest.mark.parametrize(
    ("resp", "clients", "expected"),
    [
        (BALANCED, OFF, True),
        (BALANCED, {}, False),
        (BALANCED, {"tls": "Off"}, True),
        (BALANCED, {"auth": "Off"}, True),
        (BALANCED, {"tls": "Optional"}, False),
        (BALANCED, {"auth": "Off", "tls": "Required", "clientCertificates": "Require"}, False),
        (BALANCED, {"auth": "Off", "tls": "Optional", "clientCertificates": "Require"}, True),
        (BALANCED, {"auth": "Off", "tls": "Required", "clientCertificates": "Allow"}, True),
        (BALANCED | {"loadBalancerSourceRanges": ["10.0.0.0/8"]}, OFF, False),
        (BALANCED | {"loadBalancerSourceRanges": ["10.0.0.0/8", "0.0.0.0/0"]}, OFF, True),
        (BALANCED | {"loadBalancerSourceRanges": ["::/0"]}, OFF, True),
        ({"serviceType": "NodePort"}, OFF, False),
        ({}, OFF, False),
    ],
)
def test_open_is_what_lets_everyone_in_who_shows_nothing(
    resp: dict[str, Any], clients: dict[str, str], expected: bool
) -> None:
    assert read(resp=resp, security={"clients": clients}).is_open_to_everyone is expected


def test_a_cluster_that_is_in_use_and_says_nothing_is_open() -> None:
    found = TabletCluster.read(stored(resp=BALANCED) | {"status": {"versionSum": 1}})
    assert isinstance(found, TabletCluster)
    assert found.is_open_to_everyone


def test_what_is_no_address_is_reported() -> None:
    ranges = ["10.0.0.0/8", "1:::1/8"]
    found = problems(
        read(
            resp=BALANCED | {"loadBalancerSourceRanges": ranges},
            security={"clients": {"hosts": ["2001:db8::7", "1:2"]}},
        )
    )
    assert [problem.reason for problem in found] == [Reason.INVALID_RESOURCE] * 2
    assert [problem.message.split(";")[0] for problem in found] == [
        "spec.resp.loadBalancerSourceRanges[1] is 1:::1/8, which is no block of addresses",
        "spec.security.clients.hosts[1] is 1:2, which is no address",
    ]


@pytest.mark.parametrize("part", ["annotations", "labels"])
def test_what_is_the_operator_s_is_not_read(part: str) -> None:
    found = TabletCluster.read(stored(resp={part: {"stele.dev/applied": "a"}}))
    assert isinstance(found, Unreadable)
    assert "stele.dev/applied is set by the operator" in str(found)
