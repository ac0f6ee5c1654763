"""Who shares the limit of wrong passwords with whom."""

import pytest

from stele.member.resp.failed_logins import FAILURES_AT_ONCE, FailedLogins


@pytest.mark.parametrize(
    ("failing", "other", "shared"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "10.0.0.1", False),
    ],
)
def test_addresses_of_one_ipv6_network_share_the_limit(failing: str, other: str, shared: bool) -> None:
    failed = FailedLogins(lambda: 0.0)
    for _ in range(FAILURES_AT_ONCE):
        assert failed.wait_seconds(failing) == 0
        failed.failed(failing)
    assert failed.wait_seconds(failing) > 0
    assert (failed.wait_seconds(other) > 0) is shared
