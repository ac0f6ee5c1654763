"""A volume fills up and grows under writes: no member restarts, and no acknowledged write is lost."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from stele.core.formats import FIRST, LOG_SEGMENTS
from tests.member.harness.cluster import Client, Cluster, eventually, hasty_cluster, key_in
from tests.member.storage.test_damage import mounted, remount
from tests.sampled import sampled

MEMBERS = 3
PARTITIONS = 6
KEYS = 40
FILLER = random.Random(7).randbytes(256 << 10)
"""Of each value; it cannot be compressed."""
PAUSE_SECONDS = 0.02
SMALL, LARGE = "100m", "300m"
GROWTH_BYTES = 100 << 20
"""Of the 200 MiB, what is free soon after."""
OWNER = "NO_SPACE the volume of member 0, which owns this partition, is full"
BACKUP = "NO_SPACE the volume of member 0, which holds a copy of this partition, is full"


async def write_on(client: Client, partition: int, over: asyncio.Event) -> None:
    """Write one large value after the other to keys of the partition, whatever is answered."""
    for number in count():
        if over.is_set():
            return
        key = key_in(partition, PARTITIONS, number % KEYS)
        await client.set(number % MEMBERS, key, b"%d " % number + FILLER)
        await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def written(made: Cluster) -> AsyncIterator[list[Client]]:
    """A client writes to each partition meanwhile; what was acknowledged is read afterwards."""
    clients, over = [Client(made) for _ in range(PARTITIONS)], asyncio.Event()
    writers = [asyncio.create_task(write_on(client, p, over)) for p, client in enumerate(clients)]
    try:
        yield clients
    finally:
        over.set()
        await asyncio.gather(*writers)
    await check(made, clients)


async def check(made: Cluster, clients: list[Client]) -> None:
    """Read what was acknowledged, at each member some of it, beside the connections that may be writing."""
    for number, client in enumerate(clients):
        reader = Client(made)
        reader.acknowledged, reader.unknown = dict(client.acknowledged), dict(client.unknown)
        await reader.check(number % MEMBERS)
        await reader.close()


async def last_errors(clients: list[Client]) -> set[str]:
    return {error.partition(": ")[2].partition(":")[0] for client in clients for error in client.errors[-1:]}


async def acknowledged(clients: list[Client]) -> list[int]:
    """The highest number of each client that was acknowledged."""
    return [max(int(value.split()[0]) for value in client.acknowledged.values()) for client in clients]


async def free_bytes(made: Cluster) -> int:
    return (await made.exchange(0, rows=())).stats.disk_free_bytes


@pytest.mark.parametrize("features", [sampled(FIRST, kept=False), sampled(LOG_SEGMENTS, kept=True)])
async def test_a_full_volume_grows_while_clients_write(tmp_path: Path, features: int) -> None:
    with mounted(tmp_path / "m0", SMALL):
        async with hasty_cluster(tmp_path, PARTITIONS) as made:
            made.features = features
            await made.form(MEMBERS)
            async with written(made) as clients:
                at_it = [client for p, client in enumerate(clients) if 0 in made.rows[p].replicas]
                await eventually(partial(last_errors, at_it), lambda texts: texts == {OWNER, BACKUP})
                await check(made, at_it)
                before, free = await acknowledged(at_it), await free_bytes(made)

                remount(tmp_path / "m0", f"size={LARGE}")
                await eventually(
                    partial(acknowledged, at_it),
                    lambda after: all(a > b for a, b in zip(after, before, strict=True)),
                )
                assert await free_bytes(made) > free + GROWTH_BYTES
            assert await last_errors([c for c in clients if c not in at_it]) == set()
            for member in made.members.values():
                assert (await made.hello(member)).incarnation == 1
                assert "Traceback" not in member.log()
            await made.same_everywhere()
            await made.restart(0)
            await made.publish()
            await made.served()
            await check(made, clients)
