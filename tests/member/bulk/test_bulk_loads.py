"""Bulk loads on real member processes: every replica ingests its file, once, whatever dies in between."""

import asyncio
import os
import random
import sys
from contextlib import asynccontextmanager

import pytest

from stele.client import bulk as bulk_client
from stele.client.bulk import Loader, export, export_groups
from stele.client.members import Members
from stele.core.formats import KEYSPACES
from stele.core.kv.keyslot import partition_of
from stele.core.kv.keyspaces import Catalog, Mode, NearCache, Quota, Reads, Replication, Settings, Undeclared
from stele.errors import BadInput, Conflict, Refused, Unavailable
from tests.member.events.test_notifications import Subscriber
from tests.member.harness.cluster import HASTY, Client, cluster, eventually, key_in

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
    for group in export_groups(members, keyspace):
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


async def test_a_keyspace_with_partitions_of_its_own_is_loaded_there_and_read_back(tmp_path):
    """Also after a restart of its members, and by clients of any member."""
    async with loading(tmp_path) as (made, members):
        group = await made.add_group("sessions", 3, replicas=3)
        wanted = rows(300)
        loader = Loader(members, "load-1", "sessions")
        pieces = await asyncio.to_thread(
            loader.send, "task", [(key, value, 0) for key, value in wanted.items()]
        )
        assert {partition for piece in pieces for partition in piece.partitions} == set(group)
        result = await asyncio.to_thread(loader.finish, pieces)
        assert (result.entries, result.tablets) == (300, 3)
        assert await asyncio.to_thread(dump, members, "sessions") == wanted
        assert await asyncio.to_thread(dump, members) == {}
        await made.restart(0)
        await made.served()
        key, client = next(iter(wanted)), Client(made)
        for index in made.members:
            await client.call(index, b"SELECT", b"sessions")
            assert await client.call(index, b"GET", key) == wanted[key]
            assert await client.call(index, b"DBSIZE") == 300


async def test_a_loader_that_does_not_know_the_partitions_of_a_keyspace_is_refused(tmp_path):
    async with loading(tmp_path) as (made, members):
        loader = Loader(members, "load-1", "sessions")
        pieces = await asyncio.to_thread(loader.send, "task", [(key, b"v", 0) for key in rows(100)])
        await made.add_group("sessions", 1, replicas=2)
        with pytest.raises(Refused, match="has no keys of sessions, they are in 8 to 8: upgrade the loader"):
            await asyncio.to_thread(loader.finish, pieces)
        assert await counted(made) == 0


async def counted(made):
    """Entries that all replicas agree on."""
    found = await eventually(lambda: sizes(made), lambda found: all(len(c) == 1 for c in found.values()))
    return sum(entries for each in found.values() for entries, _ in each)


def spare(made, partition):
    """The member of three that has no replica of it."""
    return next(index for index in range(3) if index not in made.rows[partition].replicas)


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
        assert await counted(made) == 5000
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


async def killed(made, members, name, wanted, point):
    """Member 1, which owns some partitions and backs up others, dies while it takes the load in."""
    target = made.members[1]
    await target.kill()
    await target.start(STELE_CRASH_POINT=point)
    await made.publish()
    running = asyncio.create_task(asyncio.to_thread(load, members, name, wanted))
    await target.process.wait()
    return running


async def back(made):
    await made.members[1].start()
    await made.hello(made.members[1])
    await made.publish()


@pytest.mark.parametrize("point", ["load.prepared", "load.ingested"])
async def test_a_member_that_dies_while_it_takes_a_load_in_has_it_once(tmp_path, point):
    wanted = rows(600)
    async with loading(tmp_path) as (made, members):
        client = Client(made)
        for key in list(wanted)[:40]:
            await client.set(0, key, b"older than the load")
        running = await killed(made, members, "struck", wanted, point)
        await back(made)
        result = await running
        assert result.tablets + result.skipped == PARTITIONS
        await made.served()
        assert await asyncio.to_thread(dump, members) == wanted
        await made.same_everywhere()
        assert await counted(made) == len(wanted)


async def struck(made, members, wanted):
    """It dies when all is ready to take a load in, and its files of the load are damaged."""
    running = await killed(made, members, "damaged", wanted, "load.prepared")
    for path in made.members[1].folder.glob("loads/*/*.sst"):
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 1
        path.write_bytes(bytes(body))
    return running


async def test_a_file_that_is_damaged_before_it_is_taken_in_is_fetched(tmp_path):
    wanted = rows(600)
    async with loading(tmp_path) as (made, members):
        running = await struck(made, members, wanted)
        await back(made)
        await running
        assert await asyncio.to_thread(dump, members) == wanted
        await made.same_everywhere()
        assert "does not match its manifest" in made.members[1].log()


async def test_a_tablet_whose_file_nobody_has_any_more_goes_offline_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(bulk_client, "PATIENCE_SECONDS", 3.0)
    async with loading(tmp_path) as (made, members):
        running = await struck(made, members, rows(600))
        for member in made.members.values():
            for path in member.folder.glob("loads/*/*"):
                path.unlink(missing_ok=True)  # The members that run put files away too.
        await back(made)

        async def broken():
            async with made.http.get(f"http://{made.members[1].host}:{made.ports[2]}/v1/status") as response:
                return (await response.json())["broken"]

        found = await eventually(broken, bool)
        assert all("the file of bulk load damaged is lost" in text for text in found.values())
        with pytest.raises(Unavailable, match="repeat the load with this id"):
            await running


async def test_an_owner_that_is_lost_for_good_loses_nothing_of_a_load(tmp_path):
    wanted = rows(600)
    async with loading(tmp_path) as (made, members):
        await asyncio.to_thread(load, members, "held", wanted)
        await made.members[0].close()
        made.members[0].process = None
        await made.lose(0)
        await made.served()
        assert await asyncio.to_thread(dump, members) == wanted


async def test_a_loader_that_dies_leaves_nothing_visible_and_its_load_goes_on(tmp_path):
    wanted = rows(500)
    async with loading(tmp_path) as (_, members):
        found = sorted(wanted.items())
        first = Loader(members, "given-up")
        await asyncio.to_thread(first.send, "task-0", ((key, value, 0) for key, value in found[:250]))
        assert await asyncio.to_thread(dump, members) == {}
        result = await asyncio.to_thread(load, members, "given-up", wanted)
        assert (result.tablets, result.entries) == (PARTITIONS, 500)
        assert await asyncio.to_thread(dump, members) == wanted


async def test_a_load_that_stopped_between_two_tablets_takes_in_the_rest(tmp_path):
    wanted = rows(500)
    part = {key: value for key, value in wanted.items() if partition_of(key, PARTITIONS) < 3}
    async with loading(tmp_path) as (_, members):
        await asyncio.to_thread(load, members, "halves", part)
        result = await asyncio.to_thread(load, members, "halves", wanted)
        assert (result.tablets, result.skipped) == (PARTITIONS - 3, 3)
        assert await asyncio.to_thread(dump, members) == wanted


async def test_a_key_that_comes_twice_is_named_or_its_last_row_wins(tmp_path):
    async with loading(tmp_path) as (_, members):
        loader = Loader(members, "double")
        pieces = await asyncio.to_thread(loader.send, "task-0", [(b"k", b"first", 0), (b"a", b"x", 0)])
        pieces += await asyncio.to_thread(loader.send, "task-1", [(b"k", b"last", 0)])
        with pytest.raises(Conflict, match=r"key 'k' is repeated.*nothing was loaded"):
            await asyncio.to_thread(loader.finish, pieces)
        assert await asyncio.to_thread(dump, members) == {}
        with pytest.raises(Conflict, match="key 'k'"):
            await asyncio.to_thread(loader.send, "task-2", [(b"k", b"1", 0), (b"k", b"2", 0)])
        last = Loader(members, "double-2", duplicates="last")
        pieces = await asyncio.to_thread(last.send, "task-0", [(b"k", b"0", 0), (b"k", b"first", 0)])
        pieces += await asyncio.to_thread(last.send, "task-1", [(b"k", b"last", 0)])
        await asyncio.to_thread(last.finish, pieces)
        assert await asyncio.to_thread(dump, members) == {b"k": b"last"}


async def test_clients_write_on_during_a_load_and_keep_their_order(tmp_path):
    wanted = rows(3000)
    shared = key_in(2, PARTITIONS)
    async with loading(tmp_path) as (made, members):
        client, stop, count = Client(made), asyncio.Event(), 0

        async def count_up():
            nonlocal count
            while not stop.is_set():
                assert await client.call(0, b"INCR", b"counter-" + shared) == count + 1
                count += 1

        counting = asyncio.create_task(count_up())
        await asyncio.to_thread(load, members, "beside", {**wanted, shared: b"loaded"})
        stop.set()
        await counting
        assert count > 0
        found = await asyncio.to_thread(dump, members)
        assert found == {**wanted, shared: b"loaded", b"counter-" + shared: b"%d" % count}


async def test_a_tablet_that_moves_has_what_was_loaded(tmp_path):
    """By its log, whose operation names a file that the new member has to fetch, and by a copy."""
    wanted = rows(500)
    async with loading(tmp_path) as (made, members):
        await asyncio.to_thread(load, members, "moving", wanted)
        for partition in (0, 1, 2):
            await made.move_owner(partition, spare(made, partition))
        assert await asyncio.to_thread(dump, members) == wanted
        await made.same_everywhere()
        assert (await asyncio.to_thread(load, members, "moving", wanted)).tablets == 0


async def test_files_go_when_the_log_lets_them_go(tmp_path):
    async with loading(tmp_path, LIMITS='{"FLUSH_SECONDS": 2.0}') as (made, members):
        await asyncio.to_thread(load, members, "short", rows(300))
        folders = [member.folder / "loads" for member in made.members.values()]

        async def left():
            return [path for folder in folders for path in folder.iterdir()]

        assert await left()
        # A flush comes after its time at the latest, and with a checkpoint's session.
        await eventually(left, lambda found: not found)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((b"k" * 70_000, b"v", 0), "a key has 70000 bytes; at most 65536"),
        ((b"k", b"v" * (8 * 1024 * 1024 + 1), 0), "the value of key 'k' has 8388609 bytes"),
        ((b"k", b"v", -1), "expire_at of key 'k' is -1"),
    ],
)
def test_a_row_that_no_client_could_write_is_named(row, text):
    with pytest.raises(BadInput, match=text):
        Loader(Members([("127.0.0.1", 1)]), "wrong").send("task-0", [row])


def test_a_cluster_that_does_not_answer_is_named():
    with pytest.raises(Unavailable, match=r"no member answers.*check the address"):
        Members([("127.0.0.1", 1)]).refresh()


@pytest.mark.parametrize("waited", [False, True])
async def test_a_destination_of_a_migration_gets_the_load_too(tmp_path, waited):
    """Whether every write waits for it already, or it is still on its way."""
    wanted = rows(400)
    async with loading(tmp_path) as (made, members):
        partition, destination, id = 0, spare(made, 0), made.id()
        await made.start_learner(id, partition, destination)
        if waited:
            await made.until_learner(made.owner(partition), id, "IN_SYNC")
        await asyncio.to_thread(load, members, "moving", wanted)
        await made.catch_up(id, partition, destination)
        await made.finish_move(id, partition, destination)
        assert await asyncio.to_thread(dump, members) == wanted
        await made.same_everywhere()
        assert (await asyncio.to_thread(load, members, "moving", wanted)).tablets == 0


async def test_a_full_volume_takes_no_load_and_goes_on_serving(tmp_path):
    code = (
        "import stele.transfer.bulk.files as bulk; bulk.SPARE_BYTES = 2**62;"
        "from stele.transfer.__main__ import main; raise SystemExit(main())"
    )
    async with loading(tmp_path) as (made, members):
        target = made.members[1]
        target.transfer.kill()
        await target.transfer.wait()
        target.transfer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, env=target.environment(), stderr=asyncio.subprocess.DEVNULL
        )
        await eventually(lambda: healthy(made, target), bool)
        with pytest.raises(Refused, match=r"bytes free.*enlarge the volume"):
            await asyncio.to_thread(load, members, "too-much", rows(100))
        assert await asyncio.to_thread(dump, members) == {}
        assert await Client(made).set(1, b"key", b"value")


async def test_a_passive_cluster_is_dumped_and_takes_no_load(tmp_path):
    async with loading(tmp_path) as (made, members):
        await asyncio.to_thread(load, members, "before", rows(100))
        made.state = "Passive"
        await made.publish()
        with pytest.raises(Refused, match="the cluster is Passive"):
            await asyncio.to_thread(load, members, "too-late", rows(100, prefix=b"more"))
        assert await asyncio.to_thread(dump, members) == rows(100)


async def test_a_keyspace_that_clients_may_not_use_takes_no_load(tmp_path):
    async with loading(tmp_path) as (made, members):
        made.catalog = Catalog(1, {"sessions": Settings()}, Undeclared.REFUSE)
        made.features = KEYSPACES
        await made.publish()
        with pytest.raises(Refused, match="keyspace default is not declared: create a Keyspace"):
            await asyncio.to_thread(load, members, "too-soon", rows(100))
        assert await asyncio.to_thread(dump, members) == {}
        await asyncio.to_thread(load, members, "declared", rows(100), keyspace="sessions")
        assert await asyncio.to_thread(dump, members, "sessions") == rows(100)


async def test_a_load_is_a_gap_in_the_events_of_its_partitions(tmp_path):
    async with loading(tmp_path) as (made, members):
        made.catalog, made.features = Catalog(1, {"default": Settings(notify="KEA")}), KEYSPACES
        await made.publish()
        listener = await Subscriber(made, 0).start()
        try:
            await Client(made).set(0, b"first", b"v")
            await listener.until(lambda: listener.of(b"first") == [b"set"])
            await asyncio.to_thread(load, members, "load-1", rows(500))
            await listener.until(lambda: listener.gaps == set(range(PARTITIONS)))
            assert {data for channel, data in listener.heard if channel.endswith(b":set")} == {b"first"}
        finally:
            await listener.close()


async def test_a_keyspace_at_its_quota_takes_no_load(tmp_path):
    async with loading(tmp_path) as (made, members):
        made.catalog, made.features = Catalog(1, {"small": Settings(quota=Quota(1))}), KEYSPACES
        made.over_quota = ("small",)
        await made.publish()
        with pytest.raises(Refused, match="keyspace small has reached its quota of 1 entries"):
            await asyncio.to_thread(load, members, "load-1", rows(100), keyspace="small")
        assert await counted(made) == 0


async def test_a_keyspace_whose_members_keep_what_their_clients_put_there_takes_no_load(tmp_path):
    async with loading(tmp_path) as (made, members):
        local = Settings(mode=Mode.INVALIDATION, local_cache_bytes=1 << 20)
        await made.declare({"pages": local})
        with pytest.raises(Refused, match="keyspace pages has mode Invalidation and takes no bulk loads: "):
            await asyncio.to_thread(load, members, "load-1", rows(100), keyspace="pages")
        assert await asyncio.to_thread(dump, members, "pages") == {}
        assert await counted(made) == 0


async def test_a_load_waits_for_the_partitions_of_its_keyspace(tmp_path):
    async with loading(tmp_path) as (made, members):
        await made.declare({"orders": Settings(own_partitions=True)})
        loaded = asyncio.create_task(asyncio.to_thread(load, members, "load-1", rows(100), keyspace="orders"))
        await asyncio.sleep(2)
        assert not loaded.done(), "it waits"
        await made.declare({})
        assert (await loaded).entries == 100


async def test_a_load_into_a_keyspace_with_settings(tmp_path):
    """Its rows have the expiries that they came with, and caches drop what it replaced."""
    near, wanted = NearCache(1 << 20, 3600), rows(100)
    settings = Settings(60, near_cache=near, reads=Reads.AVAILABLE, replication=Replication.ASYNC)
    async with loading(tmp_path) as (made, members):
        await made.declare({"default": settings})
        client, keys = Client(made), list(wanted)[:10]
        for index in made.members:
            assert [await client.call(index, b"GET", key) for key in keys] == [None] * 10
        await asyncio.to_thread(load, members, "load-1", wanted)
        for index in made.members:
            for key in keys:
                value = wanted[key]
                await eventually(
                    lambda i=index, k=key: client.call(i, b"GET", k), lambda found, v=value: found == v
                )
                assert await client.call(index, b"TTL", key) == -1


async def test_what_is_left_of_a_load_that_was_given_up_goes(tmp_path):
    """But a load that still sends keeps all of its pieces, the old ones too."""
    sent = [(b"k%d" % number, b"v", 0) for number in range(99)]
    async with loading(tmp_path, **HASTY) as (made, members):
        for name in ("over", "sending"):
            await asyncio.to_thread(Loader(members, name).send, "task-0", sent)
        folders = [member.folder / "loads" for member in made.members.values()]
        for folder in folders:
            for path in [*folder.glob("*/*"), *folder.glob("*")]:
                if path.name != "sending":
                    os.utime(path, (1, 1))

        async def left():
            return {path.parent.name for folder in folders for path in folder.glob("*/*.piece")}

        await eventually(left, lambda found: found == {"sending"})
