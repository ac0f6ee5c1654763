"""Features of keyspaces together, and each while partitions get other owners: what other tests leave out.

docs/internals/combinations.md lists all pairs, with the tests that hold them.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from stele.core.formats import SPOKEN
from stele.core.kv.keyspaces import Catalog, Mode, NearCache, Quota, Reads, Replication, Settings
from tests.member.events.test_notifications import Subscriber
from tests.member.harness.cluster import Cluster, cluster, eventually, key_in

TTL_SECONDS = 1000
KEYSPACES = {
    "short": Settings(ttl_seconds=TTL_SECONDS),
    "small": Settings(quota=Quota(entries=2)),
    "fast": Settings(replication=Replication.ASYNC, notify="KEA"),
    "loud": Settings(notify="KEA"),
    "near": Settings(near_cache=NearCache(1 << 20, 60)),
    "recent": Settings(reads=Reads.AVAILABLE),
    "local": Settings(mode=Mode.INVALIDATION, local_cache_bytes=1 << 20),
}
PARTITION = 0


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three members with a keyspace of each kind; "small" may not grow."""
    async with cluster(tmp_path, 3) as made:
        made.catalog, made.features = Catalog(1, KEYSPACES), SPOKEN.most
        made.over_quota = ("small",)
        await made.publish()
        yield made


@asynccontextmanager
async def client(
    made: Cluster, member: int, keyspace: str, protocol: int = 2
) -> AsyncIterator[redis.asyncio.Redis]:
    """One connection to a member, in a keyspace."""
    host, port = made.members[member].host, made.ports[0]
    async with redis.asyncio.Redis(
        host=host, port=port, single_connection_client=True, protocol=protocol
    ) as one:
        await one.execute_command("SELECT", keyspace)
        yield one


def keys(made: Cluster) -> tuple[bytes, bytes]:
    """Two keys whose partitions have other owners."""
    return key_in(PARTITION, made.partitions), key_in(PARTITION + 1, made.partitions)


async def exec_of(one: redis.asyncio.Redis, *commands: tuple[Any, ...]) -> Any:
    """Run them on the connection of the client; its pipelines have others."""
    for each in (("MULTI",), *commands):
        await one.execute_command(*each)
    replies = await one.execute_command("EXEC")
    if error := next((each for each in replies if isinstance(each, Exception)), None):
        raise error
    return replies


# -- another owner


async def move(made: Cluster) -> None:
    (free,) = {0, 1, 2} - set(made.rows[PARTITION].replicas)
    await made.move_owner(PARTITION, free)


async def swap(made: Cluster) -> None:
    backup = made.rows[PARTITION].replicas[1]
    assert backup is not None
    await made.swap(PARTITION, backup)


async def promotion(made: Cluster) -> None:
    lost = made.owner(PARTITION)
    await made.members[lost].kill()
    made.members[lost].process = None
    await made.lose(lost)


async def restart(made: Cluster) -> None:
    await made.restart(made.owner(PARTITION))
    await made.publish()
    await made.served()


CHANGES = (move, swap, promotion, restart)
Change = Callable[[Cluster], Awaitable[None]]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
async def test_settings_hold_at_the_next_owner(made: Cluster, change: Change) -> None:
    """The default time to live, of entries before and after, and that a quota is reached."""
    first, second = key_in(PARTITION, made.partitions), key_in(PARTITION, made.partitions, 1)
    async with client(made, made.owner(PARTITION), "short") as one:
        await one.set(first, "v")
    await change(made)
    owner = made.owner(PARTITION)
    async with client(made, owner, "short") as one:
        assert 0 < await one.ttl(first) <= TTL_SECONDS
        await one.set(second, "v")
        assert 0 < await one.ttl(second) <= TTL_SECONDS
    async with client(made, owner, "small") as one:
        with pytest.raises(redis.RedisError, match="keyspace small has reached its quota of 2 entries"):
            await one.set(first, "v")
        assert await one.delete(first) == 0


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
async def test_a_near_cache_is_right_after_another_owner(made: Cluster, change: Change) -> None:
    """What another member kept is dropped, or replaced, in time: here as soon as it knows of the change."""
    key, owner = key_in(PARTITION, made.partitions), made.owner(PARTITION)
    (reader,) = {0, 1, 2} - set(made.rows[PARTITION].replicas)
    async with client(made, owner, "near") as writer, client(made, reader, "near") as other:
        await writer.set(key, "old")
        assert [await other.get(key) for _ in range(3)] == [b"old"] * 3
        await change(made)
        async with client(made, made.owner(PARTITION), "near") as now:
            await now.set(key, "new")

        async def read() -> bytes:
            return bytes(await other.get(key))

        await eventually(read, lambda value: value == b"new")


# -- the state of the cluster


@pytest.mark.parametrize("keyspace", ["short", "fast", "loud", "near", "recent"])
async def test_passive_refuses_writes_of_every_kind(made: Cluster, keyspace: str) -> None:
    a, b = keys(made)
    async with client(made, 0, keyspace) as one:
        await one.set(a, "v")
        made.state = "Passive"
        await made.publish()
        with pytest.raises(redis.RedisError, match="CLUSTER_PASSIVE"):
            await one.set(a, "w")
        with pytest.raises(redis.RedisError, match="CLUSTER_PASSIVE"):
            await exec_of(one, ("SET", a, "w"), ("SET", b, "w"))
        assert await one.get(a) == b"v"
        made.state = "Active"
        await made.publish()
        assert await one.set(a, "w")


async def test_passive_leaves_local_caches_alone(made: Cluster) -> None:
    """Nothing of them is stored, and what has changed in the source must be droppable."""
    made.state = "Passive"
    await made.publish()
    async with client(made, 0, "local") as one:
        assert await one.set("k", "v")
        assert await one.delete("k") == 1


# -- transactions across partitions


async def test_a_transaction_gives_entries_the_time_to_live(made: Cluster) -> None:
    a, b = keys(made)
    async with client(made, 2, "short") as one:
        assert await exec_of(one, ("SET", a, "v"), ("SET", b, "v", "EX", 50)) == [b"OK", b"OK"]
        assert 50 < await one.ttl(a) <= TTL_SECONDS
        assert 0 < await one.ttl(b) <= 50


async def test_a_transaction_beyond_a_quota_does_nothing(made: Cluster) -> None:
    """Neither where it comes first nor where it is decided; another that fits goes on."""
    a, b = keys(made)
    async with client(made, 2, "small") as one:
        for commands in ((("SET", a, "v"), ("DEL", b)), (("DEL", a), ("SET", b, "v"))):
            with pytest.raises(redis.RedisError, match="reached its quota"):
                await exec_of(one, *commands)
        assert await exec_of(one, ("DEL", a), ("DEL", b)) == [0, 0]
        assert await one.mget(a, b) == [None, None]


@pytest.mark.parametrize("keyspace", ["fast", "loud"])
async def test_a_transaction_publishes_the_events_of_all_its_partitions(made: Cluster, keyspace: str) -> None:
    a, b = keys(made)
    listener = await Subscriber(made, 2).start(f"__keyspace@{keyspace}__:*", f"__keyevent@{keyspace}__:*")
    try:
        async with client(made, 0, keyspace) as one:
            await exec_of(one, ("SET", a, "1"), ("INCR", b), ("DEL", a))
        await listener.until(lambda: len(listener.of(a, keyspace.encode())) == 2)
        await listener.until(lambda: len(listener.of(b, keyspace.encode())) == 1)
        assert listener.of(a, keyspace.encode()) == [b"set", b"del"]
        assert listener.of(b, keyspace.encode()) == [b"incrby"]
    finally:
        await listener.close()


async def test_a_transaction_is_seen_whole_in_near_caches(made: Cluster) -> None:
    """At once through the member that ran it; at others once they have heard of it."""
    a, b = keys(made)
    async with client(made, 2, "near") as one, client(made, 0, "near") as other:
        assert await exec_of(one, ("SET", a, "1"), ("SET", b, "1")) == [b"OK", b"OK"]
        assert [await each.mget(a, b) for each in (one, other)] == [[b"1", b"1"]] * 2
        assert await exec_of(one, ("SET", a, "2"), ("SET", b, "2")) == [b"OK", b"OK"]
        assert await one.mget(a, b) == [b"2", b"2"]

        async def read() -> list[bytes]:
            return list(await other.mget(a, b))

        await eventually(read, lambda values: values == [b"2", b"2"])


async def test_a_connection_reads_its_transaction_at_backups(made: Cluster) -> None:
    a, b = keys(made)
    for member in range(3):
        async with client(made, member, "recent") as one:
            for number in range(20):
                value = b"%d-%d" % (member, number)
                await exec_of(one, ("SET", a, value), ("SET", b, value))
                assert await one.mget(a, b) == [value, value]


async def test_an_event_of_an_async_write_waits_for_its_commit(made: Cluster) -> None:
    """It cannot be taken back: a lost owner loses what it answered, and nobody has heard of it."""
    key = key_in(PARTITION, made.partitions)
    owner, backup, *_ = made.rows[PARTITION].replicas
    assert owner is not None
    assert backup is not None
    listener = await Subscriber(made, owner).start("__keyspace@fast__:*")
    try:
        async with client(made, owner, "fast") as one:
            made.members[backup].signal(signal.SIGSTOP)
            await one.set(key, "v")
            await asyncio.sleep(0.2)
            assert listener.of(key, b"fast") == []
            made.members[backup].signal(signal.SIGCONT)
            await listener.until(lambda: listener.of(key, b"fast") == [b"set"])
    finally:
        await listener.close()
