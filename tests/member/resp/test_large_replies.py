"""Large values and long replies asked of a member that does not own them, with real processes and sockets."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from itertools import cycle
from pathlib import Path

import pytest

from stele.core.kv.keyslot import partition_of
from tests.member.harness.clients import Pipe, RespError
from tests.member.harness.cluster import Cluster, cluster

MIB = 1024 * 1024
PARTITIONS = 4
SECONDS_MAX = 60.0


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    """The members must be there to the end."""
    async with cluster(tmp_path, 2, partitions=PARTITIONS) as made:
        yield made
        for index, member in made.members.items():
            assert member.process is not None
            assert member.process.returncode is None, member.log()[-2000:]
            assert "ending" not in member.log(), index


async def stored(made: Cluster, key: bytes, value: bytes) -> tuple[Pipe, bytes]:
    """A connection to the member that does not own the key; and the value, which is written."""
    owner = made.rows[partition_of(key, PARTITIONS)].replicas[0]
    other = await Pipe.to(made.members[1 - (owner or 0)])
    assert await other.ask([b"SET", key, value]) == [b"OK"]
    return other, value


async def test_six_connections_with_four_reads_each(made: Cluster) -> None:
    other, value = await stored(made, b"large", random.randbytes(8 * MIB))
    pipes = [await Pipe.to(made.members[n % 2]) for n in range(6)]
    async with asyncio.timeout(SECONDS_MAX):
        for found in await asyncio.gather(*(each.ask(*[[b"GET", b"large"]] * 4) for each in pipes)):
            assert found == [value] * 4
    await asyncio.gather(other.close(), *(each.close() for each in pipes))


async def test_seventeen_clients_that_read_one_value_in_the_same_turn(made: Cluster) -> None:
    other, value = await stored(made, b"shared", random.randbytes(MIB))
    owner = made.rows[partition_of(b"shared", PARTITIONS)].replicas[0]
    asker = 1 - (owner or 0)
    pipes = [await Pipe.to(made.members[asker]) for _ in range(17)]
    made.members[asker].signal(signal.SIGSTOP)
    asked = [asyncio.create_task(each.ask([b"GET", b"shared"])) for each in pipes]
    await asyncio.sleep(0.05)
    made.members[asker].signal(signal.SIGCONT)
    async with asyncio.timeout(SECONDS_MAX):
        for found in await asyncio.gather(*asked):
            assert found == [value]
    await asyncio.gather(other.close(), *(each.close() for each in pipes))


async def test_scan_over_long_keys_of_one_partition(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=1) as made:
        keys = {b"%04d" % n + random.randbytes(60_000) for n in range(290)}
        writer = await Pipe.to(made.members[0])
        for key in keys:
            assert await writer.ask([b"SET", key, b"v"]) == [b"OK"]
        await writer.close()
        for member in (0, 1):
            async with asyncio.timeout(SECONDS_MAX):
                found = await scanned(made, [member])
            assert set(found) == keys
            assert len(found) == len(keys)


async def test_a_scan_that_jumps_between_members_ends_or_says_that_it_cannot(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=1) as made:
        keys = [b"%04d" % n + random.randbytes(20_000) for n in range(300)]
        writer = await Pipe.to(made.members[0])
        for key in keys:
            assert await writer.ask([b"SET", key, b"v"]) == [b"OK"]
        assert set(await scanned(made, [0, 1])) == set(keys)
        for n in range(900):
            assert await writer.ask([b"SET", b"more-%04d" % n + bytes(40_000), b"v"]) == [b"OK"]
        with pytest.raises(RespError, match="scan again from 0"):
            await scanned(made, [0, 1])
        await writer.close()


async def scanned(made: Cluster, members: list[int]) -> list[bytes]:
    """The keys that SCAN returns, asked of these members in turn."""
    pipes = [await Pipe.to(made.members[member]) for member in members]
    cursor, found = b"0", list[bytes]()
    try:
        for each in cycle(pipes):
            (reply,) = await each.ask([b"SCAN", cursor, b"COUNT", b"1000"])
            if isinstance(reply, RespError):
                raise reply
            cursor, some = reply
            found += some
            if cursor == b"0":
                break
    finally:
        await asyncio.gather(*(each.close() for each in pipes))
    return found


async def test_a_command_that_is_too_long_is_refused_at_once(made: Cluster) -> None:
    other, value = await stored(made, b"long", b"v")
    part = bytes(8 * MIB)
    for words in ([b"SET", b"long", part, part, part], [b"EXPIRE", b"long", b"1", *[b"NX"] * 1000]):
        (refused,) = await other.ask(words)
        assert isinstance(refused, RespError)
        assert str(refused).startswith("ERR "), refused
        assert "internal" not in str(refused)
    assert await other.ask([b"GET", b"long"]) == [value]
    await other.close()
