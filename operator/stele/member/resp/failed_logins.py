"""Limits how many wrong passwords one address may try. IPv6 addresses are those of one network (/64)."""

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

FAILURES_AT_ONCE = 10
"""Wrong passwords of one address that are checked without a wait."""
SECONDS_PER_FAILURE = 5.0
"""After them, one more is checked in this time."""
ADDRESSES_MAX = 10_000
"""Addresses that are remembered, least recently failed first forgotten."""


class FailedLogins:
    """Wrong passwords by address. `now` returns seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def wait_seconds(self, address: str) -> float:
        """Return how long the next password of an address must wait, 0 when it may be checked."""
        until = self._until.get(_source(address), 0.0) - FAILURES_AT_ONCE * SECONDS_PER_FAILURE
        return max(0.0, until - self._now() + SECONDS_PER_FAILURE)

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        address = _source(address)
        until = max(self._now(), self._until.pop(address, 0.0)) + SECONDS_PER_FAILURE
        while len(self._until) >= ADDRESSES_MAX:
            del self._until[next(iter(self._until))]
        self._until[address] = until


def _source(address: str) -> str:
    """Return what wrong passwords are counted by: who has an IPv6 network has all addresses of it."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
