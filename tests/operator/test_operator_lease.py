"""The election on a real API server, on clocks of our own."""

import asyncio

import pytest

from stele.adapters.kubernetes.api import LEASES, Api
from stele.adapters.kubernetes.lease import Election, Terms

pytestmark = pytest.mark.control_plane

TERMS = Terms(duration_seconds=3.0, deadline_seconds=2.0, retry_seconds=0.2)


class Clock:
    """Moves only by sleeping; gives way to others while it does."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def election(api: Api, namespace: str, identity: str, clock: Clock) -> Election:
    return Election(api, namespace, "stele", identity, monotonic=clock, sleep=clock.sleep, terms=TERMS)


async def test_the_second_waits_until_the_lease_did_not_change_for_its_duration(
    api: Api, namespace: str
) -> None:
    first, second = Clock(), Clock()
    await election(api, namespace, "a", first).acquire()
    await election(api, namespace, "b", second).acquire()
    assert second.now - 100.0 > TERMS.duration_seconds
    lease = await api.get(LEASES, namespace, "stele")
    assert lease["spec"]["holderIdentity"] == "b"
    assert lease["spec"]["leaseTransitions"] == 2


async def test_the_same_pod_goes_on_at_once(api: Api, namespace: str) -> None:
    await election(api, namespace, "a", Clock()).acquire()
    again = Clock()
    await election(api, namespace, "a", again).acquire()
    assert again.now == 100.0


async def test_a_lease_that_was_given_back_is_taken_at_once(api: Api, namespace: str) -> None:
    first, second = election(api, namespace, "a", Clock()), Clock()
    await first.acquire()
    await first.release()
    await election(api, namespace, "b", second).acquire()
    assert second.now == 100.0


async def test_holding_ends_when_somebody_else_took_it(api: Api, namespace: str) -> None:
    clock = Clock()
    first = election(api, namespace, "a", clock)
    await first.acquire()
    lease = await api.get(LEASES, namespace, "stele")
    lease["spec"] |= {"holderIdentity": "b", "leaseDurationSeconds": 60}
    await api.replace(LEASES, namespace, lease)
    await asyncio.wait_for(first.hold(), 10)
