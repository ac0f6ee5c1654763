"""Transactions through real members whose partitions are swapped, moved and lost: all or nothing."""

import asyncio
from pathlib import Path

import pytest
import redis.asyncio

from tests.member.harness.cluster import Cluster, cluster, key_in
from tests.member.harness.load import Service

SUM = 1_000


def tag(made: Cluster, partition: int) -> bytes:
    return b"{%b}" % key_in(partition, made.partitions)


class Transfers:
    """Clients that move amounts between two accounts of each partition, and others that add both up."""

    def __init__(self, made: Cluster, service: Service) -> None:
        self._made, self._service = made, service
        self.done = self.sums = 0
        self.wrong: list[object] = []
        self._over = False

    async def start(self) -> None:
        async with self._service.asyncio_client() as client:
            for partition in range(self._made.partitions):
                name = tag(self._made, partition)
                await client.mset({name + b"a": SUM, name + b"b": 0})
        self._tasks = [asyncio.ensure_future(run(n)) for n in range(2) for run in (self._move, self._add_up)]

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _move(self, number: int) -> None:
        async with self._service.asyncio_client() as client:
            while not self._over:
                for partition in range(number, self._made.partitions, 2):
                    name = tag(self._made, partition)
                    async with client.pipeline() as pipe:
                        pipe.decrby(name + b"a", 7).incrby(name + b"b", 7)
                        try:
                            await pipe.execute()
                            self.done += 1
                        except redis.RedisError:
                            pass  # Of a member that was killed; whether it is done is not known.

    async def _add_up(self, number: int) -> None:
        async with self._service.asyncio_client() as client:
            while not self._over:
                for partition in range(self._made.partitions):
                    await self._check(client, partition)

    async def _check(self, client: "redis.asyncio.Redis", partition: int) -> None:
        name = tag(self._made, partition)
        async with client.pipeline() as pipe:
            try:
                found = await pipe.get(name + b"a").get(name + b"b").execute()
            except redis.RedisError:
                return
        self.sums += 1
        if sum(map(int, found)) != SUM:
            self.wrong.append((partition, found))


async def change_owners(made: Cluster) -> None:
    for partition, row in list(made.rows.items()):
        backup = row.replicas[1]
        assert backup is not None
        (outside,) = set(made.members) - set(row.replicas)
        await (made.swap(partition, backup) if partition % 2 else made.move_owner(partition, outside))


async def test_sums_are_constant_while_owners_change_and_die(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        service = Service([member.host for member in made.members.values()], made.ports[0])
        transfers = Transfers(made, service)
        await transfers.start()
        await asyncio.sleep(0.5)
        await change_owners(made)
        service.hosts.remove(made.members[1].host)
        await made.members[1].kill()
        await made.lose(1)
        await made.served([0, 2])
        before = transfers.done, transfers.sums
        await asyncio.sleep(1.0)
        await transfers.end()
        assert transfers.wrong == []
        assert transfers.done > before[0] > 0
        assert transfers.sums > before[1] > 0
        async with service.asyncio_client() as client:
            for partition in range(made.partitions):
                name = tag(made, partition)
                a, b = await client.mget(name + b"a", name + b"b")
                assert int(a) + int(b) == SUM


async def test_watched_updates_are_not_lost_while_owners_change(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        service = Service([member.host for member in made.members.values()], made.ports[0])
        keys = [tag(made, partition) for partition in range(0, made.partitions, 4)]
        counts, over = dict.fromkeys(keys, 0), False

        async def count_up() -> None:
            async def add_one(pipe: "redis.asyncio.client.Pipeline") -> None:
                value = int(await pipe.get(key) or 0)
                pipe.multi()
                pipe.set(key, value + 1)

            async with service.asyncio_client() as client:
                while not over:
                    for key in keys:
                        await client.transaction(add_one, key)
                        counts[key] += 1

        tasks = [asyncio.ensure_future(count_up()) for _ in range(3)]
        await asyncio.sleep(0.5)
        await change_owners(made)
        await asyncio.sleep(0.5)
        over = True
        await asyncio.gather(*tasks)
        async with service.asyncio_client() as client:
            for key, count in counts.items():
                assert int(await client.get(key)) == count > 0


async def test_a_transaction_is_durable_as_a_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        service = Service([made.members[0].host], made.ports[0])
        async with service.asyncio_client() as client, client.pipeline() as pipe:
            pipe.set(b"{t}a", 1).set(b"{t}b", 2).delete(b"{t}c")
            assert await pipe.execute() == [True, True, 0]
        await made.restart(0)
        await made.publish()
        await made.served()
        async with service.asyncio_client() as client:
            assert await client.mget(b"{t}a", b"{t}b") == [b"1", b"2"]


async def test_a_transaction_cannot_make_the_owner_read_without_end(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        service = Service([made.members[0].host], made.ports[0])
        async with service.asyncio_client() as client:
            keys = [b"{t}%d" % number for number in range(3)]
            for key in keys:
                await client.set(key, b"v" * 7_000_000)
            async with client.pipeline() as pipe:
                for key in keys:
                    pipe.strlen(key)
                with pytest.raises(redis.ResponseError, match="looks at values of more than 16777216 bytes"):
                    await pipe.execute()
                for _ in range(500):
                    pipe.strlen(keys[0])
                assert await pipe.execute() == [7_000_000] * 500, "of one key once"
                pipe.get(keys[0]).get(keys[1])
                with pytest.raises(redis.ResponseError, match="replies of 14000000 bytes exceed the limit"):
                    await pipe.execute()
                await pipe.watch(*keys)
                pipe.multi()
                pipe.set(keys[0], 1)
                with pytest.raises(redis.ResponseError, match="looks at values"):
                    await pipe.execute()
            assert await client.strlen(keys[0]) == 7_000_000
