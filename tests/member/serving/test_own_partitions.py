"""Keyspaces that get partitions of their own, and those with a copy at every member, by real processes."""

import asyncio
import re
import signal
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stele.core.kv.keyslot import partition_in, slot_of
from stele.core.kv.keyspaces import Mode, NearCache, Reads, Settings
from tests.member.events.test_notifications import Subscriber
from tests.member.harness.caching import Connection, close_all
from tests.member.harness.clients import Client, RespError
from tests.member.harness.cluster import Cluster, cluster, eventually, key_in
from tests.member.serving.test_backup_reads import backup_reads
from tests.member.serving.test_settings_together import EVENTS, Event, promotion, update

PLACED = {"orders": Settings(own_partitions=True)}
EVERYWHERE = {"orders": Settings(mode=Mode.REPLICATED, reads=Reads.AVAILABLE, own_partitions=True)}
SHARED = {"orders": Settings()}
REFUSED = r"^TRYAGAIN keyspace orders gets partitions of its own"
KEYS = [b"k%d" % number for number in range(40)]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, 3) as made:
        yield made


async def client_of(made: Cluster, *members: int) -> Client:
    """A client whose connections are in the keyspace."""
    client = Client(made)
    for member in members:
        await client.call(member, b"SELECT", b"orders")
    return client


async def vacant(made: Cluster) -> list[bool]:
    replies = [await made.exchange(index, rows=()) for index in made.members]
    return ["orders" in each.vacant for each in replies]


async def test_nobody_is_answered_before_the_partitions_are_there(made: Cluster) -> None:
    await made.declare(SHARED)
    client = await client_of(made, 0, 1, 2)
    await client.set(0, b"before", b"v")
    await client.call(0, b"DEL", b"before")
    assert await vacant(made) == [False] * 3, "it gets none"
    await made.declare(PLACED)
    commands = (
        [b"GET", b"k"],
        [b"SET", b"k", b"v"],
        [b"DBSIZE"],
        [b"FLUSHDB"],
        [b"SCAN", b"0"],
        [b"MGET", b"a", b"b"],
    )
    for member in made.members:
        for command in commands:
            with pytest.raises(RespError, match=REFUSED):
                await client.call(member, *command)
    assert await client.call(0, b"FLUSHALL") == b"OK"
    assert await eventually(lambda: vacant(made), all) == [True] * 3
    group = await made.add_group("orders", 3, replicas=2)
    assert await vacant(made) == [False] * 3, "it has them"
    for key in KEYS:
        assert await client.set(0, key, key)
    assert await client.call(1, b"DBSIZE") == len(KEYS)
    assert await client.call(0, b"SELECT", b"default") == b"OK"
    assert await client.call(0, b"DBSIZE") == 0
    for key in KEYS:
        partition = partition_in(group, slot_of(key))
        _, entries = await made.digest(made.owner(partition), partition, "orders")
        assert isinstance(entries, tuple)
        assert b64encode(key).decode() in [entry[0] for entry in entries]


async def test_what_is_there_or_on_its_way_is_reported(made: Cluster) -> None:
    """An entry that is applied, and one that is in the owner's log and waits for a backup."""
    await made.declare(SHARED)
    owner, backup = made.rows[0].replicas[:2]
    assert owner is not None
    assert backup is not None
    client = await client_of(made, owner)
    made.members[backup].signal(signal.SIGSTOP)
    write = asyncio.create_task(client.set(owner, key_in(0, made.partitions), b"v"))
    await asyncio.sleep(0.1)
    stopped, made.members[backup].process = made.members[backup].process, None
    await made.declare(PLACED)
    assert "orders" not in (await made.exchange(owner, rows=())).vacant
    made.members[backup].process = stopped
    made.members[backup].signal(signal.SIGCONT)
    assert await write, "it was answered, as it was logged before"
    await made.publish()
    assert "orders" not in (await made.exchange(owner, rows=())).vacant
    await made.declare(SHARED)
    await client.check(owner)


async def test_a_member_with_an_older_catalog_is_refused_by_the_owner(made: Cluster) -> None:
    """It sends a request to the partition that the keyspace had; nothing is written there."""
    await made.declare(SHARED)
    client = await client_of(made, 0, 1, 2)
    older = 0
    made.catalog = made.catalog and made.catalog.changed_to(PLACED)
    await made.publish([1, 2])
    for partition in (each for each in range(made.partitions) if made.owner(each) != older):
        for command in (
            [b"SET", key_in(partition, made.partitions), b"v"],
            [b"GET", key_in(partition, made.partitions)],
        ):
            with pytest.raises(RespError, match=REFUSED):
                await client.call(older, *command)
    assert (await vacant(made))[1:] == [True, True]


async def test_a_backup_with_an_older_catalog_soon_answers_no_reads(made: Cluster) -> None:
    """It would look for the keyspace where nothing is written any more, and never learn that it is old."""
    await made.declare({"orders": Settings(reads=Reads.AVAILABLE)})
    owner, older = made.rows[0].replicas[:2]
    assert owner is not None
    assert older is not None
    client, key = await client_of(made, owner, older), key_in(0, made.partitions)
    await client.set(owner, key, b"v")

    async def read_here() -> bool:
        before = await backup_reads(made, older)
        assert await client.call(older, b"GET", key) == b"v"
        return await backup_reads(made, older) > before

    assert await eventually(read_here, bool)
    assert made.catalog is not None
    made.catalog = made.catalog.changed_to({"orders": Settings(reads=Reads.AVAILABLE, own_partitions=True)})
    await made.publish(each for each in made.members if each != older)

    async def error() -> str:
        try:
            await client.call(older, b"GET", key)
        except RespError as found:
            return str(found)
        return ""

    assert re.match(REFUSED, await eventually(error, bool))


async def test_near_caches_drop_what_they_read_before(made: Cluster) -> None:
    """That a key is missing, in a client's near cache and in that of a member."""
    near = NearCache(1 << 20, 3600)
    await made.declare({"orders": Settings(near_cache=near)})
    writer, keys = await client_of(made, 0, 1, 2), {key for key in KEYS if key != b"k0"}
    readers = [await Connection.open(made.ports[0], made.members[member].host) for member in made.members]
    try:
        for reader in readers:
            await reader.call("HELLO", "3")
            await reader.call("SELECT", "orders")
            await reader.call("CLIENT", "TRACKING", "ON")
            for key in keys:
                assert await reader.call("GET", key) is None
        for member in made.members:
            assert await writer.call(member, b"GET", b"k0") is None, "the member keeps it"
        await made.declare({"orders": Settings(near_cache=near, own_partitions=True)})
        await eventually(lambda: vacant(made), all)
        await made.add_group("orders", 3, replicas=2)
        for key in KEYS:
            await writer.call(0, b"SET", key, b"v")
        for reader in readers:
            async with asyncio.timeout(10):
                while {key for push in reader.pushed for key in push.items[1]} < keys:
                    await reader.read(0.5)
        for member in made.members:
            assert await writer.call(member, b"GET", b"k0") == b"v"
    finally:
        await close_all()


@pytest.mark.parametrize("settings", [PLACED, EVERYWHERE], ids=["placed", "replicated"])
async def test_writes_outlive_moves_and_the_loss_of_a_member(
    made: Cluster, settings: dict[str, Settings]
) -> None:
    await made.declare(settings)
    group = await made.add_group("orders", 3, replicas=2)
    client = await client_of(made, 0, 1, 2)
    for number, key in enumerate(KEYS):
        assert await client.set(number % 3, key, key)
    for partition in group:
        (free,) = {0, 1, 2} - set(made.rows[partition].replicas)
        await made.move_owner(partition, free)
    await client.check(0)
    await made.members[1].kill()
    made.members[1].process = None
    await made.lose(1)
    await client.drop(1)
    for key in KEYS:
        assert await client.set(0, key, key * 2)
    await made.members[1].start()
    await made.hello(made.members[1])
    await made.publish()
    await client.call(1, b"SELECT", b"orders")
    for member in made.members:
        await client.check(member)
    await made.same_everywhere()


async def test_each_member_answers_what_every_member_has(tmp_path: Path) -> None:
    """Four members, of which three die: the fourth has all, and asked nobody before."""
    async with cluster(tmp_path, 4, replicas=4) as made:
        await made.declare(EVERYWHERE)
        await made.add_group("orders", 4, replicas=4)
        client = await client_of(made, 0, 1, 2, 3)
        for number, key in enumerate(KEYS):
            assert await client.set(number % 4, key, key)

        async def forwarded() -> int:
            """How many of the reads other members had to answer."""
            before = (await made.exchange(3, rows=())).stats.forwarded
            await client.check(3)
            await asyncio.sleep(1.1)
            return (await made.exchange(3, rows=())).stats.forwarded - before

        assert await eventually(forwarded, lambda number: number == 0) == 0
        for lost in (0, 1, 2):
            await made.members[lost].kill()
            made.members[lost].process = None
            await made.lose(lost)
        assert {row.replicas for row in made.rows.values() if row.partition >= made.partitions} == {(3,)}
        await made.served()
        await client.check(3)
        assert await forwarded() == 0


# -- together with other features


KEYSPACES = {
    "placed": Settings(notify="KEA", own_partitions=True),
    "everywhere": Settings(mode=Mode.REPLICATED, notify="KEA", reads=Reads.AVAILABLE, own_partitions=True),
    "near": Settings(near_cache=NearCache(1 << 20, 3600), own_partitions=True),
    "cached": Settings(
        mode=Mode.REPLICATED,
        near_cache=NearCache(1 << 20, 3600),
        reads=Reads.AVAILABLE,
        own_partitions=True,
    ),
}


class Together:
    """Keyspaces with two partitions of their own each, of which two members of three have copies."""

    def __init__(self, made: Cluster) -> None:
        self.made, self.count = made, 0
        self.groups: dict[str, range] = {}
        self.clients: dict[tuple[str, int], Client] = {}

    async def begin(self) -> None:
        await self.made.declare(KEYSPACES)
        for name in KEYSPACES:
            self.groups[name] = await self.made.add_group(name, 2, replicas=2)

    async def call(self, keyspace: str, member: int, *commands: list[bytes]) -> list[Any]:
        if (keyspace, member) not in self.clients:
            self.clients[keyspace, member] = Client(self.made)
            await self.clients[keyspace, member].call(member, b"SELECT", keyspace.encode())
        return [await self.clients[keyspace, member].call(member, *each) for each in commands]

    def keys(self, keyspace: str) -> tuple[bytes, bytes]:
        """A key of each partition."""
        return key_in(0, len(self.groups[keyspace])), key_in(1, len(self.groups[keyspace]))

    async def counted(self) -> None:
        """Count through every member that runs: nothing is lost or done twice, and each reads its write."""
        for member, process in self.made.members.items():
            if process.process is None:
                continue
            self.count += 1
            for keyspace in KEYSPACES:
                for key in self.keys(keyspace):
                    found = await self.call(keyspace, member, [b"INCR", key], [b"GET", key])
                    assert found == [self.count, b"%d" % self.count], (keyspace, member)


@pytest.fixture
async def together(made: Cluster) -> Together:
    together = Together(made)
    await together.begin()
    return together


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
async def test_nothing_is_lost_or_done_twice_in_own_partitions(together: Together, event: Event) -> None:
    await together.counted()
    for group in together.groups.values():
        if event not in (promotion, update) or group is together.groups["placed"]:
            await event(together.made, group.start)
    together.clients.clear()
    await together.counted()


async def test_passive_refuses_writes_into_own_partitions(together: Together) -> None:
    await together.counted()
    together.made.state = "Passive"
    await together.made.publish()
    for keyspace in KEYSPACES:
        for member in together.made.members:
            key, _ = together.keys(keyspace)
            with pytest.raises(RespError, match="CLUSTER_PASSIVE"):
                await together.call(keyspace, member, [b"INCR", key])
            assert await together.call(keyspace, member, [b"GET", key]) == [b"3"]


async def test_transactions_run_across_own_partitions(together: Together) -> None:
    """Their events are published, and caches and backups show them whole to the connection that ran them."""
    listener = await Subscriber(together.made, 2).start("__keyspace@placed__:*", "__keyspace@everywhere__:*")
    for keyspace in KEYSPACES:
        a, b = together.keys(keyspace)
        for number, member in enumerate((0, 1, 2, 0), start=1):
            value = b"%d" % number
            begun = [[b"MULTI"], [b"SET", a, value], [b"SET", b, value], [b"EXEC"], [b"MGET", a, b]]
            *_, ended, read = await together.call(keyspace, member, *begun)
            assert (ended, read) == ([b"OK", b"OK"], [value, value]), keyspace
    try:
        for keyspace in (b"placed", b"everywhere"):
            for key in together.keys(keyspace.decode()):
                await listener.until(lambda key=key, keyspace=keyspace: len(listener.of(key, keyspace)) == 4)
                assert listener.of(key, keyspace) == [b"set"] * 4
    finally:
        await listener.close()


async def test_a_near_cache_drops_what_changed_in_own_partitions(together: Together) -> None:
    for keyspace in ("near", "cached"):
        key, _ = together.keys(keyspace)
        partition = together.groups[keyspace].start
        (reader,) = {0, 1, 2} - set(together.made.rows[partition].replicas)
        for value in (b"1", b"2"):
            await together.call(keyspace, together.made.owner(partition), [b"SET", key, value])

            async def read(keyspace: str = keyspace, key: bytes = key, reader: int = reader) -> Any:
                return await together.call(keyspace, reader, [b"GET", key])

            await eventually(read, lambda found, value=value: found == [value])
