"""Transactions across partitions through real members, whose partitions move and whose processes die."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from stele.core.formats import TRANSACTIONS
from stele.core.kv.transaction import WATCHED_KEYS_MAX
from stele.member.storage import failpoints
from tests.member.harness.cluster import Cluster, cluster, key_in
from tests.member.harness.load import Service
from tests.member.harness.reference import redis_server
from tests.member.serving.test_transactions import change_owners

ACCOUNTS, EACH = 8, 100


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three members that may run transactions across partitions."""
    async with cluster(tmp_path, 3) as made:
        made.features = TRANSACTIONS
        await made.publish()
        yield made


def key(made: Cluster, partition: int, name: bytes = b"") -> bytes:
    return key_in(partition, made.partitions) + name


def service_of(made: Cluster) -> Service:
    return Service([member.host for member in made.members.values()], made.ports[0])


def keys_of(made: Cluster) -> list[bytes]:
    return [key(made, partition) for partition in range(ACCOUNTS)]


async def test_replies_are_in_the_order_of_the_commands(made: Cluster) -> None:
    a, b, c, *_ = keys_of(made)
    async with service_of(made).asyncio_client() as client:
        for _ in range(3):
            async with client.pipeline() as pipe:
                pipe.set(a, 1).set(b, "text").incr(a).get(c).mget(b, a).delete(a, b)
                assert await pipe.execute() == [True, True, 2, None, [b"text", b"2"], 2]
        async with client.pipeline() as pipe:
            pipe.set(a, "text").incr(a).set(b, 1)
            found = await pipe.execute(raise_on_error=False)
            assert isinstance(found[1], redis.ResponseError)
            assert [found[0], found[2]] == [True, True]


async def test_watched_keys_in_several_partitions(made: Cluster) -> None:
    a, b, c, *_ = keys_of(made)
    async with service_of(made).asyncio_client() as client:
        for touched in (a, b, c):
            async with client.pipeline() as pipe:
                await pipe.watch(a, b, c)
                await client.set(touched, "other")
                pipe.multi()
                pipe.set(a, 1).set(b, 2)
                with pytest.raises(redis.WatchError):
                    await pipe.execute()
            async with client.pipeline() as pipe:
                await pipe.watch(a, b, c)
                pipe.multi()
                pipe.set(a, 1).set(b, 2)
                assert await pipe.execute() == [True, True]
            assert await client.mget(a, b) == [b"1", b"2"]


async def test_a_watched_key_that_was_read_otherwise_and_came_back(made: Cluster) -> None:
    """EXEC finds what WATCH found; but what the client computed from is another value."""
    a, b, *_ = keys_of(made)
    async with service_of(made).asyncio_client() as client, client.pipeline() as pipe:
        for touched, untouched in ((a, b), (b, a)):
            await client.mset({a: 10, b: 10})
            await pipe.watch(a, b)
            await client.set(touched, 15)
            assert [await pipe.get(touched), await pipe.get(untouched)] == [b"15", b"10"]
            await client.set(touched, 10)
            pipe.multi()
            pipe.set(a, 16).set(b, 11)
            with pytest.raises(redis.WatchError):
                await pipe.execute()
            assert await client.mget(a, b) == [b"10", b"10"]


async def test_msetnx_answers_as_redis_does_wherever_its_keys_are(made: Cluster) -> None:
    a, b, c, d, *_ = keys_of(made)
    pieces = [part for n in range(WATCHED_KEYS_MAX) for part in (key(made, n % ACCOUNTS, b"%d" % n), b"v")]
    script: list[tuple[bytes, ...]] = [
        (b"MSETNX", a, b"1", b, b"2"), (b"MGET", a, b, c), (b"MSETNX", b, b"3", c, b"3"), (b"MGET", a, b, c),
        (b"DEL", b), (b"MSETNX", b, b"1", c, b"1", b, b"2"), (b"GET", b), (b"MSETNX", a, b"1", d),
        (b"WATCH", d), (b"MSETNX", a, b"1", d, b"1"), (b"MULTI",), (b"GET", d), (b"EXEC",),
        (b"WATCH", d), (b"MSETNX", d, b"1", key(made, 0, b"new"), b"1"), (b"MULTI",), (b"GET", d), (b"EXEC",),
        (b"MSETNX", *pieces), (b"MSETNX", *pieces),
    ]  # fmt: skip
    with redis_server() as port:
        expected = await answers("127.0.0.1", port, script)
    assert await answers(made.members[0].host, made.ports[0], script) == expected


async def answers(host: str, port: int, script: list[tuple[bytes, ...]]) -> list[object]:
    """What one connection is told, errors as their texts."""
    told: list[object] = []
    async with redis.asyncio.Redis(host=host, port=port, single_connection_client=True) as client:
        for command in script:
            try:
                told.append(await client.execute_command(*command))
            except redis.RedisError as error:
                told.append(str(error))
    return told


async def test_without_the_feature_keys_must_be_in_one_partition(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made, service_of(made).asyncio_client() as client:
        pipe = client.pipeline().set(key(made, 0), 1).set(key(made, 1), 2)
        with pytest.raises(redis.ResponseError, match="until the cluster is upgraded"):
            await pipe.execute()
        with pytest.raises(redis.ResponseError, match="until the cluster is upgraded"):
            await client.msetnx({key(made, 0): 1, key(made, 1): 2})
        assert await client.dbsize() == 0


async def test_nothing_is_left_of_transactions_that_are_over(made: Cluster) -> None:
    a, b, *_ = keys_of(made)
    async with service_of(made).asyncio_client() as client:
        before = await client.dbsize()
        for _ in range(20):
            async with client.pipeline() as pipe:
                await pipe.incr(a).incr(b).execute()
        assert await client.dbsize() == before + 2
        assert await client.mget(a, b) == [b"20", b"20"]
        await client.flushdb()
        assert await client.dbsize() == 0


class Transfers:
    """Clients that move amounts between accounts of different partitions, and others that add all up."""

    def __init__(self, made: Cluster, service: Service) -> None:
        self.keys, self._service = keys_of(made), service
        self.done = self.sums = 0
        self.wrong: list[object] = []
        self.errors: list[str] = []
        self.over = False

    async def start(self) -> None:
        async with self._service.asyncio_client() as client:
            await client.mset(dict.fromkeys(self.keys, EACH))
        self._tasks = [asyncio.ensure_future(run(n)) for n in range(2) for run in (self._move, self._add_up)]

    async def end(self) -> None:
        self.over = True
        await asyncio.gather(*self._tasks)

    async def _move(self, number: int) -> None:
        async with self._service.asyncio_client() as client:
            step = number
            while not self.over:
                step += 1
                source, target = self.keys[step % ACCOUNTS], self.keys[(step * 3 + 1) % ACCOUNTS]
                if source == target:
                    continue
                async with client.pipeline() as pipe:
                    try:
                        await pipe.decrby(source, 7).incrby(target, 7).execute()
                        self.done += 1
                    except redis.RedisError as error:
                        self.errors.append(str(error))

    async def _add_up(self, number: int) -> None:
        async with self._service.asyncio_client() as client:
            while not self.over:
                async with client.pipeline() as pipe:
                    for each in self.keys:
                        pipe.get(each)
                    try:
                        found = await pipe.execute()
                    except redis.RedisError as error:
                        self.errors.append(str(error))
                        continue
                self.sums += 1
                if sum(map(int, found)) != ACCOUNTS * EACH:
                    self.wrong.append(found)


async def test_sums_are_constant_while_owners_change_and_die(made: Cluster) -> None:
    for member in made.members.values():
        await member.start_transfer()
    service = service_of(made)
    transfers = Transfers(made, service)
    await transfers.start()
    await asyncio.sleep(0.5)
    await change_owners(made)
    assert transfers.errors == []
    service.hosts.remove(made.members[1].host)
    await made.members[1].kill()
    await made.lose(1)
    await made.served([0, 2])
    before = transfers.done, transfers.sums
    await asyncio.sleep(5.0)
    await transfers.end()
    assert transfers.wrong == []
    assert transfers.done > before[0] > 0, transfers.errors
    assert transfers.sums > before[1] > 0, transfers.errors
    async with service.asyncio_client() as client, client.pipeline() as pipe:
        for each in transfers.keys:
            pipe.get(each)
        assert sum(map(int, await pipe.execute())) == ACCOUNTS * EACH


POINTS = [
    "transaction.prepared",
    "transaction.prepared:2",
    "transaction.decided",
    *(f"{point}:{number}" for point in ("write.logged", "write.applied") for number in (40, 47, 54)),
]


@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_any_step_leaves_all_or_nothing(made: Cluster, point: str) -> None:
    """Member 0 owns partitions of each transaction that its clients send."""
    keys = keys_of(made)[:5]
    service = service_of(made)
    service.hosts = [made.members[1].host]
    async with service.asyncio_client() as client:
        await client.mset(dict.fromkeys(keys, 1))
        assert await client.mget(keys) == [b"1"] * 5
    await made.members[0].kill()
    await made.members[0].start(STELE_CRASH_POINT=point)
    await made.hello(made.members[0])
    await made.publish()
    crashing = Service([made.members[0].host], made.ports[0])
    async with crashing.asyncio_client() as client:
        with contextlib.suppress(redis.RedisError, OSError):
            for _ in range(100):
                pipe = client.pipeline()
                for each in keys:
                    pipe.incr(each)
                await asyncio.wait_for(pipe.execute(), 3.0)
    process = made.members[0].process
    assert process is not None
    assert await asyncio.wait_for(process.wait(), 10.0) == failpoints.EXIT_CODE
    await made.restart(0)
    await made.publish()
    await made.served()
    async with service.asyncio_client() as client:
        pipe = client.pipeline()
        for each in keys:
            pipe.incr(each)
        found = await pipe.execute()
    assert len(set(found)) == 1, found
