"""Near caches of real members: a connection never reads an older value after a newer one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.core.formats import KEYSPACES
from stele.core.kv.keyspaces import Catalog, NearCache, Settings
from tests.member.harness.caching import Connection, close_all
from tests.member.harness.cluster import Cluster, cluster, eventually, key_in

LITE = 2


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Close the connections of a test."""
    yield
    await close_all()


async def with_near_caches(made: Cluster) -> None:
    """Add a lite member, and give all members near caches."""
    await made.add()
    made.lite = {LITE}
    made.features = KEYSPACES
    made.catalog = Catalog(1, {"default": Settings(near_cache=NearCache(1 << 20, 3600))})
    await made.publish()


async def cached(made: Cluster, client: Connection, key: bytes) -> None:
    """Read a key until the member answers it from its near cache."""

    async def forwarded() -> int:
        before = (await made.exchange(LITE, rows=())).stats.forwarded
        await client.call("GET", key)
        return (await made.exchange(LITE, rows=())).stats.forwarded - before

    await eventually(forwarded, lambda number: number == 0)


async def test_a_write_that_an_owner_took_too_late_is_read(tmp_path: Path) -> None:
    """It waits at the old owner for the new one, whose row the client's member does not know."""
    async with cluster(tmp_path, 2) as made:
        await with_near_caches(made)
        for partition in range(made.partitions):
            key, owner, backup = key_in(partition, made.partitions), *made.rows[partition].replicas
            assert owner is not None
            assert backup is not None
            client = await Connection.open(made.ports[0], made.members[LITE].host)
            await client.call("SET", key, "1")
            await cached(made, client, key)
            id, version = made.id(), made.version(partition) + 1
            handed = await made.hand_over(id, partition, backup)
            writing = asyncio.create_task(client.call("SET", key, "2"))
            await asyncio.sleep(0.1)
            assert not writing.done()
            row = made.rows[partition]
            await made.accept(backup, type(row)(partition, version, (backup, owner)), id, handed.last)
            await made.publish([backup])
            await made.publish([owner])
            assert await writing == "OK"
            assert await client.call("GET", key) == b"2"


async def test_nothing_is_kept_of_an_owner_that_dies(tmp_path: Path) -> None:
    """What a lite member keeps of a dead owner is not answered once the next one took a write."""
    async with cluster(tmp_path, 2) as made:
        await with_near_caches(made)
        client, other = [await Connection.open(made.ports[0], made.members[each].host) for each in (LITE, 0)]
        keys = {p: key_in(p, made.partitions) for p, row in made.rows.items() if row.replicas[0] == 1}
        for key in keys.values():
            await client.call("SET", key, "1")
            await cached(made, client, key)
        await made.members[1].kill()
        await made.lose(1)
        for key in keys.values():
            assert await other.call("SET", key, "2") == "OK"
            assert await client.call("GET", key) == b"2"
            await cached(made, client, key)
            assert await client.call("GET", key) == b"2"
