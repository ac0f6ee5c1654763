"""Keyspaces with all settings, alone and together, through all that befalls the owner of their partition."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stele.core.kv.keyspaces import Mode, NearCache, Quota, Reads, Replication, Settings
from tests.member.harness.clients import RespError
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in

PARTITION, PARTITIONS = 0, 2
TTL_SECONDS = 1000
KEYSPACES = {
    "ttl": Settings(ttl_seconds=TTL_SECONDS),
    "notify": Settings(notify="KEA"),
    "reads": Settings(reads=Reads.AVAILABLE),
    "near-cache": Settings(near_cache=NearCache(1 << 20, 3600)),
    "quota": Settings(quota=Quota(1000, 1 << 20)),
    "async": Settings(replication=Replication.ASYNC),
    "all": Settings(
        TTL_SECONDS, "KEA", NearCache(1 << 20, 3600), Reads.AVAILABLE, Quota(1000), Replication.ASYNC
    ),
}
"""Keyspaces whose entries are in partitions."""


async def move(made: Cluster, partition: int = PARTITION) -> None:
    (outside,) = set(made.members) - set(made.rows[partition].replicas)
    await made.move_owner(partition, outside)


async def swap(made: Cluster, partition: int = PARTITION) -> None:
    backup = made.rows[partition].replicas[1]
    assert backup is not None
    await made.swap(partition, backup)


async def swap_when_fed(made: Cluster, partition: int) -> None:
    """The same, as soon as the backup has everything: it may have been restarted just now."""
    id, backup = made.id(), made.rows[partition].replicas[1]
    assert backup is not None
    await eventually(lambda: made.hand_over(id, partition, backup), lambda result: result.code == "OK")
    await made.swap(partition, backup, id)


async def promotion(made: Cluster, partition: int = PARTITION) -> None:
    owner = made.owner(partition)
    await made.members[owner].kill()
    await made.lose(owner)


async def restart(made: Cluster, partition: int = PARTITION) -> None:
    await started_again(made, made.owner(partition))


async def update(made: Cluster, partition: int = PARTITION) -> None:
    """As the operator restarts members: what one owns is given to its backup before, and it ends politely."""
    for member in made.members:
        for owned, row in list(made.rows.items()):
            if row.replicas[0] == member:
                await swap_when_fed(made, owned)
        assert await made.members[member].stop() == 0
        await started_again(made, member)


async def started_again(made: Cluster, member: int) -> None:
    await made.restart(member)
    await made.publish()
    await made.served()


EVENTS = {event.__name__: event for event in (move, swap, promotion, restart, update)}
Event = Callable[..., Awaitable[None]]


@asynccontextmanager
async def declared(folder: Path) -> AsyncIterator[Cluster]:
    async with cluster(folder, 3, PARTITIONS) as made:
        await made.declare(KEYSPACES)
        yield made


class Counters:
    """A counter in each keyspace, and a connection to each member for it."""

    def __init__(self, made: Cluster) -> None:
        self._made, self._key, self._count = made, key_in(PARTITION, PARTITIONS), 0
        self._clients: dict[tuple[str, int], Client] = {}

    async def call(self, keyspace: str, member: int, *args: bytes) -> Any:
        if (keyspace, member) not in self._clients:
            self._clients[keyspace, member] = Client(self._made)
            await self._clients[keyspace, member].call(member, b"SELECT", keyspace.encode())
        return await self._clients[keyspace, member].call(member, *args)

    async def all(self) -> None:
        """Count through every member that runs: nothing is lost, or done twice, and each reads its write."""
        for member, process in self._made.members.items():
            if process.process is not None:
                self._count += 1
                for keyspace in KEYSPACES:
                    await self._one(keyspace, member)

    async def _one(self, keyspace: str, member: int) -> None:
        assert await self.call(keyspace, member, b"INCR", self._key) == self._count, keyspace
        assert await self.call(keyspace, member, b"GET", self._key) == b"%d" % self._count, keyspace
        if self._count == 1:
            # INCR keeps the expiry, which the first one has given.
            assert await self.call(keyspace, member, b"WAIT", b"1", b"5000") == 1
        left = await self.call(keyspace, member, b"TTL", self._key)
        expires = KEYSPACES[keyspace].ttl_seconds > 0
        assert (TTL_SECONDS - 60 < left <= TTL_SECONDS) if expires else left == -1, keyspace

    async def held(self) -> None:
        """All replicas have it: with Async the loss of the owner would take the last ones along."""
        for keyspace in KEYSPACES:
            await self.call(keyspace, self._made.owner(PARTITION), b"INCR", b"other" + self._key)
        replicas = [each for each in self._made.rows[PARTITION].replicas if each is not None]
        for keyspace in KEYSPACES:
            await self._made.same(PARTITION, *replicas, keyspace=keyspace)

    def forget(self) -> None:
        """Connections that may have ended."""
        self._clients.clear()


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
async def test_nothing_is_lost_or_done_twice_with_any_settings(tmp_path: Path, event: Event) -> None:
    async with declared(tmp_path) as made:
        counters = Counters(made)
        await counters.all()
        await counters.held()
        await event(made)
        counters.forget()
        await counters.all()


async def test_states_refuse_writes_with_any_settings(tmp_path: Path) -> None:
    async with declared(tmp_path) as made:
        counters, key = Counters(made), key_in(PARTITION, PARTITIONS)
        await counters.all()
        made.state = "Passive"
        await made.publish()
        for member in made.members:
            for keyspace in KEYSPACES:
                with pytest.raises(RespError, match="CLUSTER_PASSIVE"):
                    await counters.call(keyspace, member, b"INCR", key)
                assert await counters.call(keyspace, member, b"GET", key) == b"3"
        made.state = "Active"
        await made.publish()
        await counters.all()


async def test_changes_that_leave_a_local_cache_alone(tmp_path: Path) -> None:
    """Nothing of it is in partitions: moves, swaps and states take nothing away, and hold nothing up."""
    async with cluster(tmp_path, 3, PARTITIONS) as made:
        await made.declare({"local": Settings(mode=Mode.INVALIDATION, local_cache_bytes=1 << 20)})
        clients = [Client(made) for _ in made.members]
        for member, client in enumerate(clients):
            await client.call(member, b"SELECT", b"local")

            async def hits(member: int = member, client: Client = client) -> bool:
                await client.call(member, b"SET", b"warm", b"x")
                return bool(await client.call(member, b"GET", b"warm") == b"x")

            await eventually(hits, bool)
            await client.call(member, b"SET", b"k-%d" % member, b"v")

        async def passive(made: Cluster) -> None:
            made.state = "Passive"
            await made.publish()

        for number, event in enumerate((move, swap, passive)):
            await event(made)
            for member, client in enumerate(clients):
                assert await client.call(member, b"GET", b"k-%d" % member) == b"v"
                assert await client.call(member, b"SET", b"n-%d" % member, b"%d" % number) == b"OK"
                assert await client.call(member, b"GET", b"n-%d" % member) == b"%d" % number
