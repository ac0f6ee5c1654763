"""What counts where spec.security says nothing."""

from typing import Any

import pytest

from stele.model import TabletCluster
from tests.model.test_reading import stored


def read(status: dict[str, Any], **security: Any) -> TabletCluster:
    found = TabletCluster.read(stored(security=security, replicas=1) | {"status": status})
    assert isinstance(found, TabletCluster)
    return found


def shown(cluster: TabletCluster) -> tuple[str | None, str | None, str | None, bool | None]:
    security = cluster.security
    clients = security.clients
    return clients.tls, clients.auth, security.members.tls, security.network_policy.enabled


CLOSED = ("Required", "Required", "Required", True)
OPEN = ("Off", "Off", "Off", False)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, CLOSED),
        ({"epoch": 3, "features": 2}, CLOSED),
        ({"security": {"networkPolicies": True}}, CLOSED),
        ({"versionSum": 1}, OPEN),
        ({"security": {"tls": "Off"}}, OPEN),
        ({"security": {"auth": "Off"}}, OPEN),
        ({"versionSum": 1, "security": {"defaults": "Closed", "tls": "Required"}}, CLOSED),
        ({"security": {"defaults": "Open"}}, OPEN),
    ],
)
def test_a_cluster_is_closed_unless_it_was_in_use_before(
    status: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert shown(read(status)) == expected


def test_what_the_spec_says_counts() -> None:
    asked = {
        "clients": {"tls": "Optional", "clientCertificates": "Allow"},
        "members": {"tls": "Off", "graceExpired": False},
        "networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    }
    found = read({}, **asked)
    assert shown(found) == ("Optional", "Required", "Off", True)
    assert found.security.clients.client_certificates == "Allow"
    assert not found.security.members.takes_expired
    assert found.security.network_policy.clients == found.spec.security.network_policy.clients
    assert shown(read({"versionSum": 1}, **asked)) == ("Optional", "Off", "Off", False)
    assert found.spec.security.clients.auth is None, "the spec is as it was written"
