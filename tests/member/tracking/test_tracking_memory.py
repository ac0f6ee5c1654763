"""What a member remembers of near caches stays below its documented bounds, measured at a real process."""

import asyncio
import re

import pytest

from stele.core.formats import SPOKEN
from stele.core.kv.interest import BYTES_MAX
from stele.member.tracking.near_caches import BROADCASTING_MAX
from tests.member.harness.clients import Pipe, RespError
from tests.member.harness.cluster import Cluster
from tests.member.harness.memory import forget_peak, peak_bytes
from tests.member.resp.test_large_replies import MIB

AT_ONCE = 500
BROADCASTS_BYTES_MAX = 32 * MIB
"""With as many clients and prefixes as there may be."""


async def held(made: Cluster) -> dict[str, int]:
    """The bytes that the member counts, by table."""
    member = made.members[0]
    async with made.http.get(f"http://{member.host}:{member.ports[4]}/metrics") as response:
        text = await response.text()
    found = re.findall(r'stele_near_cache_tables_bytes\{table="(\w+)"\} (\S+)', text)
    return {table: int(float(value)) for table, value in found}


async def read(client: Pipe, keys: list[bytes]) -> None:
    for at in range(0, len(keys), AT_ONCE):
        await client.ask([b"MGET", *keys[at : at + AT_ONCE]])


@pytest.mark.parametrize(
    ("clients", "keys", "key_bytes"),
    [(1, 180_000, 200), (100, 4_000, 20)],
    ids=["many keys of one client", "many clients of some keys"],
)
async def test_the_counted_bytes_are_those_of_the_process(
    one: Cluster, clients: int, keys: int, key_bytes: int
) -> None:
    """More is read than there is room for, so the least recent keys are evicted."""
    one.features = SPOKEN.most
    await one.publish()
    process = one.members[0].process
    names = [b"key-%d" % n + b"x" * (key_bytes - 10) for n in range(keys)]
    pipes = [await Pipe.to(one.members[0]) for _ in range(clients)]
    for each in pipes:
        assert await each.ask([b"CLIENT", b"TRACKING", b"ON"]) == [b"OK"]
    await read(pipes[0], names[:AT_ONCE])
    before, counted = forget_peak(process), sum((await held(one)).values())
    for each in pipes:
        await read(each, names)
    tables = await held(one)
    grown = peak_bytes(process) - before
    assert BYTES_MAX / 2 < tables["clients"] <= BYTES_MAX
    assert tables["owned"] <= BYTES_MAX
    assert grown < 1.25 * (sum(tables.values()) - counted), (grown, tables)
    await asyncio.gather(*(each.close() for each in pipes))


async def test_as_many_broadcasts_as_there_may_be(one: Cluster) -> None:
    pipes = [await Pipe.to(one.members[0]) for _ in range(BROADCASTING_MAX + 1)]
    for each in pipes:
        assert await each.ask([b"PING"]) == [b"PONG"]
    prefixes = [b"%03d-" % n + b"x" * 200 for n in range(256)]
    words = [word for prefix in prefixes for word in (b"PREFIX", prefix)]
    before = forget_peak(one.members[0].process)
    for each in pipes[:-1]:
        assert await each.ask([b"CLIENT", b"TRACKING", b"ON", b"BCAST", *words]) == [b"OK"]
    assert peak_bytes(one.members[0].process) - before < BROADCASTS_BYTES_MAX
    (refused,) = await pipes[-1].ask([b"CLIENT", b"TRACKING", b"ON", b"BCAST"])
    assert isinstance(refused, RespError)
    assert str(refused).startswith("ERR 1000 clients of this member are in BCAST mode, which is the limit")
    await asyncio.gather(*(each.close() for each in pipes))
