"""Members of the last release and of this build in one cluster, under writes and kills."""

import asyncio
import random
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import redis.asyncio

from stele.core.formats import FIRST, SPOKEN
from stele.wire.storage.volume import TABLE_FILE
from tests.member.harness import releases
from tests.member.harness.cluster import HASTY, Client, Cluster, RefusedError, eventually, key_in
from tests.member.harness.releases import last_release

MEMBERS = 3
PARTITIONS = 8
KEYS = 24
WRITERS = 2
PAUSE_SECONDS = 0.005


@asynccontextmanager
async def released_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """All members are of the last release."""
    made = Cluster(folder, PARTITIONS, 2, HASTY)
    made.source = last_release()
    try:
        await made.form(MEMBERS)
        for member in made.members.values():
            await member.start_transfer()
        yield made
    finally:
        await made.close()


async def write(client: Client, number: int, over: asyncio.Event) -> None:
    """Write each value once, to keys of its own, at any member that may be down just then."""
    chance = random.Random(number)
    for value in count():
        if over.is_set():
            return
        key = b"key-%d-%d" % (number, chance.randrange(KEYS))
        await client.set(chance.randrange(MEMBERS), key, b"%d" % value)
        await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def written(made: Cluster) -> AsyncIterator[list[Client]]:
    """Clients write meanwhile; afterwards every member reads what was acknowledged, and copies are equal."""
    clients, over = [Client(made) for _ in range(WRITERS)], asyncio.Event()
    writers = [asyncio.create_task(write(client, n, over)) for n, client in enumerate(clients)]
    try:
        yield clients
    finally:
        over.set()
        await asyncio.gather(*writers)
    await made.served()
    for client in clients:
        assert client.acknowledged
        # Some of its connections ended with the process at the other side.
        await client.close()
        for member in range(MEMBERS):
            await client.check(member)
    await made.same_everywhere()


async def more_writes(clients: list[Client]) -> None:
    """Wait until every client has had further writes acknowledged."""

    def acknowledged() -> list[int]:
        return [sum(map(int, client.acknowledged.values())) for client in clients]

    before = acknowledged()

    async def now() -> list[int]:
        return acknowledged()

    await eventually(now, lambda after: all(a > b for a, b in zip(after, before, strict=True)))


async def restart(made: Cluster, index: int, source: Path | None, *, kill: bool) -> None:
    """End one member and start it with that build."""
    member = made.members[index]
    if kill:
        await member.kill()
    else:
        assert await member.stop() == 0
    await member.close()
    member.source = source
    await member.start()
    await member.start_transfer()
    await made.hello(member)
    await made.publish()
    await made.served()


async def answers(made: Cluster, index: int, commands: list[list[bytes]]) -> list[object]:
    """What one member answers to one connection, errors as their texts."""
    told: list[object] = []
    host = made.members[index].host
    async with redis.asyncio.Redis(host=host, port=made.ports[0], single_connection_client=True) as client:
        for command in commands:
            try:
                told.append(await client.execute_command(*command))
            except redis.ResponseError as error:
                told.append(str(error))
    return told


async def test_a_transaction_across_partitions_waits_until_all_members_are_upgraded(tmp_path: Path) -> None:
    """Nothing of it is done before. Members of the last release know no MULTI."""
    async with released_cluster(tmp_path) as made:
        keys = [key_in(partition, PARTITIONS) for partition in range(PARTITIONS)]
        together = [[b"MSETNX", *(part for key in keys for part in (key, b"1"))]]
        exec_ = [[b"MULTI"], *([b"INCR", key] for key in keys), [b"EXEC"]]
        for upgraded in range(MEMBERS):
            await restart(made, upgraded, None, kill=False)
            for index in range(MEMBERS):
                why = await answers(made, index, together)
                if index <= upgraded:
                    why += (await answers(made, index, exec_))[-1:]
                    assert all("until the cluster is upgraded" in str(each) for each in why), why
                assert "OK" not in why
                assert await answers(made, index, [[b"MGET", *keys]]) == [[None] * len(keys)]
        await raise_features(made)
        assert await answers(made, 0, together) == [1]
        for index in range(MEMBERS):
            assert (await answers(made, index, exec_))[-1] == [index + 2] * len(keys)


async def test_one_member_after_the_other_is_upgraded_from_the_last_release(tmp_path: Path) -> None:
    """In between members of both builds are killed, owners move to the other build, and copies are made."""
    async with released_cluster(tmp_path) as made, written(made) as clients:
        old = made.source
        for index in range(MEMBERS):
            await more_writes(clients)
            await restart(made, index, None, kill=index == 1)
            assert ("connected, format 1" in made.members[index].log()) == (index < MEMBERS - 1)
            other = (index + 1) % MEMBERS
            await restart(made, other, made.members[other].source, kill=True)
            await more_writes(clients)
            await move_one(made, index)
            await move_one(made, other)
        assert old is not None
        assert [member.source for member in made.members.values()] == [None] * MEMBERS
        await raise_features(made)
        await more_writes(clients)
        await restart(made, 0, None, kill=True)
        assert "connected, format 2" in made.members[0].log()
        await more_writes(clients)


async def move_one(made: Cluster, owner: int) -> None:
    """One partition that the member owns goes to a member that does not hold it."""
    partition, row = next((p, row) for p, row in made.rows.items() if row.replicas[0] == owner)
    await made.move_owner(partition, next(index for index in made.members if index not in row.replicas))


async def raise_features(made: Cluster) -> None:
    replies = [await made.exchange(index, rows=()) for index in made.members]
    assert {reply.formats for reply in replies} == {SPOKEN}
    assert {reply.features for reply in replies} == {FIRST}
    made.features = SPOKEN.most
    replies = [await made.exchange(index, rows=()) for index in made.members]
    assert {reply.features for reply in replies} == {SPOKEN.most}
    for member in made.members.values():
        assert (member.folder / TABLE_FILE).read_bytes().startswith(b"stele TableFile 3\n")


async def test_before_the_features_rise_a_member_goes_back_to_the_last_release(tmp_path: Path) -> None:
    async with released_cluster(tmp_path) as made, written(made) as clients:
        for source in (None, made.source, None, made.source):
            await restart(made, 0, source, kill=source is None)
            await more_writes(clients)
        assert (made.members[0].folder / TABLE_FILE).read_bytes().startswith(b"stele TableFile 2\n")


async def test_after_the_features_rose_the_last_release_is_kept_out_and_loses_nothing(tmp_path: Path) -> None:
    """By the master's exchange, by its peers, and by its volume: it serves nothing until it is upgraded."""
    async with released_cluster(tmp_path) as made, written(made) as clients:
        old = made.source
        for index in range(MEMBERS):
            await restart(made, index, None, kill=False)
        await raise_features(made)
        await more_writes(clients)
        member = made.members[0]
        await member.stop()
        member.source = old
        await member.start()
        with pytest.raises(RefusedError, match="BAD_REQUEST: format is 2; this member speaks 1"):
            await made.exchange(0, rows=())
        assert (member.folder / TABLE_FILE).with_suffix(".damaged").exists()
        await restart(made, 0, None, kill=True)
        await more_writes(clients)


def clone_last_commit(folder: Path) -> None:
    """Into a clone that has no more than that, and nothing to fetch from."""
    clone = ["git", "clone", "-nq", "--depth=1", f"file://{releases.CHECKOUT}", str(folder)]
    subprocess.run(clone, check=True)
    subprocess.run(["git", "-C", str(folder), "remote", "remove", "origin"], check=True)


@pytest.mark.parametrize("shallow", [False, True])
def test_a_checkout_without_the_release_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shallow: bool
) -> None:
    checkout = tmp_path / "checkout"
    if shallow:
        clone_last_commit(checkout)
    monkeypatch.setenv("STELE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(releases, "CHECKOUT", checkout)
    with pytest.raises(AssertionError, match=r"release 0\.1\.0 is needed .*git fetch --unshallow"):
        last_release()
