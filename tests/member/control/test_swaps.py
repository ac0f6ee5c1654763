"""The owner and a backup change places, with members dying between any two steps."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from stele.core.control import commands as m
from tests.member.control.test_migrations import Load, fill
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in
from tests.member.services.recording import install, story

P = 0
SILENT_SECONDS = 1.0


async def accepted(made: Cluster, id: str, handed: m.Result, backup: int = 1) -> m.Row:
    """The row that makes the backup of row (0, 1) the owner, once it agreed."""
    row = m.Row(P, made.version(P) + 1, (backup, 0))
    assert handed.code == "OK", handed
    assert (await made.command(backup, m.Accept(id, row, handed.last))).code == "OK"
    return row


async def restart(made: Cluster, index: int) -> None:
    await made.members[index].kill()
    await made.members[index].start()
    await made.hello(made.members[index])


async def test_owners_change_under_load_without_an_error_and_without_a_copy(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        client = Client(made)
        await fill(client, 3, 300, 50)
        load = Load(made, [0, 1, 2])
        generations = await _generations(made)
        for _ in range(2):
            for partition in range(16):
                backup = made.rows[partition].replicas[1]
                assert backup is not None
                await made.swap(partition, backup)
        assert await load.stop() == []
        assert await _generations(made) == generations
        for member in range(3):
            await client.check(member)
            await load.check(member)
        await made.same_everywhere()


async def _generations(made: Cluster) -> dict[tuple[int, int], int]:
    replies = {index: await made.exchange(index, rows=()) for index in made.members}
    return {(index, t.partition): t.generation for index, r in replies.items() for t in r.tablets}


async def test_the_old_owner_stays_frozen_until_it_learns_the_row(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        key, client = key_in(P, made.partitions), Client(made)
        assert await client.set(0, key, b"before")
        id = made.id()
        made.rows[P] = await accepted(made, id, await made.hand_over(id, P, 1))
        read = asyncio.create_task(Client(made).call(0, b"GET", key))
        await restart(made, 0)

        async def unserved() -> tuple[int, ...]:
            return (await made.exchange(0, rows=())).unserved

        # It serves again what it owns, but for the partition that was handed over.
        assert await eventually(unserved, lambda found: found == (P,))
        await asyncio.sleep(0.2)
        assert await unserved() == (P,)
        await made.publish([1])
        await made.served()
        assert await client.set(1, key, b"after")
        assert await eventually(lambda: Client(made).call(0, b"GET", key), lambda v: v == b"after")
        read.cancel()
        await made.publish()
        await made.same_everywhere()


@pytest.mark.parametrize("kills", [(0,), (1,), (0, 1)])
async def test_the_row_can_be_stored_after_a_restart_of_either_side(
    tmp_path: Path, kills: tuple[int, ...]
) -> None:
    async with cluster(tmp_path, 3) as made:
        key, client = key_in(P, made.partitions), Client(made)
        assert await client.set(0, key, b"before")
        id = made.id()
        row = await accepted(made, id, await made.hand_over(id, P, 1))
        for index in kills:
            await restart(made, index)
        assert (await made.exchange(1, rows=())).accepted == (row,)
        made.rows[P] = row
        await made.publish()
        await made.served()
        assert await client.call(2, b"GET", key) == b"before"
        assert not (await made.exchange(1, rows=())).accepted
        assert not (await made.exchange(0, rows=())).learners


@pytest.mark.parametrize("by", ["abort", "row"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_the_frozen_owner_goes_on_after_the_end(tmp_path: Path, by: str, restarts: bool) -> None:
    async with cluster(tmp_path, 3) as made:
        key, client, id = key_in(P, made.partitions), Client(made), made.id()
        assert (await made.hand_over(id, P, 1)).code == "OK"
        if restarts:
            await restart(made, 0)
            assert (await made.hand_over(id, P, 1)).code == "ILLEGAL_STATE"
        write = asyncio.create_task(client.set(2, key, b"value"))
        await asyncio.sleep(0.1)
        assert not write.done()
        (learner,) = (await made.exchange(0, rows=())).learners
        assert (learner.id, learner.destination) == (id, 1)
        if by == "abort":
            assert (await made.command(0, m.Abort(id, P))).code == "OK"
        else:
            made.store(P, (0, 1), by=2)
            await made.publish()
        assert await write
        assert not (await made.exchange(0, rows=())).learners


async def test_a_backup_that_is_not_there_holds_no_clients(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        await made.members[1].kill()

        async def refused() -> str:
            id = made.id()
            result = await made.hand_over(id, P, 1)
            await made.command(0, m.Abort(id, P))
            return result.code

        await eventually(refused, lambda code: code == "BACKUP_BEHIND")
        assert not (await made.exchange(0, rows=())).learners
        assert P not in (await made.exchange(0, rows=())).unserved


async def test_a_backup_that_stops_after_the_freeze_is_waited_for(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        key, client, id = key_in(P, made.partitions), Client(made), made.id()
        assert await client.set(0, key, b"before")
        made.members[1].signal(signal.SIGSTOP)
        write = asyncio.create_task(client.set(0, key, b"after"))
        await asyncio.sleep(0.1)
        reply = await made.exchange(0, m.HandOver(id, P, made.version(P), 1))
        assert reply.results[0].code == "WAIT"
        assert (await made.command(0, m.Abort(id, P))).code == "OK"
        made.members[1].signal(signal.SIGCONT)
        assert await write
        assert await client.call(2, b"GET", key) == b"after"


async def test_without_a_master_a_swap_that_was_not_accepted_ends_by_itself(tmp_path: Path) -> None:
    known = json.dumps({"MASTER_SILENT_SECONDS": SILENT_SECONDS})
    async with cluster(tmp_path, 3, LIMITS=known) as made:
        client, key, id = Client(made), key_in(P, made.partitions), made.id()
        handed = await made.hand_over(id, P, 1)
        assert await client.set(2, key, b"value")
        accept = m.Accept(id, m.Row(P, 2, (1, 0)), handed.last)
        assert (await made.command(1, accept)).code == "ILLEGAL_STATE"
        await made.swap(P, 1)
        assert await client.call(0, b"GET", key) == b"value"


async def test_without_a_master_a_swap_that_was_accepted_waits(tmp_path: Path) -> None:
    known = json.dumps({"MASTER_SILENT_SECONDS": SILENT_SECONDS})
    async with cluster(tmp_path, 3, LIMITS=known) as made:
        client, key, id = Client(made), key_in(P, made.partitions), made.id()
        row = await accepted(made, id, await made.hand_over(id, P, 1))
        write = asyncio.create_task(client.set(2, key, b"value"))
        await asyncio.sleep(SILENT_SECONDS + 0.5)
        assert not write.done()
        made.rows[P] = row
        await made.publish()
        assert await write


async def test_nothing_begins_while_the_cluster_state_is_locked(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        stamp = (await made.exchange(0, rows=())).stamp
        lock = m.LockState("l", "Frozen", stamp, made.list_version)
        assert (await made.command(0, lock)).code == "OK"
        assert (await made.hand_over("m", P, 1)).code == "STATE_LOCKED"
        assert (await made.command(0, m.UnlockState("l"))).code == "OK"
        assert (await made.hand_over("m", P, 1)).code == "OK"
        assert (await made.command(0, lock)).code == "MIGRATION_ACTIVE"


@pytest.mark.parametrize("commits", [True, False])
async def test_services_hand_out_their_state_and_are_told_the_end(tmp_path: Path, commits: bool) -> None:
    async with cluster(tmp_path, 3, partitions=4, **install(tmp_path)) as made:
        if commits:
            await made.swap(P, 1)
        else:
            id = made.id()
            assert (await made.hand_over(id, P, 1)).code == "OK"
            assert (await made.command(0, m.Abort(id, P))).code == "OK"
        end, change = "commit" if commits else "rollback", ("SOURCE", [0, 1], "SWAP")
        told = [("before", *change), ("prepare", *change), (end, *change)]
        await eventually(lambda: _story(tmp_path, 0), lambda found: found == told)
        taken = ("DESTINATION", [1, 0], "SWAP")
        told = [("before", *taken), ("commit", *taken)] if commits else []
        await eventually(lambda: _story(tmp_path, 1), lambda found: found == told)
        if commits:
            await made.same(P, 0, 1, keyspace="@recorder")


async def _story(folder: Path, member: int) -> list[tuple[str, str, list[int], str]]:
    return story(folder, member, P)
