"""Keyspace notifications of three real members, also while partitions move and owners die."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
import redis.asyncio

from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from stele.core.kv.keyslot import partition_of
from stele.core.kv.keyspaces import Catalog, Settings
from stele.member import limits
from tests.member.harness.cluster import HASTY, Cluster, cluster, eventually, key_in

PLAIN, CLUSTER = 0, 5
"""Places of the ports in `Cluster.ports`."""


@asynccontextmanager
async def notifying(folder: Path, notify: str = "KEA", **env: str) -> AsyncIterator[Cluster]:
    """Three members; `default` and `orders` publish these events, other keyspaces none."""
    async with cluster(folder, 3, **env) as made:
        settings = Settings(notify=notify)
        made.catalog = Catalog(1, {"default": settings, "orders": settings})
        made.features = SPOKEN.most
        await made.publish()
        yield made


class Subscriber:
    """Hears events at one member until `close`."""

    def __init__(self, made: Cluster, member: int, port: int = PLAIN, protocol: int = 2) -> None:
        self.client = redis.asyncio.Redis(
            host=made.members[member].host, port=made.ports[port], protocol=protocol
        )
        self._pubsub = self.client.pubsub()
        self.heard: list[tuple[bytes, bytes]] = []

    async def start(self, *patterns: str) -> "Subscriber":
        await self._pubsub.psubscribe(*(patterns or ("__key*__:*", "__stele__:*")))
        for _ in patterns or (1, 2):
            await self._pubsub.get_message(timeout=10)
        self._task = asyncio.create_task(self._hear())
        return self

    async def _hear(self) -> None:
        async for message in self._pubsub.listen():
            self.heard.append((message["channel"], message["data"]))

    def of(self, key: bytes, database: bytes = b"0") -> list[bytes]:
        return [data for channel, data in self.heard if channel == b"__keyspace@%b__:%b" % (database, key)]

    @property
    def gaps(self) -> set[int]:
        return {json.loads(data)["partition"] for channel, data in self.heard if channel == b"__stele__:gap"}

    async def until(self, condition) -> None:
        async def heard() -> list[tuple[bytes, bytes]]:
            return self.heard

        await eventually(heard, lambda _: condition())

    async def close(self) -> None:
        self._task.cancel()
        await self._pubsub.aclose()
        await self.client.aclose()


@asynccontextmanager
async def subscribers(made: Cluster, *members: int, port: int = PLAIN) -> AsyncIterator[list[Subscriber]]:
    all = [
        await Subscriber(made, member, port, 2 + number % 2).start() for number, member in enumerate(members)
    ]
    try:
        yield all
    finally:
        for each in all:
            await each.close()


class Writer:
    """Sets keys through one member, again and again, and counts what was acknowledged."""

    def __init__(self, made: Cluster, member: int, keys: list[bytes]) -> None:
        self._client = redis.asyncio.Redis(host=made.members[member].host, port=made.ports[PLAIN])
        self._keys = keys
        self._over = False
        self.acknowledged: Counter[bytes] = Counter()
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while not self._over:
            for key in self._keys:
                try:
                    await self._client.set(key, self.acknowledged[key])
                    self.acknowledged[key] += 1
                except redis.RedisError:
                    await asyncio.sleep(0.05)

    async def end(self) -> Counter[bytes]:
        self._over = True
        await self._task
        await self._client.aclose()
        return self.acknowledged


async def check(made: Cluster, listener: Subscriber, acknowledged: Counter[bytes]) -> int:
    """Wait until each acknowledged SET has its event, or its partition a gap. Returns the gaps."""

    def missing() -> dict[bytes, int]:
        return {
            key: count - len(listener.of(key))
            for key, count in acknowledged.items()
            if len(listener.of(key)) < count and partition_of(key, made.partitions) not in listener.gaps
        }

    await listener.until(lambda: not missing())
    return len(listener.gaps)


def keys_of(made: Cluster) -> list[bytes]:
    return [key_in(p, made.partitions, seed) for seed in range(2) for p in range(made.partitions)]


async def test_every_member_hears_of_all_partitions(tmp_path: Path) -> None:
    async with notifying(tmp_path) as made, subscribers(made, 0, 1, 2) as all:
        keys = keys_of(made)
        for key in keys:
            await all[0].client.set(key, 1)
        for each in all:
            await each.until(lambda each=each: len(each.heard) == 2 * len(keys))
            assert all_events(each) == {key: [b"set"] for key in keys}
            assert each.gaps == set()


def all_events(listener: Subscriber) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for channel, data in listener.heard:
        if channel.startswith(b"__keyspace@0__:"):
            found.setdefault(channel.removeprefix(b"__keyspace@0__:"), []).append(data)
    return found


async def test_a_subscriber_of_the_cluster_port_hears_of_its_member(tmp_path: Path) -> None:
    async with notifying(tmp_path) as made, subscribers(made, 0, 1, 2, port=CLUSTER) as all:
        keys = keys_of(made)
        async with redis.asyncio.Redis(host=made.members[0].host, port=made.ports[PLAIN]) as client:
            for key in keys:
                await client.set(key, 1)
        owned = [[key for key in keys if made.owner(partition_of(key, 16)) == member] for member in range(3)]
        for each, mine in zip(all, owned, strict=True):
            await each.until(lambda each=each, mine=mine: len(each.heard) >= 2 * len(mine))
            assert sorted(all_events(each)) == sorted(mine)


async def test_only_declared_keyspaces_publish(tmp_path: Path) -> None:
    async with notifying(tmp_path, "Kg") as made, subscribers(made, 0) as (listener,):
        async with redis.asyncio.Redis(host=made.members[1].host, port=made.ports[PLAIN]) as client:
            assert await client.config_get("notify*") == {"notify-keyspace-events": "Kg"}
            with pytest.raises(redis.ResponseError, match=r"spec\.notify of the Keyspace"):
                await client.config_set("notify-keyspace-events", "KEA")
            for space in (b"other", b"3", b"orders", b"0"):
                await client.execute_command("SELECT", space)
                await client.execute_command("SET", "k", "1")
                await client.execute_command("DEL", "k")
        await listener.until(lambda: len(listener.heard) == 2)
        assert sorted(listener.heard) == [(b"__keyspace@0__:k", b"del"), (b"__keyspace@orders__:k", b"del")]


async def test_expired_entries_are_reported(tmp_path: Path) -> None:
    async with notifying(tmp_path) as made, subscribers(made, 2) as (listener,):
        await listener.client.set("k", 1, px=50)
        await listener.until(lambda: listener.of(b"k") == [b"set", b"expire", b"expired"])


async def test_a_transaction_publishes_the_events_of_its_commands(tmp_path: Path) -> None:
    """In their order; the log has each key once, and the events have it once per command."""
    async with notifying(tmp_path) as made, subscribers(made, 0) as (listener,):
        async with listener.client.pipeline() as pipeline:
            for _ in range(20):
                pipeline.set("{k}a", 1, ex=100).incr("{k}b").append("{k}a", 2).delete("{k}b")
            await pipeline.execute()
        await listener.until(lambda: len(listener.of(b"{k}b")) == 40)
        assert listener.of(b"{k}a") == [b"set", b"expire", b"append"] * 20
        assert listener.of(b"{k}b") == [b"incrby", b"del"] * 20
        for _ in range(5):
            async with listener.client.pipeline() as pipeline:
                for _ in range(900):
                    pipeline.incr("{k}c")
                await pipeline.execute()
        await listener.until(lambda: len(listener.of(b"{k}c")) == 4500)
        assert set(listener.of(b"{k}c")) == {b"incrby"}
        assert not listener.gaps


async def test_each_acknowledged_set_has_its_event_while_owners_change(tmp_path: Path) -> None:
    async with notifying(tmp_path) as made, subscribers(made, 0, 1, 2) as all:
        for member in made.members.values():
            await member.start_transfer()
        writers = [Writer(made, member, keys_of(made)[member::3]) for member in range(3)]
        await asyncio.sleep(0.3)
        for partition, row in list(made.rows.items()):
            if partition % 2:
                await made.swap(partition, row.replicas[1])
            else:
                (outside,) = set(made.members) - set(row.replicas)
                await made.move_owner(partition, outside)
        await asyncio.sleep(0.3)
        acknowledged = Counter[bytes]()
        for writer in writers:
            acknowledged += await writer.end()
        for each in all:
            assert await check(made, each, acknowledged) == 0
            moved = [json.loads(data) for channel, data in each.heard if channel == b"__stele__:partitions"]
            assert {each["partition"] for each in moved} == set(range(16))


async def test_each_acknowledged_set_has_its_event_or_a_gap_when_an_owner_dies(tmp_path: Path) -> None:
    async with notifying(tmp_path) as made, subscribers(made, 0, 2) as all:
        writers = [Writer(made, member, keys_of(made)[member::3]) for member in (0, 2)]
        await asyncio.sleep(0.5)
        await made.members[1].kill()
        await made.lose(1)
        await made.served([0, 2])
        await asyncio.sleep(0.5)
        acknowledged = Counter[bytes]()
        for writer in writers:
            acknowledged += await writer.end()
        assert sum(acknowledged.values()) > 100
        for each in all:
            assert await check(made, each, acknowledged) == 0


async def move_away(made: Cluster, partition: int) -> None:
    """Move the owner of a partition to the member without a replica; the old one deletes its own."""
    (outside,) = set(made.members) - set(made.rows[partition].replicas)
    await made.move_owner(partition, outside)


async def delete_tablet(made: Cluster, member: int, partition: int) -> None:
    await made.order(member, m.DeleteTablet(partition, made.version(partition)))


def moved(listener: Subscriber, event: bytes) -> Counter[bytes]:
    channel = b"__keyevent@0__:" + event
    return Counter(data for heard, data in listener.heard if heard == channel)


async def test_entries_arrive_and_depart(tmp_path: Path) -> None:
    async with notifying(tmp_path, "EM") as made, subscribers(made, 0, 1, 2) as all:
        for member in made.members.values():
            await member.start_transfer()
        keys = [key_in(0, made.partitions, seed) for seed in range(5)]
        for key in keys:
            await all[0].client.set(key, 1)
        await move_away(made, 0)
        for each in all:
            await each.until(lambda each=each: moved(each, b"arrived").keys() == set(keys))
            await each.until(lambda each=each: moved(each, b"departed") == Counter(keys))


@pytest.mark.parametrize("point", ["block.deleted:1", "block.deleted:2"])
async def test_a_departure_is_never_reported_twice(tmp_path: Path, point: str) -> None:
    async with notifying(tmp_path, "EM", **HASTY) as made:
        for member in made.members.values():
            await member.start_transfer()
        keys = [key_in(0, made.partitions, seed) for seed in range(5)]
        source = made.owner(0)
        listening = next(index for index in made.members if index != source)
        async with subscribers(made, listening) as (listener,):
            for key in keys:
                await listener.client.set(key, 1)
            await asyncio.sleep(2.5)  # It is flushed: what is in the log alone is not reported after a crash.
            await made.members[source].kill()
            await made.members[source].start(STELE_CRASH_POINT=point)
            await made.hello(made.members[source])
            await made.publish()
            await made.served()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(move_away(made, 0), 10)
            await eventually_dead(made, source)
            await made.restart(source)
            await made.publish()
            await delete_tablet(made, source, 0)
            if point == "block.deleted:1":
                await listener.until(lambda: moved(listener, b"departed").keys() == set(keys))
            await made.restart(source)
            await made.publish()
            await asyncio.sleep(limits.DEPARTURES_AFTER_SECONDS + 2.0)
            assert moved(listener, b"departed") == Counter(keys if point == "block.deleted:1" else ())


async def eventually_dead(made: Cluster, member: int) -> None:
    async with asyncio.timeout(20):
        await made.members[member].process.wait()
