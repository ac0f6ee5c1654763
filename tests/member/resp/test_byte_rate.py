"""A user's share of a member's bytes: it waits, others do not, and nothing is lost."""

import asyncio
import time

import pytest

from stele.core.control.member_settings import ClientAuth
from stele.member.resp.access import Access, accounts_of
from stele.member.resp.byte_rate import ByteRate
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import RespServer
from stele.wire.resp import encode_request
from stele.wire.users import UserEntry, generated_hash

EVERYTHING = ("+@all", "~*", "&*")
RATE = 200_000


def test_what_a_second_allows_may_be_used_at_once_and_more_is_waited_for():
    rate = ByteRate(1000)
    assert [rate.take(size, 100.0) for size in (600, 400, 500)] == [0.0, 0.0, 0.5]
    assert rate.take(0, 100.25) == 0.25
    assert rate.take(1000, 100.5) == 1.0
    assert rate.take(1000, 200.0) == 0.0, "what was not used for long is not saved up"
    assert rate.take(1, 200.0) > 0


@pytest.fixture
async def server(store):
    access = Access()
    hashes = (generated_hash(b"pw"),)
    users = [
        UserEntry("slow", hashes, EVERYTHING, bytes_per_second=RATE),
        UserEntry("fast", hashes, EVERYTHING),
    ]
    access.adopt(accounts_of(users, {}), ClientAuth.REQUIRED, access.file)
    server = RespServer(store, RespServerLimits(), access=access)
    await server.listen("127.0.0.1", 0)
    yield server
    await server.close()


async def client(server, user):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request([b"AUTH", user, b"pw"]))
    assert await reader.readline() == b"+OK\r\n"
    return reader, writer


async def seconds_of(stream, *requests, replies):
    reader, writer = stream
    begun = time.monotonic()
    writer.write(b"".join(map(encode_request, requests)))
    got = 0
    while got < replies:
        got += len(await asyncio.wait_for(reader.read(65536), 30))
    return time.monotonic() - begun


@pytest.mark.parametrize("kind", ["written", "read", "one after the other"])
async def test_a_user_waits_when_its_share_is_used_and_others_do_not(server, kind):
    value = b"x" * 50_000
    slow, second, fast = [await client(server, each) for each in (b"slow", b"slow", b"fast")]
    await seconds_of(fast, [b"SET", b"a", value], replies=5)
    many = [[b"SET", b"a", value]] * 12 if kind == "written" else [[b"GET", b"a"]] * 12
    size = 5 * 12 if kind == "written" else (len(value) + 10) * 12

    async def used() -> float:
        begun = time.monotonic()
        if kind == "one after the other":
            for each in (slow, second) * 6:
                await seconds_of(each, [b"GET", b"a"], replies=50_010)
        else:
            await seconds_of(slow, *many, replies=size)
        # The replies to what was sent together may come at once; the next one waits for all of it.
        await seconds_of(second, [b"ECHO", b"over"], replies=10)
        await seconds_of(slow, [b"ECHO", b"over"], replies=10)
        return time.monotonic() - begun

    task = asyncio.create_task(used())
    await asyncio.sleep(0.2)
    assert await seconds_of(fast, *many, replies=size) < 1.0
    took = await task
    assert 12 * 50_000 / RATE - 1 <= took < 20, "one second's share is free"
    for _, writer in (slow, second, fast):
        writer.close()


async def test_a_slow_user_that_goes_or_a_member_that_stops_waits_for_nothing(server):
    first, second = await client(server, b"slow"), await client(server, b"slow")
    for _, writer in (first, second):
        writer.write(encode_request([b"SET", b"a", b"x" * 4_000_000]))
    await asyncio.sleep(0.5)
    first[1].transport.abort()
    begun = time.monotonic()
    await server.close()
    assert time.monotonic() - begun < 5
    second[1].close()
