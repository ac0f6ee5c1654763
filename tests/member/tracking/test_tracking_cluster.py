"""Near caches at three real members: whichever member owns a key, and while partitions move, swap and die."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
from redis.cache import CacheConfig

from tests.fakes.resp_client import Pushed
from tests.member.harness.caching import Connection, close_all
from tests.member.harness.cluster import Cluster, cluster, key_in

LEASE_SECONDS = 0.5
"""Of the harness."""
SLOW_SECONDS = 2.0
"""What a loaded machine takes besides."""
CLUSTER_PORT = 5


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Close the connections of a test."""
    yield
    await close_all()


async def connect(made: Cluster, member: int, port: int = 0) -> Connection:
    connection = await Connection.open(made.ports[port], made.members[member].host)
    await connection.call("HELLO", "3")
    return connection


async def dropped(client: Connection, keys: set[bytes], seconds: float = 10.0) -> None:
    """Wait until the client has been told to drop these keys."""
    async with asyncio.timeout(seconds):
        while not keys <= told(client):
            await client.read(0.5)


def told(client: Connection) -> set[bytes]:
    return {key for push in client.pushed for key in push.items[1] or ()}


@pytest.mark.parametrize("port", [0, CLUSTER_PORT])
async def test_every_write_is_told_wherever_the_owner_is(three: Cluster, port: int) -> None:
    keys = [key_in(p, three.partitions) for p in range(three.partitions)]
    reader, writer = await connect(three, 1, port), await connect(three, 0)
    await reader.call("CLIENT", "TRACKING", "ON")
    if port:  # Of this port a member answers what it owns.
        keys = [key for key in keys if three.rows[keys.index(key)].replicas[0] == 1]
    for key in keys:
        assert await reader.call("GET", key) is None
    for key in keys:
        await writer.call("SET", key, "1")
    await dropped(reader, set(keys))
    assert sorted(key for push in reader.pushed for key in push.items[1]) == sorted(keys)


async def test_broadcasts_come_from_all_owners(three: Cluster) -> None:
    keys = [key_in(p, three.partitions) for p in range(three.partitions)]
    reader, writer = await connect(three, 1), await connect(three, 0)
    await reader.call("CLIENT", "TRACKING", "ON", "BCAST")
    await reader.call("MGET", *keys)  # Behind the question for broadcasts on each session.
    for key in keys:
        await writer.call("SET", key, "1")
    await dropped(reader, set(keys))


async def test_a_member_that_owned_what_a_client_caches_is_lost(three: Cluster) -> None:
    mine = {key_in(p, three.partitions) for p, row in three.rows.items() if row.replicas[0] == 2}
    others = {key_in(p, three.partitions) for p, row in three.rows.items() if row.replicas[0] != 2}
    reader = await connect(three, 1)
    await reader.call("CLIENT", "TRACKING", "ON")
    await reader.call("MGET", *mine, *others)
    await three.members[2].kill()
    await dropped(reader, mine, 2 * LEASE_SECONDS + SLOW_SECONDS)
    assert not others & told(reader)


async def test_a_partition_that_is_swapped_or_cleared_is_dropped(three: Cluster) -> None:
    keys = {p: key_in(p, three.partitions) for p in three.rows}
    reader = await connect(three, 1)
    await reader.call("CLIENT", "TRACKING", "ON")
    await reader.call("MGET", *keys.values())
    backup = three.rows[3].replicas[1]
    assert backup is not None
    await three.swap(3, backup)
    await dropped(reader, {keys[3]})
    assert told(reader) == {keys[3]}


class Checker:
    """Writers that count, and readers with redis-py's near cache that compare."""

    def __init__(self, made: Cluster, keys: list[bytes]) -> None:
        self.made, self.keys = made, keys
        self.acknowledged: dict[bytes, list[tuple[float, int]]] = {key: [(0.0, 0)] for key in keys}
        self.wrong: list[str] = []
        self.reads = self.hits = 0
        self.over = False
        self._threads = [
            threading.Thread(target=self._write, args=(keys[0::2], 0)),
            threading.Thread(target=self._write, args=(keys[1::2], 1)),
            *(threading.Thread(target=self._read, args=(member,)) for member in (0, 1)),
        ]
        for thread in self._threads:
            thread.start()

    def _client(self, member: int, **how: object) -> redis.Redis:
        return redis.Redis(host=self.made.members[member].host, port=self.made.ports[0], **how)

    def _write(self, keys: list[bytes], member: int) -> None:
        with self._client(member) as client:
            for number in range(1, 1_000_000):
                for key in keys:
                    if self.over:
                        return
                    try:
                        client.set(key, number)
                    except redis.RedisError:
                        continue  # A lost owner: the write may come or not.
                    self.acknowledged[key].append((time.monotonic(), number))
                time.sleep(0.05)

    def _read(self, member: int) -> None:
        with self._client(member, protocol=3, cache_config=CacheConfig()) as client:
            while not self.over:
                for key in self.keys:
                    begin = time.monotonic()
                    try:
                        found = int(client.get(key) or 0)
                    except redis.RedisError:
                        continue
                    self._check(key, found, begin - 2 * LEASE_SECONDS - SLOW_SECONDS)
                time.sleep(0.005)

    def _check(self, key: bytes, found: int, since: float) -> None:
        self.reads += 1
        least = max(number for at, number in list(self.acknowledged[key]) if at <= since or not number)
        if found < least:
            self.wrong.append(f"{key!r} is {found}, {least} was acknowledged two leases before")

    async def end(self) -> None:
        self.over = True
        await asyncio.to_thread(lambda: [thread.join() for thread in self._threads])


async def test_redis_py_reads_nothing_old_while_partitions_move_swap_and_die(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        checker = Checker(made, [key_in(p, made.partitions) for p in range(made.partitions)])
        await asyncio.sleep(1.0)
        for partition, row in list(made.rows.items()):
            if partition % 2:
                assert row.replicas[1] is not None
                await made.swap(partition, row.replicas[1])
            else:
                (outside,) = set(made.members) - {each for each in row.replicas if each is not None}
                await made.move_owner(partition, outside)
        await made.members[2].kill()
        await made.lose(2)
        await made.served([0, 1])
        await asyncio.sleep(2 * LEASE_SECONDS + SLOW_SECONDS + 1.0)
        await checker.end()
        assert checker.wrong == []
        assert checker.reads > 100
        assert all(len(written) > 1 for written in checker.acknowledged.values())


async def test_a_million_tracked_keys_and_a_client_that_never_reads_are_bounded(one: Cluster) -> None:
    """Scaled down: the table has room for as many as its limit, and the rest is dropped."""
    enemy, writer = await connect(one, 0), await connect(one, 0)
    await enemy.call("CLIENT", "TRACKING", "ON")
    keys = [b"key-%d" % n for n in range(4_000)]
    for at in range(0, len(keys), 1_000):
        await enemy.call("MGET", *keys[at : at + 1_000])
    for at in range(0, len(keys), 500):
        await writer.call("MSET", *(word for key in keys[at : at + 500] for word in (key, b"1")))
    await enemy.read(1.0)
    assert Pushed((b"invalidate", None)) in enemy.pushed or told(enemy) == set(keys)
