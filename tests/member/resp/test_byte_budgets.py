"""What a member holds for its clients stays below its documented bounds, measured at real processes."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stele.member import limits
from stele.wire.resp import encode_request
from tests.member.harness.clients import Pipe
from tests.member.harness.cluster import Cluster, cluster, eventually, key_in
from tests.member.harness.memory import forget_peak, peak_bytes
from tests.member.resp.test_large_replies import MIB

SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
PARTITIONS = 4


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, 1, partitions=PARTITIONS, replicas=1) as made:
        yield made
        assert made.members[0].process is not None
        assert made.members[0].process.returncode is None, made.members[0].log()[-2000:]


async def fill(one: Pipe, keys: list[bytes]) -> list[bytes]:
    """Values of 4 MiB under these keys."""
    for key in keys:
        assert await one.ask([b"SET", key, random.randbytes(4 * MIB)]) == [b"OK"]
    return keys


async def facts(made: Cluster) -> dict[str, int]:
    """The numbers of INFO, from a connection of its own: so others are served."""
    one = await Pipe.to(made.members[0])
    async with asyncio.timeout(SECONDS_MAX / 2):
        (text,) = await one.ask([b"INFO"])
    await one.close()
    assert isinstance(text, bytes)
    pairs = (line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    return {name: int(value) for name, value in pairs if value.isdigit()}


def deaf(made: Cluster, stack: ExitStack) -> socket.socket:
    """A connection that reads nothing."""
    place = made.members[0]
    one = stack.enter_context(socket.create_connection((place.host, place.ports[0])))
    one.setblocking(False)
    return one


async def test_replies_that_nobody_reads(made: Cluster) -> None:
    """60 values of 4 MiB asked in 435 bytes, by one client after the other; each reply would take 240 MiB."""
    one = await Pipe.to(made.members[0])
    keys = await fill(one, [key_in(n % PARTITIONS, PARTITIONS, n) for n in range(15)])
    before = forget_peak(made.members[0].process)
    with ExitStack() as stack:
        for _ in range(8):
            deaf(made, stack).send(
                encode_request([b"MGET", *keys * 4]) + encode_request([b"MGET", *keys]) * 3
            )
        for _ in range(60):
            assert (await facts(made))["reply_bytes"] <= limits.REPLIES_BYTES_MAX
            async with asyncio.timeout(SECONDS_MAX / 2):
                assert await one.ask([b"SET", b"k", b"v"], [b"GET", b"k"]) == [b"OK", b"v"]
            await asyncio.sleep(LOOK_SECONDS)
    assert peak_bytes(made.members[0].process) - before < limits.REPLIES_BYTES_MAX
    await one.close()


async def test_one_that_reads_nothing_takes_no_more_than_one_reply(made: Cluster) -> None:
    one = await Pipe.to(made.members[0])
    keys = await fill(one, [key_in(n % PARTITIONS, PARTITIONS, n) for n in range(15)])
    before = forget_peak(made.members[0].process)
    with ExitStack() as stack:
        asker = deaf(made, stack)
        asker.send(encode_request([b"MGET", *keys]) * 20 + encode_request([b"GET", keys[0]]) * 200)
        for _ in range(20):
            assert (await facts(made))["reply_bytes"] < 2 * limits.REQUEST_REPLY_BYTES_MAX
            await asyncio.sleep(LOOK_SECONDS)
    assert peak_bytes(made.members[0].process) - before < 3 * limits.REQUEST_REPLY_BYTES_MAX
    await one.close()


async def test_short_commands_that_write_long_values(made: Cluster) -> None:
    """Each APPEND of one byte logs the whole value: 100 of them, in 5 KB, would be 400 MiB at once."""
    one = await Pipe.to(made.members[0])
    (key,) = await fill(one, [key_in(0, PARTITIONS)])
    before = forget_peak(made.members[0].process)
    async with asyncio.timeout(SECONDS_MAX):
        lengths = await one.ask(*[[b"APPEND", key, b"x"]] * 100)
    assert lengths == [4 * MIB + number for number in range(1, 101)]
    grown = peak_bytes(made.members[0].process) - before
    assert grown < 3 * limits.PENDING_BYTES_MAX, grown
    await one.close()


async def test_arguments_of_two_bytes_that_wait(made: Cluster) -> None:
    """20 MiB of requests that are not complete, on four connections: what is said is what they take."""
    waited = (await facts(made))["waiting_bytes"]
    before = forget_peak(made.members[0].process)
    pipes = [await Pipe.to(made.members[0]) for _ in range(20)]
    part = b"*131072\r\n" + b"$2\r\nkk\r\n" * 131_071
    for each in pipes:
        each.writer.write(part)
        await each.writer.drain()
    found = await eventually(
        lambda: facts(made), lambda told: told["waiting_bytes"] - waited >= 20 * 131_071 * 64
    )
    told = found["waiting_bytes"] - waited
    grown = peak_bytes(made.members[0].process) - before
    assert grown < 1.25 * told, (grown, told)
    for each in pipes:
        await each.close()


async def test_a_scan_over_large_values_loads_few_at_a_time(made: Cluster) -> None:
    one = await Pipe.to(made.members[0])
    keys = await fill(one, [b"large-%d" % n for n in range(60)])
    before = forget_peak(made.members[0].process)
    cursor, found, calls = b"0", set[bytes](), 0
    async with asyncio.timeout(SECONDS_MAX):
        while cursor != b"0" or not calls:
            (reply,) = await one.ask([b"SCAN", cursor, b"COUNT", b"1000"])
            assert isinstance(reply, list)
            cursor, some = reply
            found.update(some)
            calls += 1
    assert found == set(keys)
    assert peak_bytes(made.members[0].process) - before < 64 * MIB
    told = await facts(made)
    assert told["turn_bytes_max"] < 8 * MIB + limits.TURN_BYTES_MAX
    await one.close()


async def test_no_turn_of_the_loop_does_more_than_it_may(made: Cluster) -> None:
    """Many clients at once, with pipelines, requests of many keys and SCAN: counted at the member."""
    pipes = [await Pipe.to(made.members[0]) for _ in range(12)]
    value = bytes(2000)

    async def work(number: int, each: Pipe) -> None:
        keys = [b"%d-%d" % (number, n) for n in range(700)]
        for _ in range(3):
            replies = await each.ask(*[[b"SET", key, value] for key in keys])
            assert replies == [b"OK"] * len(keys)
            assert await each.ask(*[[b"GET", key] for key in keys]) == [value] * len(keys)
            assert await each.ask([b"MGET", *keys * 4]) == [[value] * 4 * len(keys)]
            assert await each.ask([b"MSET", *[word for key in keys for word in (key, value)]]) == [b"OK"]
            await each.ask([b"SCAN", b"0", b"COUNT", b"10000"], [b"DEL", *keys[:300]])

    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.gather(*(work(number, each) for number, each in enumerate(pipes)))
    told = await facts(made)
    assert 100 < told["turn_entries_max"] <= limits.TURN_ENTRIES_MAX
    assert told["turn_bytes_max"] <= limits.TURN_BYTES_MAX
    assert told["reply_bytes"] == 0
    for each in pipes:
        await each.close()
