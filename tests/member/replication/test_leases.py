"""Owners that others do not hear, and fences: nobody reads what is old."""

import asyncio
import signal
import time

import pytest

from stele.core.control import commands as m
from stele.core.control.member_settings import MemberSettings
from tests.member.harness.cluster import Client, Cluster, key_in


async def test_a_paused_owner_that_returns_serves_nothing_old(three: Cluster) -> None:
    old, fresh = Client(three), Client(three)
    partition = next(p for p, row in three.rows.items() if row.replicas == (0, 1))
    key = key_in(partition, three.partitions)
    assert await old.set(0, key, b"before")
    three.members[0].signal(signal.SIGSTOP)
    await three.promote(partition, lost=0, dead=False)
    await three.publish([1, 2])
    assert await fresh.set(1, key, b"after")
    three.members[0].signal(signal.SIGCONT)
    reads = [asyncio.create_task(Client(three).call(0, b"GET", key)) for _ in range(20)]
    await asyncio.sleep(0.7)
    assert not any(read.done() for read in reads)
    await three.publish([0])
    assert {await read for read in reads} == {b"after"}
    assert await old.set(0, key, b"last")
    assert await fresh.call(1, b"GET", key) == b"last"


async def test_fence_waits_for_the_lease_of_an_owner_that_may_live(two: Cluster) -> None:
    partition = next(p for p, row in two.rows.items() if row.replicas == (0, 1))
    fence = m.Fence(partition, two.version(partition) + 2, False)
    first = (await two.exchange(1, fence)).results[0]
    assert first.code == "WAIT"
    assert 0 < first.wait_ms <= 501
    await two.order(1, fence)
    lower = m.Fence(partition, two.version(partition) + 1, False)
    assert (await two.command(1, lower)).code == "STALE_TERM"
    dead = m.Fence(partition, two.version(partition) + 2, True)
    assert (await two.exchange(1, dead)).results[0].code == "OK"


async def test_the_end_of_a_process_says_nothing_about_the_leases_of_the_next_one(two: Cluster) -> None:
    """The master saw the end of the owner's first process, and not that another one serves by now."""
    partition = next(p for p, row in two.rows.items() if row.replicas == (0, 1))
    key = key_in(partition, two.partitions)
    await two.restart(0)
    await asyncio.sleep(0.6)
    assert await Client(two).set(0, key, b"1"), "the second process holds a lease"
    term = two.version(partition) + 2
    first = m.Fence(partition, term, True, dead_incarnation=1)
    assert (await two.exchange(1, first)).results[0].code == "WAIT"
    both = m.Fence(partition, term, True, dead_incarnation=2)
    assert (await two.exchange(1, both)).results[0].code == "OK"


async def test_a_restarted_member_does_not_know_which_process_it_granted_leases_to(two: Cluster) -> None:
    partition = next(p for p, row in two.rows.items() if row.replicas == (0, 1))
    two.settings = MemberSettings(lease_ms=4000)
    await two.exchange(1)
    await two.restart(1)
    fence = m.Fence(partition, two.version(partition) + 2, True, dead_incarnation=1)
    assert (await two.exchange(1, fence)).results[0].code == "WAIT"
    await two.order(1, fence)


@pytest.mark.parametrize("quiet_seconds", [0.0, 0.5], ids=["", "with nothing left to send"])
async def test_a_fenced_owner_answers_nothing_until_a_row_of_that_version(
    two: Cluster, quiet_seconds: float
) -> None:
    client = Client(two)
    partition = next(p for p, row in two.rows.items() if row.replicas == (0, 1))
    key = key_in(partition, two.partitions)
    assert await client.set(0, key, b"1")
    await asyncio.sleep(quiet_seconds)
    await two.command(1, m.Fence(partition, two.version(partition) + 2, False))
    read = asyncio.create_task(client.call(0, b"GET", key))
    await asyncio.sleep(0.7)
    assert not read.done()
    two.store(partition, (0, 1), by=2)
    await two.publish()
    assert await read == b"1"


async def test_leases_and_heartbeats_change_while_clients_read(two: Cluster) -> None:
    """Both ways, with members that learn it one after the other; what is granted is what is waited for."""
    client = Client(two)
    partition = next(p for p, row in two.rows.items() if row.replicas == (0, 1))
    key = key_in(partition, two.partitions)
    assert await client.set(0, key, b"1")
    slowest = 0.0

    async def read_for(seconds: float) -> None:
        nonlocal slowest
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            assert await client.call(0, b"GET", key) == b"1"
            slowest = max(slowest, time.monotonic() - begun)
            await asyncio.sleep(0.01)

    for heartbeat_ms, lease_ms in ((1500, 8000), (50, 500)):
        for first, second in ((0, 1), (1, 0)):
            two.settings = MemberSettings(heartbeat_ms=heartbeat_ms, lease_ms=lease_ms)
            await two.publish([first])
            await read_for(1.0)
            await two.publish([second])
            await read_for(1.0)
    assert slowest < 0.4
    fence = m.Fence(partition, two.version(partition) + 2, False)
    waits = (await two.exchange(1, fence)).results[0]
    assert waits.code == "WAIT", "leases of 8 s were granted less than that ago"
    assert waits.wait_ms > 600


async def test_a_restarted_member_waits_for_leases_that_were_longer_before(two: Cluster) -> None:
    partition = next(p for p, row in two.rows.items() if row.replicas == (0, 1))
    two.settings = MemberSettings(lease_ms=8000)
    await two.publish()
    await asyncio.sleep(0.3)
    two.settings = MemberSettings(lease_ms=500)
    await two.publish()
    await two.restart(1)
    fence = m.Fence(partition, two.version(partition) + 2, False)
    waits = (await two.exchange(1, fence)).results[0]
    assert (waits.code, waits.wait_ms > 2000) == ("WAIT", True)
