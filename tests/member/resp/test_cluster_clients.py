"""Clients of the Redis Cluster protocol, while members join, leave and die, and partitions move and swap."""

import asyncio
import socket
import time
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.cluster import LoadBalancingStrategy, RedisCluster
from redis.retry import Retry

from stele.core.control import commands as m
from stele.core.control.member_settings import MemberSettings
from stele.core.kv.announce import Announce
from tests.member.harness.cluster import Cluster, cluster, key_in
from tests.member.harness.load import Load
from tests.member.harness.scaling import change_owners, join, leave

CLUSTER_PORT = 5
"""Place of the port in `Cluster.ports`."""
LEASE_SECONDS = 0.5
"""How old what a backup answers may be: the lease of the members here."""


class ClusterClients:
    """Makes redis-py's clients, with its defaults, that know member 0 at first."""

    def __init__(self, made: Cluster) -> None:
        self._address = {"host": made.members[0].host, "port": made.ports[CLUSTER_PORT]}

    def client(self) -> RedisCluster:
        return RedisCluster(**self._address)

    def asyncio_client(self) -> AsyncRedisCluster:
        return AsyncRedisCluster(**self._address)


def keys_of(made: Cluster) -> list[bytes]:
    return [key_in(p, made.partitions, seed) for seed in range(2) for p in range(made.partitions)]


async def of_info(made: Cluster, name: str) -> int:
    """The sum over all members of a field of INFO."""
    total = 0
    for member in made.members.values():
        if member.process is not None:
            async with redis.asyncio.Redis(host=member.host, port=made.ports[0]) as client:
                total += (await client.info())[name]
    return total


async def forwarded(made: Cluster) -> int:
    """Requests that members had to send on, all of them together."""
    return await of_info(made, "forwarded")


async def forwards_nothing(made: Cluster) -> None:
    """Assert that the clients, which go on, know the map: no member sends a request on."""
    before = await forwarded(made)
    await asyncio.sleep(1.0)
    assert await forwarded(made) == before


async def join_and_leave(made: Cluster) -> None:
    """Let owners change, a member join, and the one leave that clients connected to at first."""
    for member in made.members.values():
        await member.start_transfer()
    await change_owners(made)
    await join(made)
    await leave(made, 0)


async def die(made: Cluster) -> None:
    """Kill an owner, and take its place away from it."""
    await made.members[1].kill()
    await made.lose(1)
    await made.served([0, 2])


async def test_no_request_fails_or_is_forwarded_for_long_while_members_join_and_leave(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        load = Load(ClusterClients(made), keys_of(made))  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        await join_and_leave(made)
        await asyncio.sleep(0.5)
        done = sum(load.counts.values())
        await forwards_nothing(made)
        assert sum(load.counts.values()) > done
        await load.end()
        assert load.failures == []
        with RedisCluster(host=made.members[1].host, port=made.ports[CLUSTER_PORT]) as client:
            for key, count in load.counts.items():
                assert int(client.get(key)) == count > 0
            sizes = [client.dbsize(target_nodes=node) for node in client.get_primaries()]
            assert sum(sizes) == len(load.counts)
            assert len(set(client.scan_iter(count=7))) == len(load.counts)


class Unknown(Counter[bytes]):
    """By key, the attempts of increments after which it is not known whether they were done."""

    def saw(self, command: Sequence[Any], error: redis.RedisError) -> None:
        lost = isinstance(error, redis.ConnectionError | redis.TimeoutError)
        if command[0] == "INCRBY" and (lost or str(error).startswith("UNCERTAIN")):
            self[command[1]] += 1


class CountedCluster(RedisCluster):
    """Counts what each attempt at a node left unknown: the client sends again what fails."""

    unknown: Unknown

    def _execute_command(self, target_node: Any, *args: Any, **options: Any) -> Any:
        try:
            return super()._execute_command(target_node, *args, **options)
        except redis.RedisError as error:
            self.unknown.saw(args, error)
            raise


class CountedAsyncCluster(AsyncRedisCluster):
    """The same with asyncio."""

    unknown: Unknown

    async def _execute_command(self, target_node: Any, *args: Any, **options: Any) -> Any:
        try:
            return await super()._execute_command(target_node, *args, **options)
        except redis.RedisError as error:
            self.unknown.saw(args, error)
            raise


class Worker:
    """Counts up half of its keys by SET, which may be repeated, and the others by INCR.

    `counts` has what was acknowledged, `failures` what may not happen.
    """

    def __init__(self, client: RedisCluster | AsyncRedisCluster, keys: list[bytes]) -> None:
        self.counts = dict.fromkeys(keys, 0)
        self.unknown = client.unknown = Unknown()
        self.failures: list[str] = []
        self.over = False
        self._client = client
        half = len(keys) // 2
        self._sets, self._increments = keys[:half], keys[half:]

    def run(self) -> None:
        with self._client as client:
            while not self.over:
                for key in self._sets:
                    with self._noted(key):
                        client.set(key, self.counts[key] + 1)
                        self._saw(key, int(client.get(key)))
                for key in self._increments:
                    with self._refused_or_unknown(key):
                        self._saw(key, client.incr(key))

    async def run_asyncio(self) -> None:
        async with self._client as client:
            while not self.over:
                for key in self._sets:
                    with self._noted(key):
                        await client.set(key, self.counts[key] + 1)
                        self._saw(key, int(await client.get(key)))
                for key in self._increments:
                    with self._refused_or_unknown(key):
                        self._saw(key, await client.incr(key))

    @contextmanager
    def _refused_or_unknown(self, key: bytes) -> Iterator[None]:
        """Allow what the death of an owner may do to an increment: it was not done, or nobody knows."""
        with self._noted(key):
            try:
                yield
            except (redis.ConnectionError, redis.TimeoutError):
                pass
            except redis.ResponseError as error:
                if not str(error).startswith(("UNCERTAIN", "CLUSTERDOWN")):
                    raise

    @contextmanager
    def _noted(self, key: bytes) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            self.failures.append(f"{key!r}: {error!r}")

    def _saw(self, key: bytes, value: int) -> None:
        self.counts[key] += 1
        if not self.counts[key] <= value <= self.counts[key] + self.unknown[key]:
            self.failures.append(f"{key!r} is {value} after {self.counts[key]} writes")


async def test_what_may_be_repeated_goes_on_when_an_owner_dies(tmp_path: Path) -> None:
    """And what may not is done once, or it is not known whether it was done."""
    async with cluster(tmp_path, 3) as made:
        address = {"host": made.members[0].host, "port": made.ports[CLUSTER_PORT]}
        retry, asyncio_retry = Retry(ConstantBackoff(0.5), 60), AsyncRetry(ConstantBackoff(0.5), 60)
        keys = keys_of(made)
        threads = [Worker(CountedCluster(**address, retry=retry), keys[n::4]) for n in range(2)]
        tasks = [Worker(CountedAsyncCluster(**address, retry=asyncio_retry), keys[n::4]) for n in (2, 3)]
        running = [asyncio.ensure_future(asyncio.to_thread(worker.run)) for worker in threads]
        running += [asyncio.ensure_future(worker.run_asyncio()) for worker in tasks]
        await asyncio.sleep(0.5)
        await die(made)
        await asyncio.sleep(1.0)
        await forwards_nothing(made)
        workers = [*threads, *tasks]
        for worker in workers:
            worker.over = True
        await asyncio.gather(*running)
        async with AsyncRedisCluster(**address) as client:
            for worker in workers:
                assert worker.failures == []
                for key, count in worker.counts.items():
                    assert 0 < count <= int(await client.get(key)) <= count + worker.unknown[key]


@pytest.mark.parametrize("kind", [AsyncRedisCluster, RedisCluster], ids=["asyncio", "threads"])
async def test_reads_from_backups_are_recent_while_owners_change(
    tmp_path: Path, kind: type[AsyncRedisCluster | RedisCluster]
) -> None:
    """Each read has what was acknowledged a lease before it began, and no connection sees time go back."""
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        reader = kind(
            host=made.members[0].host,
            port=made.ports[CLUSTER_PORT],
            load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN_REPLICAS,
        )
        keys, over, failures = keys_of(made), asyncio.Event(), list[str]()
        written: dict[bytes, list[tuple[float, int]]] = {key: [] for key in keys}

        async def run(command: Callable[..., Any], *args: Any) -> Any:
            return await (command(*args) if kind is AsyncRedisCluster else asyncio.to_thread(command, *args))

        async def work(some: list[bytes]) -> None:
            for number in count(1):
                for key in some:
                    try:
                        await run(reader.set, key, number)
                        written[key].append((time.monotonic(), number))
                        begin = time.monotonic()
                        found = int(await run(reader.get, key) or 0)
                        least = max((n for at, n in written[key] if at <= begin - LEASE_SECONDS), default=0)
                        if not least <= found <= number:
                            failures.append(f"{key!r} is {found}, not {least} to {number}")
                    except AttributeError as error:
                        # redis-py closes connections that other tasks use, when it learns of new owners.
                        if "writelines" not in str(error):
                            raise
                    except redis.RedisError as error:
                        failures.append(f"{key!r}: {error!r}")
                if over.is_set():
                    return

        workers = [asyncio.ensure_future(work(keys[n::3])) for n in range(3)]
        await asyncio.sleep(0.5)
        await change_owners(made)
        await asyncio.sleep(1.0)
        over.set()
        await asyncio.gather(*workers)
        await (reader.aclose() if isinstance(reader, AsyncRedisCluster) else run(reader.close))
        assert failures == []
        assert await of_info(made, "backup_reads") > 0


async def test_a_new_owner_that_waits_for_its_row_sends_nobody_back(tmp_path: Path) -> None:
    """Clients would go round in circles: the old owner knows the row already."""
    async with cluster(tmp_path, 3) as made:
        key, source, target = key_in(0, made.partitions), *made.rows[0].replicas
        assert source is not None
        assert target is not None
        id = made.id()
        handed = await made.hand_over(id, 0, target)
        await made.accept(target, m.Row(0, made.version(0) + 1, (target, source)), id, handed.last)
        await made.publish([source])
        old, new = [
            redis.asyncio.Redis(host=made.members[each].host, port=made.ports[CLUSTER_PORT])
            for each in (source, target)
        ]
        async with old, new:
            with pytest.raises(redis.exceptions.MovedError, match=made.members[target].host):
                await old.get(key)
            reading = asyncio.ensure_future(new.get(key))
            assert await new.execute_command("SPUBLISH", key, "1") == 0
            await made.publish()
            assert await reading is None


@asynccontextmanager
async def forwarded_ports(made: Cluster) -> AsyncIterator[int]:
    """Ports of one address outside of the cluster's network, one for each member in turn; the first."""
    first = next(port for port in range(21_000, 60_000, 100) if all(map(is_free, range(port, port + 3))))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def accept(member: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(made.members[member].host, made.ports[CLUSTER_PORT])
        await asyncio.gather(relay(reader, there[1]), relay(there[0], writer), return_exceptions=True)

    async with AsyncExitStack() as stack:
        for member in made.members:
            server = await asyncio.start_server(partial(accept, member), "127.0.0.1", first + member)
            stack.callback(server.close)
        yield first


def is_free(port: int) -> bool:
    with closing(socket.socket()) as found:
        return found.connect_ex(("127.0.0.1", port)) != 0


async def test_clients_outside_of_the_network_of_pods_use_announced_addresses(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made, forwarded_ports(made) as first:
        made.settings = MemberSettings(announce=Announce("127.0.0.1", first, first + 1000, 1))
        await made.publish()
        async with AsyncRedisCluster(host="127.0.0.1", port=first) as client:
            for key in keys_of(made):
                await client.set(key, b"v")
            before = await forwarded(made)
            assert [await client.get(key) for key in keys_of(made)] == [b"v"] * len(keys_of(made))
            assert {(each.host, each.port) for each in client.get_primaries()} == {
                ("127.0.0.1", first + member) for member in made.members
            }
            assert await forwarded(made) == before


async def start_benchmark(made: Cluster, *options: str) -> asyncio.subprocess.Process:
    command = [
        "redis-benchmark",
        "--cluster",
        "-h",
        made.members[1].host,
        "-p",
        str(made.ports[CLUSTER_PORT]),
    ]
    command += ["-t", "set,get", "-q", "-c", "6", "-r", "1000", *options]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)


async def output_of(process: asyncio.subprocess.Process) -> str:
    """What a benchmark printed, once it has ended: nothing about errors."""
    text = b"".join(await asyncio.wait_for(process.communicate(), 60)).decode()
    assert "Cluster has 3 master nodes" in text
    assert "rror" not in text
    return text


async def count_by_redis_cli(made: Cluster, keys: list[bytes], over: asyncio.Event) -> dict[bytes, int]:
    """Count up keys by one redis-cli until it is over; the numbers that it printed last."""
    command = ["redis-cli", "-c", "-h", made.members[0].host, "-p", str(made.ports[CLUSTER_PORT])]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    assert process.stdin is not None
    assert process.stdout is not None
    counts = dict.fromkeys(keys, 0)
    while not over.is_set():
        for key in keys:
            process.stdin.write(b"INCR %b\n" % key)
            line = b"-> Redirected"
            while line.startswith(b"-> Redirected"):
                line = await asyncio.wait_for(process.stdout.readline(), 20)
            counts[key] += 1
            assert line == b"%d\n" % counts[key]
    assert not (await process.communicate(b""))[0]
    return counts


async def test_redis_cli_and_benchmark_follow_the_map(tmp_path: Path) -> None:
    """The benchmark as far as it can: it knows the members that it found at its start, and no others."""
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        over = asyncio.Event()
        counting = asyncio.ensure_future(count_by_redis_cli(made, keys_of(made), over))
        benchmark = await start_benchmark(made, "-n", "1000", "-l")
        output = asyncio.ensure_future(output_of(benchmark))
        await asyncio.sleep(0.5)
        await change_owners(made)
        assert benchmark.returncode is None
        benchmark.terminate()
        assert "Cluster slots configuration changed" in await output
        await join(made)
        await leave(made, 0)
        before = await forwarded(made)
        benchmark = await start_benchmark(made, "-n", "200")
        await output_of(benchmark)
        assert benchmark.returncode == 0
        over.set()
        counts = await counting
        assert await forwarded(made) == before
        async with redis.asyncio.Redis(host=made.members[1].host, port=made.ports[0]) as client:
            for key, count in counts.items():
                assert int(await client.get(key)) == count > 0


async def test_redis_cli_goes_on_at_another_member_when_an_owner_dies(tmp_path: Path) -> None:
    """Started again for each command: one that runs on knows nothing but the address it was sent to last."""
    async with cluster(tmp_path, 3) as made:
        keys, over = keys_of(made)[: made.partitions], asyncio.Event()
        counts, unknown, failures = dict.fromkeys(keys, 0), Counter[bytes](), list[str]()
        command = ["redis-cli", "-c", "-e", "-h", made.members[0].host, "-p", str(made.ports[CLUSTER_PORT])]

        async def work(some: list[bytes]) -> None:
            for key in cycle(some):
                if over.is_set() and all(counts[each] for each in some):
                    return
                process = await asyncio.create_subprocess_exec(
                    *command, "INCR", key, stdout=PIPE, stderr=STDOUT
                )
                text = (await asyncio.wait_for(process.communicate(), 20))[0].decode().strip()
                if process.returncode == 0:
                    counts[key] += 1
                    if not counts[key] <= int(text) <= counts[key] + unknown[key]:
                        failures.append(f"{key!r} is {text} after {counts[key]}")
                elif text.startswith(CLOSED):
                    unknown[key] += not text.startswith("CLUSTERDOWN")
                else:
                    failures.append(text)

        workers = [asyncio.ensure_future(work(keys[n::2])) for n in range(2)]
        await asyncio.sleep(0.5)
        await die(made)
        await asyncio.sleep(1.0)
        over.set()
        await asyncio.gather(*workers)
        assert failures == []
        async with AsyncRedisCluster(host=made.members[0].host, port=made.ports[CLUSTER_PORT]) as client:
            for key, count in counts.items():
                assert 0 < count <= int(await client.get(key)) <= count + unknown[key]


CLOSED = ("Could not connect", "Error: Server closed", "Error: Connection reset", "UNCERTAIN", "CLUSTERDOWN")
"""What redis-cli prints when the death of an owner ends a command."""
