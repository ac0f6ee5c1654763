"""Owners that others do not hear, and fences: nobody reads what is old."""

import asyncio
import signal
from pathlib import Path

import pytest

from stele.core.control import commands as m
from tests.member.harness.cluster import Client, cluster, eventually, key_in


async def test_a_write_waits_for_a_silent_backup_until_the_master_takes_it_out(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        client = Client(made)
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        key = key_in(partition, made.partitions)
        assert await client.set(0, key, b"before")
        made.members[1].signal(signal.SIGSTOP)
        write = asyncio.create_task(client.set(0, key, b"after"))
        reply = await eventually(lambda: made.exchange(0, rows=()), lambda r: bool(r.silent))
        assert [peer.member for peer in reply.silent] == [1]
        assert not write.done()
        await made.lose(1, dead=False)
        assert await write
        made.members[1].signal(signal.SIGCONT)
        assert await client.call(0, b"GET", key) == b"after"


async def test_a_paused_owner_that_returns_serves_nothing_old(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        old, fresh = Client(made), Client(made)
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        key = key_in(partition, made.partitions)
        assert await old.set(0, key, b"before")
        made.members[0].signal(signal.SIGSTOP)
        await made.promote(partition, lost=0, dead=False)
        await made.publish([1, 2])
        assert await fresh.set(1, key, b"after")
        made.members[0].signal(signal.SIGCONT)
        reads = [asyncio.create_task(Client(made).call(0, b"GET", key)) for _ in range(20)]
        await asyncio.sleep(0.7)
        assert not any(read.done() for read in reads)
        await made.publish([0])
        assert {await read for read in reads} == {b"after"}
        assert await old.set(0, key, b"last")
        assert await fresh.call(1, b"GET", key) == b"last"


async def test_fence_waits_for_the_lease_of_an_owner_that_may_live(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, replicas=2) as made:
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        fence = m.Fence(partition, made.version(partition) + 2, False)
        first = (await made.exchange(1, fence)).results[0]
        assert first.code == "WAIT"
        assert 0 < first.wait_ms <= 501
        await made.order(1, fence)
        lower = m.Fence(partition, made.version(partition) + 1, False)
        assert (await made.command(1, lower)).code == "STALE_TERM"
        dead = m.Fence(partition, made.version(partition) + 2, True)
        assert (await made.exchange(1, dead)).results[0].code == "OK"


@pytest.mark.parametrize("quiet_seconds", [0.0, 0.5], ids=["", "with nothing left to send"])
async def test_a_fenced_owner_answers_nothing_until_a_row_of_that_version(
    tmp_path: Path, quiet_seconds: float
) -> None:
    async with cluster(tmp_path, 2) as made:
        client = Client(made)
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        key = key_in(partition, made.partitions)
        assert await client.set(0, key, b"1")
        await asyncio.sleep(quiet_seconds)
        await made.command(1, m.Fence(partition, made.version(partition) + 2, False))
        read = asyncio.create_task(client.call(0, b"GET", key))
        await asyncio.sleep(0.7)
        assert not read.done()
        made.store(partition, (0, 1), by=2)
        await made.publish()
        assert await read == b"1"
