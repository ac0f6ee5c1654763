"""WAIT: Redis' errors and replies, and what it says of writes to Async keyspaces."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from stele.core.kv.keyspaces import Replication, Settings
from stele.member.resp.server import start_resp_server
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.harness.clients import Pipe
from tests.member.harness.cluster import Cluster, cluster, key_in

ASYNC = Settings(replication=Replication.ASYNC)
PARTITION = 0
SOON_SECONDS = 0.3


@pytest.mark.parametrize(
    "requests",
    [
        ["WAIT"],
        ["WAIT 1"],
        ["WAIT 1 2 3"],
        ["WAIT x 0"],
        ["WAIT 1 x"],
        ["WAIT 1 -1"],
        ["WAIT 99999999999999999999 1"],
        ["WAIT 1 99999999999999999999"],
        ["WAIT -1 100"],
        ["WAIT 0 0"],
        ["SET a b", "WAIT 0 0", "WAIT 1 20"],
        ["MULTI", "SET a b", "WAIT 1 10000", "WAIT x 0", "EXEC"],
        ["MULTI", "WAIT 1", "EXEC"],
        ["WAITAOF 1 0 100"],
    ],
)
async def test_replies_are_those_of_redis(reference: int, requests: list[str]) -> None:
    """Of a server without replicas; here a fake of the store."""
    server = await start_resp_server(FakeKeyValueService(), "127.0.0.1", 0)
    assert await replies(server.port, requests) == await replies(reference, requests)
    await server.close()


async def replies(port: int, requests: list[str]) -> bytes:
    """All bytes that the server sends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("".join(f"{request}\r\n" for request in [*requests, "QUIT"]).encode())
    said = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return said


async def connection(made: Cluster, through: int) -> Pipe:
    return await Pipe.to(made.members[through])


async def soon(pipe: Pipe, *requests: list[bytes]) -> list[Any]:
    return await asyncio.wait_for(pipe.ask(*requests), SOON_SECONDS)


def backup_of(made: Cluster, partition: int = PARTITION) -> int:
    backup = made.rows[partition].replicas[1]
    assert backup is not None
    return backup


def wait(least: int, timeout_ms: int) -> list[bytes]:
    return [b"WAIT", b"%d" % least, b"%d" % timeout_ms]


async def test_without_writes_it_is_what_every_partition_has(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=6, replicas=3) as made:
        pipe, key = await connection(made, 0), key_in(PARTITION, 6)
        assert await soon(pipe, wait(1, 0), [b"SET", key, b"v"], wait(9, 0)) == [2, b"OK", 2]
        made.store(1, made.rows[1].replicas[:2])
        await made.publish()
        assert await soon(pipe, wait(1, 0)) == [1]
        await pipe.close()


@pytest.mark.parametrize("through", ["owner", "another"])
async def test_it_waits_for_the_commit(tmp_path: Path, through: str) -> None:
    async with cluster(tmp_path, 3, partitions=2) as made:
        await made.declare({"default": ASYNC})
        owner, backup, key = made.owner(PARTITION), backup_of(made), key_in(PARTITION, 2)
        (another,) = {0, 1, 2} - {owner, backup}
        pipe = await connection(made, owner if through == "owner" else another)
        assert await soon(pipe, [b"SET", key, b"v"], wait(1, 0)) == [b"OK", 1]
        made.members[backup].signal(signal.SIGSTOP)
        assert await soon(pipe, [b"SET", key, b"w"], wait(1, 50), wait(0, 0)) == [b"OK", 0, 0]
        waits = asyncio.ensure_future(pipe.ask(wait(1, 0)))
        await asyncio.sleep(SOON_SECONDS)
        assert not waits.done()
        made.members[backup].signal(signal.SIGCONT)
        assert await waits == [1]
        await pipe.close()


async def test_pipelines_and_several_partitions_count_with_the_least(tmp_path: Path) -> None:
    """Each member backs up what the other owns: one of them is stopped."""
    async with cluster(tmp_path, 3, partitions=6) as made:
        await made.declare({"default": ASYNC})
        stopped = backup_of(made)
        other = next(p for p, row in made.rows.items() if stopped not in row.replicas)
        keys = [key_in(PARTITION, 6), key_in(other, 6)]
        pipe = await connection(made, made.owner(PARTITION))
        made.members[stopped].signal(signal.SIGSTOP)
        assert await soon(pipe, [b"SET", keys[1], b"v"], wait(1, 0)) == [b"OK", 1]
        assert await soon(pipe, [b"MSET", keys[0], b"v", keys[1], b"v"], wait(1, 100)) == [b"OK", 0]
        made.members[stopped].signal(signal.SIGCONT)
        assert await pipe.ask(wait(1, 0)) == [1]
        await pipe.close()


async def test_what_is_lost_is_not_confirmed(tmp_path: Path) -> None:
    """Also not by a later write of the same partition, which its next owner has."""
    async with cluster(tmp_path, 3, partitions=2) as made:
        await made.declare({"default": ASYNC})
        owner, backup, key = made.owner(PARTITION), backup_of(made), key_in(PARTITION, 2)
        (another,) = {0, 1, 2} - {owner, backup}
        pipe = await connection(made, another)
        assert await soon(pipe, [b"SET", key, b"kept"], wait(1, 0)) == [b"OK", 1]
        made.members[backup].signal(signal.SIGSTOP)
        assert await soon(pipe, [b"SET", key, b"lost"]) == [b"OK"]
        await asyncio.gather(made.members[owner].kill(), made.members[backup].kill())
        await made.restart(backup)
        await made.lose(owner)
        assert await pipe.ask([b"GET", key], wait(1, 200)) == [b"kept", 0]
        assert await pipe.ask([b"SET", key, b"later"], wait(0, 0)) == [b"OK", 0]
        await pipe.close()


async def test_a_connection_that_ends_and_a_member_that_stops_end_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=2) as made:
        await made.declare({"default": ASYNC})
        owner, backup, key = made.owner(PARTITION), backup_of(made), key_in(PARTITION, 2)
        pipe = await connection(made, owner)
        made.members[backup].signal(signal.SIGSTOP)
        assert await soon(pipe, [b"SET", key, b"v"]) == [b"OK"]
        waits = asyncio.ensure_future(pipe.ask(wait(1, 0)))
        await asyncio.sleep(0.1)
        assert not waits.done()
        ends = asyncio.ensure_future(made.members[owner].stop())
        assert await asyncio.wait_for(waits, 5) == [0]
        made.members[backup].signal(signal.SIGCONT)
        await ends
        await pipe.close()
