"""Reads from backups with real members: what is read, how old it may be, and from whom it never comes."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis.asyncio

from tests.member.harness.cluster import Cluster, cluster, eventually, key_in

CLUSTER_PORT, READ_PORT = 5, 6
PARTITION = 0


@asynccontextmanager
async def connection(made: Cluster, member: int, port: int = READ_PORT) -> AsyncIterator[redis.asyncio.Redis]:
    """One connection to one port of one member."""
    host = made.members[member].host
    async with redis.asyncio.Redis(
        host=host, port=made.ports[port], single_connection_client=True, socket_timeout=20
    ) as client:
        yield client


async def backup_reads(made: Cluster, member: int) -> int:
    async with connection(made, member, 0) as client:
        return int((await client.info("stele"))["backup_reads"])


async def read_by_backup(made: Cluster, backup: int, client: redis.asyncio.Redis, key: bytes) -> bytes | None:
    """Read until the backup answers itself."""
    before = await backup_reads(made, backup)

    async def read() -> tuple[bytes | None, int]:
        return await client.get(key), await backup_reads(made, backup)

    found, _ = await eventually(read, lambda answer: answer[1] > before)
    return found


async def test_a_backup_answers_with_committed_values(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=6) as made:
        key = key_in(PARTITION, 6)
        owner, backup = made.owner(PARTITION), made.rows[PARTITION].replicas[1]
        assert backup is not None
        async with connection(made, owner, CLUSTER_PORT) as writer, connection(made, backup) as reader:
            assert await writer.set(key, b"one")
            assert await read_by_backup(made, backup, reader, key) == b"one"
            assert await writer.set(key, b"two")
            await eventually(lambda: reader.get(key), lambda value: value == b"two", 2.0)
            assert await reader.mget(key, key) == [b"two", b"two"]
            assert await reader.ttl(key) == -1


async def test_a_member_outside_of_the_row_redirects(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=6) as made:
        key = key_in(PARTITION, 6)
        (outside,) = {0, 1, 2} - set(made.rows[PARTITION].replicas)
        async with connection(made, outside) as reader:
            with pytest.raises(redis.exceptions.MovedError) as moved:
                await reader.get(key)
        assert moved.value.host == made.members[made.owner(PARTITION)].host
        assert moved.value.port == made.ports[CLUSTER_PORT]


async def test_a_backup_that_was_stopped_does_not_answer_with_what_it_had(tmp_path: Path) -> None:
    """The answers to its questions of before are in its buffers when it goes on: they are too old by then."""
    async with cluster(tmp_path, 3, partitions=6) as made:
        key = key_in(PARTITION, 6)
        owner, backup = made.owner(PARTITION), made.rows[PARTITION].replicas[1]
        assert backup is not None
        async with connection(made, owner, CLUSTER_PORT) as writer, connection(made, backup) as reader:
            assert await writer.set(key, b"old")
            assert await read_by_backup(made, backup, reader, key) == b"old"
            made.members[backup].signal(signal.SIGSTOP)
            await asyncio.sleep(1.0)
            await made.lose(backup, dead=False)
            assert await writer.set(key, b"new")
            answer = asyncio.ensure_future(reader.get(key))
            await asyncio.sleep(0.1)
            made.members[backup].signal(signal.SIGCONT)
            with suppress(redis.exceptions.MovedError):  # It may know the row without it by now.
                assert await answer == b"new"


async def test_a_backup_answers_nothing_once_its_owner_is_silent(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=6) as made:
        key = key_in(PARTITION, 6)
        owner, backup = made.owner(PARTITION), made.rows[PARTITION].replicas[1]
        assert backup is not None
        async with connection(made, owner, CLUSTER_PORT) as writer, connection(made, backup) as reader:
            assert await writer.set(key, b"old")
            assert await read_by_backup(made, backup, reader, key) == b"old"
            made.members[owner].signal(signal.SIGSTOP)
            await asyncio.sleep(0.6)
            before = await backup_reads(made, backup)
            answer = asyncio.ensure_future(reader.get(key))
            await asyncio.sleep(0.3)
            assert not answer.done(), "it waits for the owner, as on the other ports"
            made.members[owner].signal(signal.SIGCONT)
            assert await answer == b"old"
            assert await backup_reads(made, backup) == before


async def test_a_connection_reads_what_it_wrote(tmp_path: Path) -> None:
    """Through a member that backs up: writes go to the owner, reads are answered here when they may be."""
    async with cluster(tmp_path, 3, partitions=6) as made:
        await made.declare({"default": "Available"})
        backup = made.rows[PARTITION].replicas[1]
        assert backup is not None
        key = key_in(PARTITION, 6)
        async with connection(made, backup, 0) as client:
            for number in range(300):
                assert await client.set(key, number)
                assert int(await client.get(key)) == number
            assert await read_by_backup(made, backup, client, key) == b"299"
            for words in (["MULTI"], ["INCR", key], ["EXEC"]):
                await client.execute_command(*words)
            assert await client.get(key) == b"300"


async def test_available_goes_on_at_an_owner_that_is_alone_and_ends(tmp_path: Path) -> None:
    """Its backup is stopped: its lease ends, and reads are linearizable no more."""
    limits = '{"STALENESS_SECONDS_MAX": 2.0, "WAIT_SECONDS_MAX": 3.0}'
    async with cluster(tmp_path, 2, partitions=2, LIMITS=limits) as made:
        await made.declare({"default": "Available", "exact": "Linearizable"})
        owner, backup = made.owner(PARTITION), made.rows[PARTITION].replicas[1]
        assert backup is not None
        key = key_in(PARTITION, 2)
        async with connection(made, owner, 0) as client, connection(made, owner, 0) as exact:
            assert await client.set(key, b"v")
            await exact.execute_command("SELECT", "exact")
            made.members[backup].signal(signal.SIGSTOP)
            await asyncio.sleep(1.0)
            late = asyncio.ensure_future(exact.get(key))
            assert await client.get(key) == b"v"
            await asyncio.sleep(2.0)
            with pytest.raises(redis.exceptions.ResponseError, match="no lease of every replica"):
                await client.get(key)
            with pytest.raises(redis.exceptions.ResponseError):
                await late  # It was linearizable.
            made.members[backup].signal(signal.SIGCONT)
