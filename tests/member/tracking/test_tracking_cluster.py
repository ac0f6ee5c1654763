"""Near caches at three real members: whichever member owns a key, and while partitions move, swap and die."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
import redis.cluster
from redis.cache import CacheConfig, CacheInterface, CacheKey

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
    """Writers that count, readers with redis-py's near cache that compare, and a measure of how slow all is.

    `oldest` is the longest time for which a write had been acknowledged when a read began that missed it,
    `lag` the longest time that each reader's member took to answer PING.
    """

    def __init__(self, made: Cluster, keys: list[bytes], port: int) -> None:
        self.made, self.keys, self.port = made, keys, port
        self.acknowledged: dict[bytes, list[tuple[float, int]]] = {key: [] for key in keys}
        self.oldest, self.lag = 0.0, {0: 0.0, 1: 0.0}
        self.reads = self.hits = 0
        self.over = False
        self._threads = [
            threading.Thread(target=self._write, args=(keys[0::2], 0)),
            threading.Thread(target=self._write, args=(keys[1::2], 1)),
            *(threading.Thread(target=self._read, args=(member,)) for member in self.lag),
            *(threading.Thread(target=self._ask, args=(member,)) for member in self.lag),
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, keys: list[bytes], member: int) -> None:
        with redis.Redis(host=self.made.members[member].host, port=self.made.ports[0]) as client:
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
        kind = redis.cluster.RedisCluster if self.port == CLUSTER_PORT else redis.Redis
        address = {"host": self.made.members[member].host, "port": self.made.ports[self.port]}
        with kind(**address, protocol=3, cache_config=CacheConfig()) as client:
            cache = cache_of(client)
            while not self.over:
                for key in self.keys:
                    entry = cache.get(CacheKey("GET", (key,), ("GET", key)))
                    begin = time.monotonic()
                    try:
                        found = int(client.get(key) or 0)
                    except redis.RedisError:
                        continue
                    self._check(key, found, begin)
                    # What is asked for again has a new entry.
                    self.hits += entry is not None and cache.get(entry.cache_key) is entry
                time.sleep(0.005)

    def _check(self, key: bytes, found: int, begin: float) -> None:
        self.reads += 1
        missed = (at for at, number in reversed(self.acknowledged[key].copy()) if number > found)
        self.oldest = max([self.oldest, *(begin - at for at in missed)])

    def _ask(self, member: int) -> None:
        with redis.Redis(host=self.made.members[member].host, port=self.made.ports[0]) as client:
            while not self.over:
                begin = time.monotonic()
                client.ping()
                self.lag[member] = max(self.lag[member], time.monotonic() - begin)
                time.sleep(0.01)

    async def end(self) -> None:
        self.over = True
        await asyncio.to_thread(lambda: [thread.join() for thread in self._threads])


def cache_of(client: redis.Redis | redis.cluster.RedisCluster) -> CacheInterface:
    """The cache of a client, which is one for all members."""
    if isinstance(client, redis.Redis):
        return client.get_cache()
    return client.get_redis_connection(client.get_default_node()).get_cache()


@pytest.mark.parametrize("port", [0, CLUSTER_PORT], ids=["any member", "cluster client"])
async def test_redis_py_reads_nothing_old_while_partitions_move_swap_and_die(
    tmp_path: Path, port: int
) -> None:
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        checker = Checker(made, [key_in(p, made.partitions) for p in range(made.partitions)], port)
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
        await asyncio.sleep(2 * LEASE_SECONDS + 1.0)
        await checker.end()
        # A change passes its owner, the client's member, and the client, each as slow as the machine is.
        assert checker.oldest <= 2 * LEASE_SECONDS + sum(checker.lag.values()), checker.lag
        assert checker.hits > 100
        assert all(len(written) > 1 for written in checker.acknowledged.values())


async def test_a_client_that_does_not_read_for_long_is_told_of_each_key_or_of_all(one: Cluster) -> None:
    enemy, writer = await connect(one, 0), await connect(one, 0)
    await enemy.call("CLIENT", "TRACKING", "ON")
    keys = [b"key-%d" % n for n in range(4_000)]
    for at in range(0, len(keys), 1_000):
        await enemy.call("MGET", *keys[at : at + 1_000])
    for at in range(0, len(keys), 500):
        await writer.call("MSET", *(word for key in keys[at : at + 500] for word in (key, b"1")))
    await enemy.read(1.0)
    assert Pushed((b"invalidate", None)) in enemy.pushed or told(enemy) == set(keys)
