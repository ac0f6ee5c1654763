"""`STELE.ONCE`: applied once, whoever dies and wherever the partition goes; and the reply is the same."""

import asyncio
import itertools
import signal
from pathlib import Path
from typing import Any

import pytest

from stele.core.kv import dedup as once
from stele.member.admin.quarantine import _entry_line
from stele.wire.storage.keys import SERVICE, pack_value, user_key
from tests.member.harness.clients import RespError
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in
from tests.simulation.quiet_cluster import QuietCluster


def test_who_is_forgotten_is_the_same_everywhere_and_never_recent(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "CLIENTS_MAX", 2)
    owner = quiet.members[0]

    def incr(client: bytes, sequence: bytes) -> Any:
        return owner.ask(once.ONCE, client, sequence, b"INCR", b"n")

    assert [incr(b"a", b"1"), incr(b"b", b"1"), incr(b"a", b"2")] == [1, 2, 3]
    refused = incr(b"c", b"1")
    assert (refused.code, incr(b"b", b"1"), owner.ask(b"GET", b"n")) == ("TRYAGAIN", 2, b"3")
    owner.pass_days(once.KEEP_SECONDS)
    assert [incr(b"c", b"1"), incr(b"a", b"3")] == [4, 5]
    quiet.run(5.0)
    for member in quiet.members[:3]:
        assert member.keys() == {b"a", b"c", b"n"}
    owner.crash(power_lost=True)
    owner.start()
    quiet.run(5.0)
    assert incr(b"a", b"3") == 5
    assert incr(b"d", b"1").code == "TRYAGAIN"


def test_what_is_remembered_is_no_entry_of_a_user() -> None:
    stored = pack_value(b"v", 0)
    assert _entry_line((user_key(0, 1, b"default", b"k"), stored)) == b'["default","aw==","dg==",0]\n'
    assert _entry_line((user_key(0, 1, SERVICE, b"client"), stored)) == b""


# -- processes


class Counter(Client):
    """Counts a key up; a number is sent, to any member, until it is answered."""

    def __init__(self, made: Cluster, name: bytes, key: bytes) -> None:
        super().__init__(made)
        self.name, self.key, self.sequence, self.again = name, key, 0, 0

    async def count(self, members: list[int]) -> None:
        self.sequence += 1
        for member in itertools.cycle(members):
            try:
                async with asyncio.timeout(2):
                    reply = await self.once(member, self.sequence)
            except (ConnectionError, TimeoutError, RespError):
                await self.drop(member)
                self.again += 1
                continue
            assert reply == self.sequence
            return

    async def once(self, member: int, sequence: int) -> object:
        return await self.call(member, b"stele.once", self.name, b"%d" % sequence, b"INCR", self.key)


async def test_a_killed_owner_takes_no_count_with_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=4, replicas=2) as made:
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        counters = [Counter(made, b"c%d" % n, key_in(partition, 4, seed=n)) for n in range(6)]
        stop = asyncio.Event()

        async def load(counter: Counter) -> None:
            while not stop.is_set():
                await counter.count([0, 2, 1])

        tasks = [asyncio.create_task(load(counter)) for counter in counters]
        await asyncio.sleep(0.5)
        await made.members[0].kill()
        await asyncio.sleep(0.3)
        await made.lose(0)
        await asyncio.sleep(0.5)
        stop.set()
        await asyncio.gather(*tasks)
        for counter in counters:
            assert await counter.call(1, b"GET", counter.key) == b"%d" % counter.sequence
            assert await counter.once(2, counter.sequence) == counter.sequence
            assert counter.sequence > 10
        assert any(counter.again for counter in counters)


@pytest.mark.parametrize("by", ["log", "copy"])
async def test_the_memory_goes_where_the_partition_goes(tmp_path: Path, by: str) -> None:
    async with cluster(tmp_path, 3, partitions=4) as made:
        counter = Counter(made, b"me", key_in(0, 4))
        for _ in range(3):
            await counter.count([0, 1, 2])
        if by == "copy":
            await asyncio.gather(*(member.start_transfer() for member in made.members.values()))
            for n in range(120):
                assert await counter.set(1, key_in(0, 4, seed=n + 1), bytes(4000))
        await made.move_owner(0, 2)
        assert await counter.once(1, 3) == 3
        await made.restart(2)
        await made.served()
        assert await counter.once(1, 3) == 3
        await counter.count([1])
        assert await counter.call(1, b"GET", counter.key) == b"4"

        async def memories() -> list[tuple[object, ...]]:
            return [await made.digest(index, 0, keyspace="") for index in (1, 2)]

        found = await eventually(memories, lambda both: both[0] == both[1])
        assert len(found[0][1]) == 1  # type: ignore[arg-type]


async def test_a_second_attempt_waits_for_the_first(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=4) as made:
        partition = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        counters = [Counter(made, b"me", key_in(partition, 4)) for _ in range(3)]
        made.members[1].signal(signal.SIGSTOP)
        attempts = [asyncio.create_task(c.once(i, 1)) for i, c in zip((0, 0, 2), counters, strict=True)]
        await asyncio.sleep(0.5)
        assert not any(attempt.done() for attempt in attempts)
        assert [peer.member for peer in (await made.exchange(0, rows=())).silent] == [1]
        await made.lose(1, dead=False)
        assert await asyncio.gather(*attempts) == [1, 1, 1]
        made.members[1].signal(signal.SIGCONT)
        assert await counters[0].call(0, b"GET", counters[0].key) == b"1"


async def test_what_cannot_run_once_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=4, replicas=1) as made:
        client = Client(made)
        cases = {
            (b"c", b"1", b"GET", b"k"): "'GET' cannot run once",
            (b"c", b"1", b"MSET", b"k", b"v"): "'MSET' cannot run once",
            (b"c", b"1", b"DEL", b"k", b"l"): "wrong number of arguments for 'del'",
            (b"c", b"1", b"INCR"): "wrong number of arguments for 'stele.once'",
            (b"c", b"0", b"INCR", b"k"): "sequence is '0'",
            (b"c", b"9223372036854775808", b"INCR", b"k"): "sequence is '9223372036854775808'",
            (b"c", b"x", b"INCR", b"k"): "sequence is 'x'",
            (b"", b"1", b"INCR", b"k"): "client id of 0 bytes",
            (b"c" * 65, b"1", b"INCR", b"k"): "client id of 65 bytes",
        }
        for args, text in cases.items():
            with pytest.raises(RespError, match=text):
                await client.call(0, once.ONCE, *args)
        assert await client.call(0, b"DBSIZE") == 0
        assert await client.call(0, once.ONCE, b"c", b"5", b"SET", b"k", b"v") == b"OK"
        with pytest.raises(
            RespError, match=r"^STALE_SEQUENCE sequence 4 of client 'c' is outdated: this partition has run 5"
        ):
            await client.call(0, once.ONCE, b"c", b"4", b"SET", b"k", b"w")
        with pytest.raises(RespError, match=r"^ERR value is not an integer"):
            await client.call(0, once.ONCE, b"c", b"6", b"INCR", b"k")
        assert await client.set(0, b"k", b"1")
        with pytest.raises(RespError, match=r"^ERR value is not an integer"):
            await client.call(0, once.ONCE, b"c", b"6", b"INCR", b"k")
        assert await client.set(0, b"k", bytes(once.REPLY_BYTES_MAX))
        with pytest.raises(RespError, match="exceeds the limit of 16384; nothing was done"):
            await client.call(0, once.ONCE, b"c", b"7", b"GETDEL", b"k")
        assert await client.call(0, b"EXISTS", b"k") == 1
