"""Migrations, step by step, with members dying between any two of them."""

import asyncio
import signal
from pathlib import Path

import pytest

from stele.core.control import commands as m
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in

BIG = 4000


class Load:
    """Clients that write and read all the time, through every member; each read is checked."""

    def __init__(self, made: Cluster, members: list[int], clients: int = 4) -> None:
        self._members = members
        self._clients = [Client(made) for _ in range(clients)]
        self._tasks = [asyncio.create_task(self._run(n, c)) for n, c in enumerate(self._clients)]
        self._stop = False
        self.done = 0

    async def _run(self, number: int, client: Client) -> None:
        turn = 0
        while not self._stop:
            turn += 1
            key = b"load-%d-%d" % (number, turn % 100)
            await client.set(self._members[turn % len(self._members)], key, b"%d" % turn)
            found = await client.call(self._members[(turn + 1) % len(self._members)], b"GET", key)
            assert found == client.acknowledged.get(key) or found in client.unknown.get(key, ())
            self.done += 1

    async def stop(self) -> list[str]:
        """End it; the errors that the clients saw."""
        self._stop = True
        await asyncio.gather(*self._tasks)
        return [error for client in self._clients for error in client.errors]

    async def check(self, member: int) -> None:
        for client in self._clients:
            await client.check(member)


async def fill(client: Client, members: int, number: int, value_bytes: int) -> None:
    for n in range(number):
        value = (b"v%d-" % n).ljust(value_bytes, b"x")
        assert await client.set(n % members, b"fill%d" % n, value), client.errors


async def test_owners_move_under_load_without_an_error(three: Cluster) -> None:
    client = Client(three)
    await fill(client, 3, 300, 50)
    load = Load(three, [0, 1, 2])
    await three.add()
    await three.publish()
    for partition in range(0, 16, 2):
        await three.move_owner(partition, 3)
    assert await load.stop() == []
    for member in range(4):
        await client.check(member)
        await load.check(member)
    await three.same_everywhere()


async def test_big_tablets_move_by_a_copy_under_load(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=4) as made:
        client = Client(made)
        await fill(client, 3, 600, BIG)
        await made.add()
        await asyncio.gather(*(member.start_transfer() for member in made.members.values()))
        await made.publish()
        load = Load(made, [0, 1, 2, 3])
        for partition in range(4):
            id = made.id()
            await made.start_learner(id, partition, 3)
            await made.until_learner(made.owner(partition), id, "NEEDS_COPY")
            await made.catch_up(id, partition, 3)
            await made.finish_move(id, partition, 3)
        assert await load.stop() == []
        await made.restart(3)
        await made.served()
        for member in (0, 1, 2):
            await client.check(member)
            await load.check(member)
        await made.same_everywhere()


@pytest.mark.parametrize("step", ["learning", "in sync", "frozen"])
async def test_an_aborted_move_leaves_everything_as_it_was(three: Cluster, step: str) -> None:
    client = Client(three)
    key = key_in(0, three.partitions)
    assert await client.set(0, key, b"before")
    id = three.id()
    await three.start_learner(id, 0, 2)
    if step != "learning":
        await three.until_learner(0, id, "IN_SYNC")
    if step == "frozen":
        await three.order(0, m.HandOver(id, 0))
        write = asyncio.create_task(client.set(0, key, b"after"))
        await asyncio.sleep(0.2)
        assert not write.done()
    for index in (0, 2):
        await three.order(index, m.Abort(id, 0))
        await three.order(index, m.Abort(id, 0))
    if step == "frozen":
        assert await write
    assert await client.set(1, key, b"last")
    reply = await three.exchange(2, rows=())
    assert [tablet.state for tablet in reply.tablets if tablet.partition == 0] == ["DELETED"]
    assert not (await three.exchange(0, rows=())).learners
    await three.move_owner(0, 2)
    assert await client.call(2, b"GET", key) == b"last"


async def test_a_frozen_owner_stays_frozen_when_it_restarts(three: Cluster) -> None:
    client = Client(three)
    key = key_in(0, three.partitions)
    assert await client.set(0, key, b"before")
    id = await three.learn(0, 2)
    handed = await three.command(0, m.HandOver(id, 0))
    assert handed.last is not None
    await three.restart(0)
    reply = await eventually(lambda: three.exchange(0, rows=()), lambda r: r.unserved == (0,))
    assert [learner.id for learner in reply.learners] == [id]
    assert (await three.command(0, m.HandOver(id, 0))).code == "ILLEGAL_STATE"
    await three.order(2, m.Accept(id, m.Row(0, 2, (2, 1)), handed.last))
    refused = await three.command(2, m.Abort(id, 0))
    assert refused.code == "ILLEGAL_STATE"
    await three.restart(2)
    found = await three.exchange(2, rows=())
    assert [row.replicas for row in found.accepted] == [(2, 1)]
    three.rows[0] = found.accepted[0]
    await three.publish()
    await three.served()
    assert await Client(three).call(0, b"GET", key) == b"before"
    assert not (await three.exchange(2, rows=())).accepted


async def test_an_owner_that_restarts_still_waits_for_its_learner(three: Cluster) -> None:
    key = key_in(0, three.partitions)
    id = await three.learn(0, 2)
    await three.restart(0)
    await three.until_learner(0, id, "IN_SYNC")
    await three.served()
    three.members[2].signal(signal.SIGSTOP)
    write = asyncio.create_task(Client(three).set(0, key, b"value"))
    await eventually(lambda: three.exchange(0, rows=()), lambda r: 2 in [s.member for s in r.silent])
    assert not write.done()
    await three.order(0, m.Abort(id, 0))
    assert await write
    three.members[2].signal(signal.SIGCONT)


async def test_a_backup_becomes_owner_on_purpose_without_an_error(three: Cluster) -> None:
    load = Load(three, [0, 1, 2])
    await asyncio.sleep(0.3)
    for partition in range(0, 16, 3):
        old, new = three.rows[partition].replicas
        assert old is not None
        assert new is not None
        term = three.version(partition) + 2
        for index in (old, new):
            await three.order(index, m.Fence(partition, term, True))
        await three.accept(new, m.Row(partition, term, (new, old)))
        await three.publish()
    assert await load.stop() == []
    for member in range(3):
        await load.check(member)
    await three.same_everywhere()
