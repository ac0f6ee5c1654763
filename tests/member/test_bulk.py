"""Bulk loads on real member processes: every replica ingests its file, once, whatever dies in between."""

import asyncio
import random
from contextlib import asynccontextmanager

from harness import Client, cluster, eventually

from stele.client.bulk import Loader, export, export_groups
from stele.client.members import Members

PARTITIONS = 8


@asynccontextmanager
async def loading(folder, members=3, replicas=2, **env):
    """A cluster with its transfer processes, and how a loader reaches it."""
    async with cluster(folder, members, PARTITIONS, replicas, **env) as made:
        for member in made.members.values():
            await member.start_transfer()
        for member in made.members.values():
            await eventually(lambda m=member: healthy(made, m), bool)
        first = made.members[0]
        members = Members([(first.host, first.ports[2])])
        try:
            yield made, members
        finally:
            members.close()


async def healthy(made, member):
    async with made.http.get(f"http://{member.host}:{member.ports[3]}/healthz") as response:
        return response.status == 200


def rows(count, seed=0, prefix=b"row"):
    chance = random.Random(seed)
    return {b"%s-%06d" % (prefix, number): chance.randbytes(chance.randrange(60)) for number in range(count)}


def load(members, name, wanted, **options):
    """Whole, in two pieces."""
    loader = Loader(members, name, **options)
    found = sorted(wanted.items())
    pieces = [
        piece
        for part in (0, 1)
        for piece in loader.send(f"task-{part}", ((key, value, 0) for key, value in found[part::2]))
    ]
    return loader.finish(pieces)


def dump(members, keyspace="default"):
    found = {}
    for group in export_groups(members):
        for keys, values, _ in export(members, group, keyspace):
            found.update(zip(keys, values, strict=True))
    return found


async def sizes(made):
    """Entries that each replica counts, by partition."""
    found = {}
    for index, member in made.members.items():
        async with made.http.get(f"http://{member.host}:{member.ports[2]}/v1/tablets") as response:
            for tablet in (await response.json())["tablets"]:
                if index in made.rows[tablet["partition"]].replicas:
                    found.setdefault(tablet["partition"], set()).add((tablet["entries"], tablet["bytes"]))
    return found


async def test_rows_come_to_all_replicas_and_back(tmp_path):
    wanted = rows(5000)
    async with loading(tmp_path) as (made, members):
        client = Client(made)
        for key in list(wanted)[:50]:
            await client.set(0, key, b"older than the load")
        result = await asyncio.to_thread(load, members, "first", wanted)
        assert (result.tablets, result.entries, result.skipped) == (PARTITIONS, 5000, 0)
        assert await asyncio.to_thread(dump, members) == wanted
        await made.same_everywhere()
        total = 0
        for counted in (
            await eventually(lambda: sizes(made), lambda f: all(len(c) == 1 for c in f.values()))
        ).values():
            total += next(iter(counted))[0]
        assert total == 5000
        for key in list(wanted)[:20]:
            assert await client.call(1, b"GET", key) == wanted[key]


async def test_a_load_is_applied_once_and_what_is_written_later_stays(tmp_path):
    wanted = rows(400)
    async with loading(tmp_path) as (made, members):
        await asyncio.to_thread(load, members, "twice", wanted)
        client = Client(made)
        key = next(iter(wanted))
        await client.set(1, key, b"newer")
        result = await asyncio.to_thread(load, members, "twice", wanted)
        assert (result.tablets, result.skipped) == (0, PARTITIONS)
        assert await client.call(0, b"GET", key) == b"newer"


async def test_a_member_that_starts_again_has_what_it_took_in(tmp_path):
    wanted = rows(1000)
    async with loading(tmp_path) as (made, members):
        await asyncio.to_thread(load, members, "lasting", wanted)
        for index in range(3):
            await made.members[index].kill()
        for index in range(3):
            await made.members[index].start()
        await made.publish()
        await made.served()
        assert await asyncio.to_thread(dump, members) == wanted
        await made.same_everywhere()
        result = await asyncio.to_thread(load, members, "lasting", wanted)
        assert result.tablets == 0
