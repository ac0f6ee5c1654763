"""Members as processes: what was acknowledged stays, whoever dies, and nobody reads what is old."""

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest

from stele.core.control import commands as m
from tests.member.harness.cluster import Client, Cluster, RespError, cluster, eventually, key_in


async def write_some(client: Client, members: list[int], number: int, text: bytes = b"v") -> None:
    for n in range(number):
        assert await client.set(members[n % len(members)], b"k%d" % n, text + b"%d" % n), client.errors


async def test_every_member_answers_for_every_key(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        client = Client(made)
        await write_some(client, [0, 1, 2], 60)
        for member in (0, 1, 2):
            await client.check(member)
        assert await client.call(1, b"DBSIZE") == 60
        await made.same_everywhere()


@pytest.mark.parametrize("fsync", ["Always", "Interval", "Never"])
async def test_killed_members_come_back_with_all_that_was_acknowledged(tmp_path: Path, fsync: str) -> None:
    async with cluster(tmp_path, 3, STELE_FSYNC=fsync) as made:
        client = Client(made)
        await write_some(client, [0, 1, 2], 90)
        await made.members[1].kill()
        await made.members[1].start()
        await made.served()
        client = _reconnected(client, made)
        await client.check(1)
        await asyncio.gather(*(member.kill() for member in made.members.values()))
        await asyncio.gather(*(member.start() for member in made.members.values()))
        await made.served()
        client = _reconnected(client, made)
        for member in (0, 1, 2):
            await client.check(member)
        await made.same_everywhere()


def _reconnected(client: Client, made: Cluster) -> Client:
    again = Client(made)
    again.acknowledged = client.acknowledged
    return again


async def test_backups_take_over_from_a_dead_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        client = Client(made)
        await write_some(client, [0, 2], 90)
        await made.members[1].kill()
        await made.lose(1)
        await made.served([0, 2])
        await client.check(0)
        await write_some(client, [0, 2], 90, b"later")
        await client.check(2)


async def test_a_write_waits_for_a_silent_backup_until_the_master_takes_it_out(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        client = Client(made)
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        key = key_in(partition, made.partitions)
        assert await client.set(0, key, b"before")
        made.members[1].signal(signal.SIGSTOP)
        write = asyncio.create_task(client.set(0, key, b"after"))
        reply = await eventually(lambda: made.exchange(0, rows=()), lambda r: bool(r.silent))
        assert [peer.member for peer in reply.silent] == [1]
        assert not write.done()
        await made.lose(1, dead=False)
        assert await write
        made.members[1].signal(signal.SIGCONT)
        assert await client.call(0, b"GET", key) == b"after"


async def test_a_paused_owner_that_returns_serves_nothing_old(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        old, fresh = Client(made), Client(made)
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        key = key_in(partition, made.partitions)
        assert await old.set(0, key, b"before")
        made.members[0].signal(signal.SIGSTOP)
        await made.promote(partition, lost=0, dead=False)
        await made.publish([1, 2])
        assert await fresh.set(1, key, b"after")
        made.members[0].signal(signal.SIGCONT)
        reads = [asyncio.create_task(Client(made).call(0, b"GET", key)) for _ in range(20)]
        await asyncio.sleep(0.7)
        assert not any(read.done() for read in reads)
        await made.publish([0])
        assert {await read for read in reads} == {b"after"}
        assert await old.set(0, key, b"last")
        assert await fresh.call(1, b"GET", key) == b"last"


async def test_fence_waits_for_the_lease_of_an_owner_that_may_live(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, replicas=2) as made:
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        fence = m.Fence(partition, made.version(partition) + 2, False)
        first = (await made.exchange(1, fence)).results[0]
        assert first.code == "WAIT"
        assert 0 < first.wait_ms <= 501
        assert (await made.command(1, fence)).code == "OK"
        lower = m.Fence(partition, made.version(partition) + 1, False)
        assert (await made.command(1, lower)).code == "STALE_TERM"
        dead = m.Fence(partition, made.version(partition) + 2, True)
        assert (await made.exchange(1, dead)).results[0].code == "OK"


@pytest.mark.parametrize("quiet_seconds", [0.0, 0.5], ids=["", "with nothing left to send"])
async def test_a_fenced_owner_answers_nothing_until_a_row_of_that_version(
    tmp_path: Path, quiet_seconds: float
) -> None:
    async with cluster(tmp_path, 2) as made:
        client = Client(made)
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        key = key_in(partition, made.partitions)
        assert await client.set(0, key, b"1")
        await asyncio.sleep(quiet_seconds)
        await made.command(1, m.Fence(partition, made.version(partition) + 2, False))
        read = asyncio.create_task(client.call(0, b"GET", key))
        await asyncio.sleep(0.7)
        assert not read.done()
        made.store(partition, (0, 1), by=2)
        await made.publish()
        assert await read == b"1"


async def test_a_lost_backup_rejoins_from_the_log(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        client = Client(made)
        await write_some(client, [0, 1, 2], 60)
        await made.members[1].kill()
        await made.lose(1)
        await write_some(client, [0, 2], 60, b"later")
        await made.members[1].start()
        await made.hello(made.members[1])
        await made.publish([1])
        partition, row = next((p, row) for p, row in made.rows.items() if row.replicas == (0,))
        id = made.id()
        await made.start_learner(id, partition, 1)
        await made.until_learner(0, id, "IN_SYNC")
        accepted = await made.command(1, m.Accept(id, m.Row(partition, row.version + 1, (0, 1))))
        assert accepted.code == "OK", accepted
        made.store(partition, (0, 1))
        await made.publish()
        reply = await made.exchange(1, rows=())
        assert not [copy for copy in reply.copies if copy.partition == partition]
        await made.same_everywhere()
        await made.promote(partition, lost=0)
        await made.publish()
        await made.served([0, 1, 2])
        await _reconnected(client, made).check(1)


async def test_exchange_refuses_what_is_not_for_this_member(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        base = m.ExchangeRequest(format=1, cluster=member.uuid, epoch=9, recipient=member.uuid, self_index=0)
        cases = [
            (base, "WRONG_CLUSTER"),
            (_with(base, cluster="11111111-2222-3333-4444-555555555555", recipient="x"), "WRONG_MEMBER"),
            (_with(base, cluster="11111111-2222-3333-4444-555555555555", epoch=0), "STALE_EPOCH"),
            (_with(base, cluster="11111111-2222-3333-4444-555555555555", format=7), "BAD_REQUEST"),
        ]
        for request, code in cases:
            assert (await made.post(member, request)).code == code
        url = f"http://{member.host}:{member.ports[2]}/v1/exchange"
        for body, text in ((b"{", "truncated"), (b'{"format":1}', "cluster"), (b"\xff\xfe", "exchange")):
            async with made.http.post(url, data=body) as response:
                assert response.status == 400
                assert text in await response.text()
        unknown = b'{"format":1,"cluster":"c","epoch":1,"recipient":"","commands":[{"type":"Explode"}]}'
        async with made.http.post(url, data=unknown) as response:
            assert (response.status, "Explode" in await response.text()) == (400, True)


def _with(request: m.ExchangeRequest, **changes: object) -> m.ExchangeRequest:
    return msgspec.structs.replace(request, **changes)


async def test_passive_refuses_writes_and_answers_reads(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        client = Client(made)
        assert await client.set(0, b"key", b"1")
        made.state = "Passive"
        await made.publish()
        with pytest.raises(RespError, match="CLUSTER_PASSIVE"):
            await client.call(1, b"SET", b"key", b"2")
        assert await client.call(1, b"GET", b"key") == b"1"
        made.state = "Active"
        await made.publish()
        assert await client.set(1, b"key", b"3")


async def test_a_lock_for_a_state_compares_tables_and_lets_nothing_begin(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, replicas=1) as made:
        reply = await made.exchange(1)
        stamp, listed = reply.stamp, reply.member_list_version
        behind = await made.command(1, m.LockState("c1", "Passive", stamp + 1, listed))
        assert (behind.code, str(stamp) in behind.detail) == ("STALE_VERSION", True)
        assert (
            await made.command(1, m.LockState("c1", "Passive", stamp, listed + 1))
        ).code == "STALE_VERSION"
        assert (await made.command(1, m.LockState("c1", "Passive", stamp, listed))).code == "OK"
        start = m.StartTabletCopy("m1", 0, made.version(0), 0)
        assert (await made.command(1, start)).code == "STATE_LOCKED"
        assert (await made.command(1, m.UnlockState("c0"))).code == "OK"
        assert (await made.command(1, start)).code == "STATE_LOCKED"
        assert (await made.command(1, m.UnlockState("c1"))).code == "OK"
        assert (await made.command(1, start)).code == "OK"
        active = await made.command(1, m.LockState("c2", "Passive", stamp, listed))
        assert (active.code, "m1" in active.detail) == ("MIGRATION_ACTIVE", True)


async def test_a_new_master_finds_no_lock_of_the_one_before(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, replicas=1) as made:
        reply = await made.exchange(1)
        lock = m.LockState("c1", "Passive", reply.stamp, reply.member_list_version)
        assert (await made.command(1, lock)).code == "OK"
        made.epoch += 1
        assert (await made.command(1, m.StartTabletCopy("m1", 0, made.version(0), 0))).code == "OK"


async def test_a_lite_member_holds_nothing_and_serves_clients_by_asking_owners(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        await made.add()
        made.lite = {2}
        await made.publish()
        client = Client(made)
        for number in range(40):
            assert await client.set(2, b"key-%d" % number, b"%d" % number)
        for number in range(40):
            assert await client.call(2, b"GET", b"key-%d" % number) == b"%d" % number
        reply = await eventually(lambda: made.exchange(2), lambda reply: reply.stats.forwarded >= 80)
        assert (reply.stats.owned, reply.stats.backups) == (0, 0)
        assert not [each for each in reply.tablets if each.state != "DELETED"]


async def test_stops_politely_and_is_ready_when_it_serves(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        url = f"http://{member.host}:{member.ports[2]}"
        for path, text in (("/healthz", "ok"), ("/readyz", "ok"), ("/metrics", "stele_requests_total")):
            async with made.http.get(url + path) as response:
                assert (response.status, text in await response.text()) == (200, True)
        assert await member.stop() == 0
        assert "Traceback" not in member.log()


async def test_a_volume_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        await member.stop()
        member.env = {"STELE_CLUSTER_UID": "another"}
        await member.start()
        assert member.process is not None
        assert await member.process.wait() == 1
        assert "belongs to cluster 11111111" in member.log()
        assert "Traceback" not in member.log()
