"""What clients see of a member that is stopped as planned: nothing, by the retries that they have anyway."""

import asyncio
import signal
from pathlib import Path

import pytest
import redis.asyncio

from stele.core.control import commands as m
from stele.member import limits
from stele.member.leave import leave
from stele.member.settings import read_settings
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in
from tests.member.harness.load import Load, Service

LEAVING = 0


def service_of(made: Cluster) -> Service:
    return Service([member.host for member in made.members.values()], made.ports[0])


def load_of(made: Cluster, service: Service) -> Load:
    """On two keys of each partition, and some."""
    return Load(
        service, [key_in(p, made.partitions, seed) for seed in range(2) for p in range(made.partitions)]
    )


async def move_owners(made: Cluster, leaving: int) -> None:
    """Exchange the owner with its backup in every row that the leaving member owns."""
    for partition, row in list(made.rows.items()):
        if row.replicas[0] == leaving:
            backup = row.replicas[1]
            assert backup is not None
            await made.swap(partition, backup)


async def shrink_rows(made: Cluster, leaving: int) -> None:
    """Take a member that owns nothing out of all rows."""
    for partition, row in list(made.rows.items()):
        if leaving in row.replicas:
            made.store(partition, tuple(each for each in row.replicas if each != leaving), by=2)
    await made.publish()
    await made.served()


async def stop_as_planned(made: Cluster, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the pod: its endpoint, its hook with a master that reacts, SIGTERM."""
    monkeypatch.setattr(limits, "LEAVE_SECONDS_MIN", 0.5)
    member = made.members[LEAVING]
    service.hosts.remove(member.host)
    settings = read_settings(member.environment())
    hook = asyncio.ensure_future(asyncio.to_thread(leave, settings, 60.0))
    await eventually(lambda: made.exchange(LEAVING, rows=()), lambda reply: reply.stopping)
    await move_owners(made, LEAVING)
    # With the rows: a hook that looks late would otherwise see only that none names the member.
    made.may_stop.add(LEAVING)
    await shrink_rows(made, LEAVING)
    assert "nothing more to move" in await hook
    assert await asyncio.wait_for(member.stop(), 20) == 0
    member.process = None


@pytest.mark.parametrize("fsync", ["Always", "Interval"])
async def test_no_request_fails_when_a_member_stops_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str
) -> None:
    async with cluster(tmp_path, 3, STELE_FSYNC=fsync) as made:
        service = service_of(made)
        load = load_of(made, service)
        await asyncio.sleep(1.0)
        await stop_as_planned(made, service, monkeypatch)
        await asyncio.sleep(0.5)
        await load.end()
        assert load.failures == []
        async with service.asyncio_client() as client:
            for key, count in load.counts.items():
                assert int(await client.get(key)) == count > 0
        assert "connections are reset" not in made.members[LEAVING].log()


async def test_a_pipeline_is_answered_up_to_where_it_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replies are a prefix, then comes the end of the stream; what follows them was not run."""
    async with cluster(tmp_path, 3) as made:
        await move_owners(made, LEAVING)
        await shrink_rows(made, LEAVING)
        member, count = made.members[LEAVING], 1000
        reader, writer = await asyncio.open_connection(member.host, made.ports[0])

        async def send() -> None:
            for _ in range(count):
                writer.write(b"INCR counter\r\n")
                await asyncio.sleep(0.0005)

        sending = asyncio.create_task(send())
        assert await reader.readline() == b":1\r\n"
        await asyncio.sleep(0.1)
        stopped = asyncio.create_task(member.stop())
        rest = await asyncio.wait_for(reader.read(), 10)
        await sending
        assert await stopped == 0
        replies = [b":1", *rest.split()]
        assert replies == [b":%d" % n for n in range(1, len(replies) + 1)]
        assert 1 < len(replies) < count
        member.process = None
        async with redis.asyncio.Redis(host=made.members[1].host, port=made.ports[0]) as client:
            assert int(await client.get("counter")) == len(replies)
        writer.close()


async def test_a_client_reads_all_replies_although_it_goes_on_sending(tmp_path: Path) -> None:
    """Nothing that it sends too late may reset the connection before it has read what came before."""
    async with cluster(tmp_path, 1, replicas=1) as made:
        member, value = made.members[0], b"v" * 10_000
        reader, writer = await asyncio.open_connection(member.host, made.ports[0], limit=2**14)
        writer.write(b"SET k %b\r\n" % value + b"GET k\r\n" * 500)
        await eventually(lambda: asyncio.sleep(0, made.members[0].log()), lambda _: True)
        await asyncio.sleep(0.05)
        stopped = asyncio.create_task(member.stop())
        await asyncio.sleep(0.02)
        writer.write(b"GET k\r\n" * 10_000)
        found = 0
        while data := await reader.read(2**14):
            found += len(data)
            await asyncio.sleep(0.0002)
        assert (found - 5) % (len(value) + 10) == 0
        assert found > 5
        assert await stopped == 0
        writer.close()


STAGES = ("announced", "owners moved", "not in rows", "may stop", "ending connections")


@pytest.mark.parametrize("stage", STAGES)
async def test_a_member_may_die_at_any_step_of_a_planned_stop(tmp_path: Path, stage: str) -> None:
    """It comes back as a member that serves: an announcement ends with its process."""
    async with cluster(tmp_path, 3) as made:
        member, client = made.members[LEAVING], Client(made)
        keys = [key_in(p, made.partitions) for p in range(made.partitions)]
        for key in keys:
            assert await client.set(LEAVING, key, b"before")
        hook = asyncio.ensure_future(asyncio.to_thread(leave, read_settings(member.environment()), 60.0))
        await eventually(lambda: made.exchange(LEAVING, rows=()), lambda reply: reply.stopping)
        if stage != "announced":
            await move_owners(made, LEAVING)
        if stage in STAGES[2:]:
            await shrink_rows(made, LEAVING)
        if stage in STAGES[3:]:
            made.may_stop.add(LEAVING)
            await made.publish()
        for key in keys:
            assert await client.set(1, key, b"after")
        if stage == "ending connections":
            member.signal(signal.SIGTERM)
        await member.kill()
        assert await hook
        made.may_stop.clear()
        await member.start()
        await made.publish()
        await made.served()
        assert not (await made.exchange(LEAVING, rows=())).stopping
        await client.close()
        await client.check(LEAVING)
        await made.same_everywhere()


async def test_the_transfer_container_ends_first_and_nothing_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet runs one container's hook and stops the other at once: a copy from here just ends."""
    async with cluster(tmp_path, 3) as made:
        member = made.members[LEAVING]
        await member.start_transfer()
        opened = await made.order(LEAVING, m.OpenSession("session-1", (0,)))
        assert opened.session is not None
        assert member.transfer is not None
        member.transfer.terminate()
        await asyncio.wait_for(member.transfer.wait(), 10)
        service = service_of(made)
        await stop_as_planned(made, service, monkeypatch)
        assert "Traceback" not in made.members[LEAVING].log()
