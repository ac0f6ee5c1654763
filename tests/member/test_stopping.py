"""A member that is stopped politely: what it acknowledged until its end is there when it returns."""

import asyncio
import fcntl
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stele.core.kv.keyslot import partition_of
from stele.core.kv.keyspaces import NO_CATALOG
from stele.core.table.groups import NO_GROUPS
from stele.member.replication.keyspaces import Keyspaces
from stele.member.replication.routes import Routes
from stele.member.serving.router import RequestRouter
from stele.member.storage.volume import LOCK
from tests.member.harness.clients import RespError
from tests.member.harness.cluster import Client, Cluster, MemberProcess, cluster, eventually

KEYS = 64
BALLAST_BYTES = 12_000_000
"""Of the log in memory: what closing the database has to write, while which others go on asking."""


class Counters:
    """Counts up keys of some partitions through some members; what was acknowledged last."""

    def __init__(self, made: Cluster, keys: list[bytes]) -> None:
        self._made, self.keys = made, keys
        self.acknowledged = dict.fromkeys(keys, 0)
        self.errors: list[str] = []
        self.over = False

    async def count(self, key: bytes, through: int) -> None:
        """Until it is over; an answer that is lost may or may not have been counted."""
        client = Client(self._made)
        while not self.over:
            try:
                answer = await client.call(through, b"INCR", key)
            except (ConnectionError, RespError, OSError, asyncio.IncompleteReadError) as error:
                self.errors.append(str(error))
                await asyncio.sleep(0.02)
                continue
            assert isinstance(answer, int)
            assert answer > self.acknowledged[key], (key, answer, self.acknowledged[key])
            self.acknowledged[key] = answer

    async def lost(self, through: int) -> dict[bytes, tuple[int, int]]:
        """Keys whose value is below what was acknowledged: (now, acknowledged)."""
        client, found = Client(self._made), {}
        for key, least in self.acknowledged.items():
            value = await client.call(through, b"GET", key)
            now = int(value) if isinstance(value, bytes) else 0
            if now < least:
                found[key] = now, least
        return found


def keys_of(owner: int, made: Cluster) -> list[bytes]:
    """Of partitions that this member owns."""
    names = (b"counter-%d" % number for number in range(100_000))
    owned = (name for name in names if made.rows[partition_of(name, made.partitions)].replicas[0] == owner)
    return [next(owned) for _ in range(KEYS)]


async def fill(made: Cluster, owner: int) -> None:
    """So much into the log that closing takes a moment."""
    client, value = Client(made), bytes(1_000_000)
    for key in keys_of(owner, made)[: BALLAST_BYTES // len(value)]:
        assert await client.set(owner, b"ballast:{%b}" % key, value) in {True, False}


async def stop_while_counting(made: Cluster, stopped: int, through: int, counters: Counters) -> None:
    """Stop a member politely amid the counting, which goes on through one member and through another."""
    through_each = (through, through, stopped)
    work = [
        asyncio.create_task(counters.count(key, through_each[n % 3])) for n, key in enumerate(counters.keys)
    ]
    await asyncio.sleep(1.0)
    member = made.members[stopped]
    code = await asyncio.wait_for(member.stop(), 20)
    member.process = None
    await asyncio.sleep(0.1)
    counters.over = True
    await asyncio.wait_for(asyncio.gather(*work), 60)
    assert not [error for error in counters.errors if "CORRUPT" in error]
    assert code == 0
    assert "Traceback" not in member.log()


@pytest.mark.parametrize("fsync", ["Always", "Interval"])
async def test_of_the_only_copy_nothing_is_lost(tmp_path: Path, fsync: str) -> None:
    """Rows of one: others forward to the member until it is gone."""
    async with cluster(tmp_path, 2, replicas=1, STELE_FSYNC=fsync) as made:
        await fill(made, 0)
        counters = Counters(made, keys_of(0, made))
        stopping = asyncio.create_task(stop_while_counting(made, 0, 1, counters))
        # Who waits for its owner waits for it to be back.
        await asyncio.sleep(1.0)
        await eventually(lambda: asyncio.sleep(0), lambda _: made.members[0].process is None)
        await made.members[0].start()
        await made.publish()
        await asyncio.wait([stopping])
        await made.served()
        assert sum(counters.acknowledged.values()) > KEYS
        assert await counters.lost(0) == {}
        await stopping


async def test_a_backup_acknowledges_nothing_that_it_has_not_when_it_returns(two: Cluster) -> None:
    """The owner dies as soon as its backup has stopped: the backup returns and is all that is left."""
    await fill(two, 0)
    counters = Counters(two, keys_of(0, two))
    work = [asyncio.create_task(counters.count(key, 0)) for key in counters.keys]
    await asyncio.sleep(1.0)
    code = await asyncio.wait_for(two.members[1].stop(), 20)
    await two.members[0].kill()
    counters.over = True
    await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 60)
    await two.members[1].start()
    await two.lose(0)
    await two.served()
    assert sum(counters.acknowledged.values()) > KEYS
    assert await counters.lost(1) == {}
    assert code == 0


async def test_a_stopping_member_answers_what_it_took_and_refuses_the_rest(one: Cluster) -> None:
    counters = Counters(one, keys_of(0, one))
    work = [asyncio.create_task(counters.count(key, 0)) for key in counters.keys]
    await asyncio.sleep(0.5)
    assert await asyncio.wait_for(one.members[0].stop(), 20) == 0
    counters.over = True
    await asyncio.gather(*work)
    assert not [error for error in counters.errors if "UNCERTAIN" in error or "CORRUPT" in error]


async def hold(made: Cluster, member: int) -> asyncio.StreamWriter:
    """A request of the master that stays under way: closing the port waits for it."""
    host, port = made.members[member].host, made.ports[2]
    _, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/exchange HTTP/1.1\r\nHost: member\r\nContent-Length: 9\r\n\r\n")
    await writer.drain()
    return writer


async def test_a_member_that_ends_by_itself_acknowledges_nothing_from_then_on(tmp_path: Path) -> None:
    """Its memory may be wrong: what others forward is not counted while the ports close."""
    async with cluster(tmp_path, 2, replicas=1) as made:
        failing, counters = made.members[0], Counters(made, keys_of(0, made))
        work = [asyncio.create_task(counters.count(key, 1)) for key in counters.keys]
        held = await hold(made, 0)
        await eventually(lambda: asyncio.sleep(0, sum(counters.acknowledged.values())), lambda n: n > KEYS)
        failing.signal(signal.SIGUSR2)
        await eventually(lambda: asyncio.sleep(0, failing.log()), lambda text: "ending: defect" in text)
        # What was sent before that may be on its way.
        await asyncio.sleep(0.2)
        counted = dict(counters.acknowledged)
        assert failing.process is not None
        assert await asyncio.wait_for(failing.process.wait(), 20) == 1
        assert counters.acknowledged == counted
        counters.over = True
        held.close()
        await failing.start()
        await made.publish()
        await asyncio.wait_for(asyncio.gather(*work), 60)
        await made.served()
        assert await counters.lost(1) == {}


@pytest.mark.plain
async def test_a_drain_asks_only_tablets_that_owe_an_answer() -> None:
    """It asks every few milliseconds, and a member may have 16,384 tablets."""

    class Replicas(dict[int, Any]):
        looked = 0

        def values(self) -> Any:
            self.looked += 1
            return super().values()

    replicas = Replicas({n: SimpleNamespace(owes=False, acknowledged=False) for n in range(3)})
    replicas[1].owes = True
    table = SimpleNamespace(keyspaces=Keyspaces(), routes=Routes(NO_GROUPS, 1, NO_CATALOG))
    member: Any = SimpleNamespace(
        replicas=replicas, table=table, counters=None, turn_budget=None, read=None, available_since=None
    )
    local: Any = SimpleNamespace(stop=lambda: None, busy=False)
    store = RequestRouter(member, {}, *[member] * 6, local)
    store.stop()
    assert [store.busy(), store.busy()] == [True, True]
    replicas[1].owes, replicas[1].acknowledged = False, True
    assert store.busy()
    replicas[1].acknowledged = False
    assert not store.busy()
    assert replicas.looked == 1


async def test_a_volume_is_used_by_one_process_at_a_time(one: Cluster) -> None:
    """Its successor waits, and has counted no start before the volume is its own."""
    member = one.members[0]
    first = await one.exchange(0)
    second = MemberProcess(7, "127.0.0.9", member.folder, one.ports)
    await second.start()
    await eventually(
        lambda: asyncio.sleep(0, second.log()), lambda text: "is used by another process" in text
    )
    assert (await one.exchange(0)).incarnation == first.incarnation
    begin = time.monotonic()
    await member.kill()
    await eventually(lambda: asyncio.sleep(0, second.log()), lambda text: "started: " in text)
    assert time.monotonic() - begin < 10
    member.host = second.host
    assert (await one.hello(second)).incarnation == first.incarnation + 1
    await second.close()


async def test_a_start_that_waits_for_the_volume_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "m0").mkdir()
    handle = os.open(tmp_path / "m0" / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    member = MemberProcess(0, "127.0.0.9", tmp_path / "m0", [1, 2, 3, 4, 5, 6, 7])
    await member.start()
    await eventually(
        lambda: asyncio.sleep(0, member.log()), lambda text: "is used by another process" in text
    )
    assert await asyncio.wait_for(member.stop(), 5) == 0
    assert not (tmp_path / "m0" / "instance").exists()
    os.close(handle)


async def test_a_start_in_a_passive_cluster_takes_no_write_before_it_hears_of_the_master(
    one: Cluster,
) -> None:
    one.state = "Passive"
    await one.publish()
    await one.restart(0)

    async def write() -> str:
        try:
            return str(await Client(one).call(0, b"SET", b"k", b"v"))
        except RespError as error:
            return str(error)

    # It waits while the volume is loaded, and is the first to be run.
    answer = await eventually(write, lambda text: "LOADING" not in text)
    assert "CLUSTER_PASSIVE" in answer
