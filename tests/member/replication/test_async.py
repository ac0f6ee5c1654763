"""Keyspaces with `replication: Async`: what is answered when, what is read, and what a lost owner loses."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from stele.core.control import commands as m
from stele.core.kv.keyspaces import Reads, Replication, Settings
from tests.member.harness.clients import Client, RespError
from tests.member.harness.cluster import Cluster, cluster, key_in

SOON_SECONDS = 0.3
"""Shorter than a lease: the owner does not know yet that its backup is stopped."""
LEASE_SECONDS = 0.5
PARTITION = 0
ASYNC = Settings(replication=Replication.ASYNC)


@asynccontextmanager
async def asynchronous(folder: Path, members: int = 2, **env: str) -> AsyncIterator[Cluster]:
    """Members whose keyspace `default` is Async, and `exact` is not."""
    async with cluster(folder, members, partitions=2, **env) as made:
        await made.declare({"default": ASYNC, "exact": Settings()})
        yield made


def backup_of(made: Cluster) -> int:
    backup = made.rows[PARTITION].replicas[1]
    assert backup is not None
    return backup


async def metric(made: Cluster, member: int, name: str) -> float:
    process = made.members[member]
    async with made.http.get(f"http://{process.host}:{process.ports[4]}/metrics") as response:
        lines = (await response.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


async def soon(call: Any) -> Any:
    return await asyncio.wait_for(call, SOON_SECONDS)


async def test_the_owner_alone_answers_while_it_has_leases(tmp_path: Path) -> None:
    async with asynchronous(tmp_path) as made:
        owner, backup, client = made.owner(PARTITION), backup_of(made), Client(made)
        key, exact = key_in(PARTITION, 2), Client(made)
        await exact.call(owner, b"SELECT", b"exact")
        made.members[backup].signal(signal.SIGSTOP)
        assert await soon(client.call(owner, b"SET", key, b"v")) == b"OK"
        assert await soon(client.call(owner, b"GET", key)) == b"v"
        assert await soon(client.call(owner, b"INCR", key_in(PARTITION, 2, seed=1))) == 1
        assert await metric(made, owner, "stele_async_waiting_operations") == 2
        waits = asyncio.ensure_future(exact.call(owner, b"SET", key, b"v"))
        await asyncio.sleep(2 * LEASE_SECONDS)
        late = asyncio.ensure_future(client.call(owner, b"SET", key, b"late"))
        await asyncio.sleep(LEASE_SECONDS)
        assert not waits.done()
        assert not late.done(), "without a lease another owner may be there"
        made.members[backup].signal(signal.SIGCONT)
        assert await waits == await late == b"OK"
        await made.same(PARTITION, owner, backup)
        assert await metric(made, owner, "stele_async_waiting_operations") == 0
        assert await metric(made, owner, "stele_async_lost_operations_total") == 0


async def test_what_is_forwarded_is_answered_as_early(tmp_path: Path) -> None:
    async with asynchronous(tmp_path, 3) as made:
        (other,) = {0, 1, 2} - set(made.rows[PARTITION].replicas)
        client, key = Client(made), key_in(PARTITION, 2)
        made.members[backup_of(made)].signal(signal.SIGSTOP)
        assert await soon(client.call(other, b"SET", key, b"v")) == b"OK"
        assert await soon(client.call(other, b"GET", key)) == b"v"
        made.members[backup_of(made)].signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "commands",
    [
        [[b"MULTI"], [b"SET", b"KEY", b"v"], [b"EXEC"]],
        [[b"STELE.ONCE", b"client", b"1", b"SET", b"KEY", b"v"]],
    ],
    ids=["EXEC", "ONCE"],
)
async def test_transactions_wait_for_the_commit(tmp_path: Path, commands: list[list[bytes]]) -> None:
    async with asynchronous(tmp_path) as made:
        owner, client, key = made.owner(PARTITION), Client(made), key_in(PARTITION, 2)
        sent = [[key if word == b"KEY" else word for word in command] for command in commands]
        made.members[backup_of(made)].signal(signal.SIGSTOP)
        for command in sent[:-1]:
            await client.call(owner, *command)
        last = asyncio.ensure_future(client.call(owner, *sent[-1]))
        await asyncio.sleep(SOON_SECONDS)
        assert not last.done()
        made.members[backup_of(made)].signal(signal.SIGCONT)
        await last


async def test_beyond_its_limit_writes_wait_for_the_commit(tmp_path: Path) -> None:
    limits = '{"ASYNC_PARTITION_BYTES_MAX": 5000}'
    async with asynchronous(tmp_path, LIMITS=limits) as made:
        owner, client, key = made.owner(PARTITION), Client(made), key_in(PARTITION, 2)
        made.members[backup_of(made)].signal(signal.SIGSTOP)
        assert await soon(client.call(owner, b"SET", key, b"v" * 3000)) == b"OK"
        waits = asyncio.ensure_future(client.call(owner, b"SET", key, b"v" * 3000))
        await asyncio.sleep(SOON_SECONDS / 2)
        assert not waits.done()
        made.members[backup_of(made)].signal(signal.SIGCONT)
        assert await waits == b"OK"


async def test_a_lost_owner_loses_what_no_replica_got(tmp_path: Path) -> None:
    """Its log has it when it returns, and goes: it is counted there."""
    async with asynchronous(tmp_path, LIMITS='{"FLUSH_SECONDS": 0.2}') as made:
        owner, backup, client = made.owner(PARTITION), backup_of(made), Client(made)
        key = key_in(PARTITION, 2)
        assert await client.call(owner, b"SET", key, b"kept") == b"OK"
        await made.same(PARTITION, owner, backup)
        # What is flushed is known to be committed when the owner returns.
        await asyncio.sleep(1.0)
        made.members[backup].signal(signal.SIGSTOP)
        assert await soon(client.call(owner, b"SET", key, b"lost")) == b"OK"
        assert await soon(client.call(owner, b"GET", key)) == b"lost"
        await asyncio.gather(made.members[owner].kill(), made.members[backup].kill())
        await made.restart(backup)
        await made.lose(owner)
        await made.restart(owner)
        assert await client.call(backup, b"GET", key) == b"kept"
        assert await metric(made, owner, "stele_async_waiting_operations") == 1
        await made.order(owner, m.DeleteTablet(PARTITION, made.version(PARTITION)))
        assert await metric(made, owner, "stele_async_lost_operations_total") == 1
        assert await metric(made, owner, "stele_async_waiting_operations") == 0


async def test_an_owner_that_restarts_loses_nothing(tmp_path: Path) -> None:
    async with asynchronous(tmp_path) as made:
        owner, backup, client = made.owner(PARTITION), backup_of(made), Client(made)
        key = key_in(PARTITION, 2)
        made.members[backup].signal(signal.SIGSTOP)
        assert await soon(client.call(owner, b"SET", key, b"v")) == b"OK"
        await made.members[owner].kill()
        made.members[backup].signal(signal.SIGCONT)
        await made.restart(owner)
        assert await client.call(backup, b"GET", key) == b"v"
        await made.same(PARTITION, owner, backup)
        assert await metric(made, owner, "stele_async_lost_operations_total") == 0


@pytest.mark.parametrize("kind", ["MOVE", "SWAP"])
async def test_moves_lose_nothing(tmp_path: Path, kind: str) -> None:
    """The owner hands over only what its replicas have; counters through another member show each loss."""
    async with asynchronous(tmp_path, 3) as made:
        key, counted, over = key_in(PARTITION, 2), 0, False

        async def count() -> None:
            nonlocal counted
            client = Client(made)
            while not over:
                with suppress(RespError, ConnectionError, OSError):
                    counted = await client.call(2, b"INCR", key)

        task = asyncio.ensure_future(count())
        for _ in range(5):
            replicas = made.rows[PARTITION].replicas
            if kind == "SWAP":
                await made.swap(PARTITION, backup_of(made))
            else:
                (other,) = {0, 1, 2} - set(replicas)
                await made.move_owner(PARTITION, other)
            await asyncio.sleep(0.05)
        over = True
        await task
        assert counted > 0
        assert await Client(made).call(0, b"GET", key) == b"%d" % counted


async def test_backups_answer_what_the_connection_wrote(tmp_path: Path) -> None:
    """With READONLY, and in a keyspace whose reads are Available: never older than what it has seen."""
    async with asynchronous(tmp_path) as made:
        both = Settings(reads=Reads.AVAILABLE, replication=Replication.ASYNC)
        await made.declare({"default": both})
        key, members = key_in(PARTITION, 2), made.members
        for through in (made.owner(PARTITION), backup_of(made)):
            client = redis.asyncio.Redis(
                host=members[through].host, port=members[through].ports[0], single_connection_client=True
            )
            async with client:
                for number in range(300):
                    assert await client.set(key, number)
                    assert await client.get(key) == b"%d" % number


async def test_a_near_cache_drops_what_was_replaced_before_it_is_applied(tmp_path: Path) -> None:
    async with asynchronous(tmp_path) as made:
        owner, client, key = made.owner(PARTITION), Client(made), key_in(PARTITION, 2)
        reader, writer = await asyncio.open_connection(made.members[owner].host, made.members[owner].ports[0])
        writer.write(b"HELLO 3\r\nCLIENT TRACKING ON\r\nGET " + key + b"\r\n")
        await asyncio.wait_for(reader.readuntil(b"_\r\n"), 5)
        made.members[backup_of(made)].signal(signal.SIGSTOP)
        assert await soon(client.call(owner, b"SET", key, b"v")) == b"OK"
        assert key in await asyncio.wait_for(reader.readuntil(key), SOON_SECONDS)
        writer.write(b"GET " + key + b"\r\n")
        await asyncio.wait_for(reader.readuntil(b"$1\r\nv\r\n"), SOON_SECONDS)
        made.members[backup_of(made)].signal(signal.SIGCONT)
        await asyncio.wait_for(reader.readuntil(b"invalidate"), 5)
        writer.close()


async def test_a_member_that_stops_waits_for_its_replicas(tmp_path: Path) -> None:
    """It was answered, so it is sent and held before the process ends, if that does not take long."""
    async with asynchronous(tmp_path) as made:
        owner, backup, client = made.owner(PARTITION), backup_of(made), Client(made)
        key = key_in(PARTITION, 2)
        made.members[backup].signal(signal.SIGSTOP)
        assert await soon(client.call(owner, b"SET", key, b"v")) == b"OK"
        ends = asyncio.ensure_future(made.members[owner].stop())
        await asyncio.sleep(1.0)
        assert not ends.done()
        made.members[backup].signal(signal.SIGCONT)
        assert await ends == 0
        await made.lose(owner)
        assert await client.call(backup, b"GET", key) == b"v"
