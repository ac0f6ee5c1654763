"""Clients of the Redis Cluster protocol, with three real members whose partitions move, swap and are lost."""

import asyncio
import subprocess
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.backoff import ConstantBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from tests.member.harness.cluster import Cluster, cluster, key_in
from tests.member.harness.load import Load

CLUSTER_PORT = 5
"""Place of the port in `Cluster.ports`."""


class ClusterClients:
    """Makes clients that know one member at first; `retry` None leaves the defaults of redis-py."""

    def __init__(self, made: Cluster, retry_seconds: float = 0.0) -> None:
        self._host, self._port = made.members[0].host, made.ports[CLUSTER_PORT]
        self._attempts = int(retry_seconds * 10)

    def _retry(self) -> dict[str, Retry]:
        return {"retry": Retry(ConstantBackoff(0.1), self._attempts)} if self._attempts else {}

    def client(self) -> RedisCluster:
        return RedisCluster(host=self._host, port=self._port, **self._retry())

    def asyncio_client(self) -> AsyncRedisCluster:
        options = self._retry()
        if options:
            options = {"retry": redis.asyncio.retry.Retry(ConstantBackoff(0.1), self._attempts)}
        return AsyncRedisCluster(host=self._host, port=self._port, **options)


def keys_of(made: Cluster) -> list[bytes]:
    return [key_in(p, made.partitions, seed) for seed in range(2) for p in range(made.partitions)]


async def forwarded(made: Cluster) -> int:
    """Requests that members had to send on, all of them together."""
    total = 0
    for member in made.members.values():
        if member.process is not None:
            async with redis.asyncio.Redis(host=member.host, port=made.ports[0]) as client:
                total += (await client.info())["forwarded"]
    return total


async def change_owners(made: Cluster) -> None:
    """Swap half of the partitions, and move the others to the member that is in no row of theirs."""
    for partition, row in list(made.rows.items()):
        if partition % 2:
            backup = row.replicas[1]
            assert backup is not None
            await made.swap(partition, backup)
        else:
            (outside,) = set(made.members) - {each for each in row.replicas if each is not None}
            await made.move_owner(partition, outside)


async def test_no_request_fails_or_is_forwarded_for_long_while_owners_change(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        load = Load(ClusterClients(made), keys_of(made))  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        await change_owners(made)
        await asyncio.sleep(0.5)
        before, done = await forwarded(made), sum(load.counts.values())
        await asyncio.sleep(1.0)
        assert await forwarded(made) == before
        assert sum(load.counts.values()) > done
        await load.end()
        assert load.failures == []
        with ClusterClients(made).client() as client:
            for key, count in load.counts.items():
                assert int(client.get(key)) == count > 0
            assert sum(client.dbsize(target_nodes=node) for node in client.get_nodes()) == len(load.counts)
            assert len(set(client.scan_iter(count=7))) == len(load.counts)


async def test_what_may_be_repeated_goes_on_when_an_owner_dies(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        clients, keys, failures = ClusterClients(made, retry_seconds=10), keys_of(made), list[str]()
        over = asyncio.Event()
        numbers = dict.fromkeys(keys, 0)

        async def write(some: list[bytes]) -> None:
            async with clients.asyncio_client() as client:
                while not over.is_set():
                    for key in some:
                        try:
                            await client.set(key, numbers[key] + 1)
                            numbers[key] += 1
                            if int(await client.get(key)) != numbers[key]:
                                failures.append(f"{key!r} is not {numbers[key]}")
                        except redis.RedisError as error:
                            failures.append(f"{key!r}: {error!r}")

        writers = [asyncio.ensure_future(write(keys[n::3])) for n in range(3)]
        await asyncio.sleep(0.5)
        await made.members[1].kill()
        await made.lose(1)
        await made.served([0, 2])
        await asyncio.sleep(1.0)
        over.set()
        await asyncio.gather(*writers)
        assert failures == []
        assert all(numbers.values())


@pytest.mark.parametrize("count", [200])
async def test_redis_cli_and_benchmark_follow_the_map(tmp_path: Path, count: int) -> None:
    async with cluster(tmp_path, 3) as made:
        host, port = made.members[0].host, str(made.ports[CLUSTER_PORT])
        sent = "".join(f"SET {key_in(p, made.partitions).decode()} v{p}\n" for p in range(made.partitions))
        answers = await asyncio.to_thread(
            subprocess.run,
            ["redis-cli", "-c", "-h", host, "-p", port],
            input=sent,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answers.stdout.split().count("OK") == made.partitions, answers
        before = await forwarded(made)
        command = ["redis-benchmark", "--cluster", "-h", host, "-p", port, "-t", "set,get", "-q"]
        command += ["-n", str(count), "-c", "6", "-r", "1000"]
        bench = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert bench.returncode == 0, bench
        assert "Cluster has 3 master nodes" in bench.stdout, bench.stdout
        assert "rror" not in bench.stdout + bench.stderr
        assert await forwarded(made) == before
