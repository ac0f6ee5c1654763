"""`verify` with real member processes: equal replicas, one that differs, and clients that write."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.adapters.kubernetes.console import Console
from stele.cli import comparison
from stele.cli.comparison import Found, Stretch, compare
from stele.core.control.commands import OpId
from stele.core.table.table import Member, Partition
from stele.errors import Corrupt, Unavailable
from stele.wire.admin import TabletChecksum
from tests.cli.conftest import Run
from tests.cli.test_tablets import Shell, shell
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in

PARTITIONS = 2


@asynccontextmanager
async def asked(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, rows: tuple[tuple[int, ...], ...]
) -> AsyncIterator[tuple[Cluster, Shell]]:
    """Members with a table of these rows; the fake API server knows pods only."""

    async def one(self: Console, name: str) -> object:
        return SimpleNamespace()

    async def head(self: Console, name: str) -> object:
        return SimpleNamespace(members=[Member(n, f"m{n}", f"u{n}", "") for n in range(2)], rows=len(rows))

    async def shard(self: Console, name: str, head: object, number: int) -> object:
        return tuple(Partition(1, row) for row in rows)

    monkeypatch.setattr(Console, "cluster", one)
    monkeypatch.setattr(Console, "table_head", head)
    monkeypatch.setattr(Console, "table_shard", shard)
    async with cluster(folder, 2, partitions=PARTITIONS) as made, shell(run, folder, made) as ask:
        for partition in range(PARTITIONS):
            for number in range(5):
                assert await Client(made).set(partition, key_in(partition, PARTITIONS, number), b"v")
        yield made, ask


async def test_equal_replicas_are_equal_while_clients_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(run, tmp_path, monkeypatch, ((0, 1), (0, 1))) as (made, ask):
        client, going = Client(made), True

        async def write() -> None:
            number = 0
            while going:
                number += 1
                await client.set(0, key_in(0, PARTITIONS, number % 5), b"%d" % number)

        writing = asyncio.create_task(write())
        found = (await ask("verify", "demo", "-o", "json")).json
        going = False
        await writing
        assert (found["partitions"], found["replicas"]) == (2, 2)
        assert (found["differences"], found["skipped"]) == ([], [])
        assert found["entries"] >= 10
        quiet = await ask("verify", "demo", "-p", "1")
        assert quiet.out.startswith("1 partitions, 1 replicas besides their owners, ")
        assert quiet.out.endswith(": 0 replicas differ\n")


async def test_a_replica_that_differs_is_named_with_its_first_and_last_entry(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lost its last three entries, as it would answer."""
    real = Console.ask_member

    async def ask(self: Console, method: str, name: str, path: str, form: Any, **query: str) -> Any:
        found = await real(self, method, name, path, form, **query)
        if name != "m1" or query["partition"] != "1":
            return found
        assert isinstance(found, TabletChecksum)
        return msgspec.structs.replace(found, items=found.items[:-3], entries=2, checksum="0")

    monkeypatch.setattr(Console, "ask_member", ask)
    async with asked(run, tmp_path, monkeypatch, ((0, 1), (0, 1))) as (_, ask_cli):
        ran = await ask_cli("verify", "demo")
        keys = sorted(key_in(1, PARTITIONS, number) for number in range(5))
        first, last = f"default/{keys[2].decode()}", f"default/{keys[4].decode()}"
        told = f"partition 1: m1 differs from its owner m0 in 3 entries, from {first} to {last}"
        assert (ran.code, ran.out.splitlines()[0]) == (1, told)
        assert ran.out.endswith(": 1 replicas differ\n")
        assert "2 of 2 partitions" in ran.err


async def test_what_cannot_be_compared_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(run, tmp_path, monkeypatch, ((0, 1), ())) as (made, ask):
        ran = await ask("verify", "demo", "-p", "7")
        assert (ran.code, "there is no partition 7 in demo; the last one is 1" in ran.err) == (2, True)
        await made.members[1].kill()
        ran = await ask("verify", "demo")
        assert ran.code == 3
        assert "not compared: partition 0: " in ran.err
        assert "not compared: partition 1 has no owner" in ran.err


async def test_the_member_says_the_same_of_the_same_entries(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=2) as made:
        for number in range(4):
            assert await Client(made).set(0, key_in(0, 2, number), b"v%d" % number)

        async def checksum(member: int, query: str = "") -> TabletChecksum:
            place = made.members[member]
            url = f"http://{place.host}:{place.ports[2]}/v1/checksum?partition=0&now_ms=1{query}"
            async with made.http.get(url) as answer:
                assert answer.status == 200, await answer.text()
                return msgspec.json.decode(await answer.read(), type=TabletChecksum)

        whole = await checksum(0, "&entries=1")
        assert (whole.entries, whole.more, len(whole.items)) == (4, False, 4)
        await eventually(lambda: checksum(1, "&entries=1"), lambda found: found == whole)
        second = whole.items[1][0]
        parts = [await checksum(0, f"&until={second}"), await checksum(0, f"&after={second}")]
        assert [each.entries for each in parts] == [2, 2]
        assert sum(int(each.checksum, 16) for each in parts) % (1 << 128) == int(whole.checksum, 16)
        place = made.members[0]
        for wrong in ("after=%ff", "after=x", "until=" + "A" * 120_000, "now_ms=-1", "now_ms=x"):
            url = f"http://{place.host}:{place.ports[2]}/v1/checksum?partition=0&{wrong}"
            async with made.http.get(url) as answer:
                assert answer.status == 400, wrong


def answer(applied: int, items: dict[str, str], end: str = "", more: bool = False) -> TabletChecksum:
    pairs = tuple(sorted(items.items()))
    return TabletChecksum(0, 1, OpId(1, applied), end, more, len(items), 9, repr(pairs), pairs)


class Sides:
    """An owner and a replica; each question moves the clock on, and sides say what they hold then."""

    def __init__(
        self, owner: Callable[[int], TabletChecksum], replica: Callable[[int], TabletChecksum]
    ) -> None:
        self._sides, self._now = {"o": owner, "r": replica}, 0

    async def ask(self, member: str, query: dict[str, str]) -> TabletChecksum:
        self._now += 1
        return self._sides[member](self._now)

    async def compared(self) -> Found:
        return await compare(self.ask, "o", "r", Stretch(None, None), self._sides["o"](0))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(comparison, "LAG_POLL_SECONDS", 0.0)


DIFFERENT: dict[str, dict[str, str]] = {
    "another value": {"YQ==": "2", "Yg==": "1"},
    "one is missing": {"Yg==": "1"},
    "one too many": {"YQ==": "1", "Yg==": "1", "Yw==": "1"},
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("writes", [0, 1])
async def test_a_replica_that_differs_is_found(what: str, writes: int) -> None:
    """Also while another entry is written at every moment."""

    def owner(now: int) -> TabletChecksum:
        return answer(now * writes, {"YQ==": "1", "Yg==": "1", "ZQ==": str(now * writes)})

    def replica(now: int) -> TabletChecksum:
        return answer(now * writes, DIFFERENT[what] | {"ZQ==": str(now * writes)})

    found = await Sides(owner, replica).compared()
    assert (found.different, found.busy) == (["Yw==" if what == "one too many" else "YQ=="], writes)


async def test_writes_and_lag_are_no_difference() -> None:
    """The replica is two behind, and every entry changes at each moment."""

    def at(now: int) -> TabletChecksum:
        return answer(now, {"YQ==": str(now), "Yg==": str(now // 2)})

    found = await Sides(at, lambda now: at(now - 2)).compared()
    assert found.different == []


async def test_an_entry_that_comes_and_goes_is_no_difference() -> None:
    """The owner has it never when it is asked, and the replica often."""

    def owner(now: int) -> TabletChecksum:
        return answer(now, {})

    def replica(now: int) -> TabletChecksum:
        return answer(now, {"YQ==": "1"} if now % 5 else {})

    found = await Sides(owner, replica).compared()
    assert found.different == []


async def test_a_replica_that_stays_behind_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "LAG_SECONDS_MAX", 0.05)
    with pytest.raises(Unavailable, match="r has applied operation 1 of partition 0, and not 5"):
        await Sides(lambda _: answer(5, {"YQ==": "1"}), lambda _: answer(1, {})).compared()


async def test_names_beyond_the_end_of_an_answer_do_not_count() -> None:
    found = await Sides(
        lambda _: answer(1, {"YQ==": "1"}, end="YQ=="),
        lambda _: answer(1, {"YQ==": "2", "Yg==": "1"}, end="YQ==", more=True),
    ).compared()
    assert found.different == ["YQ=="]


async def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(Corrupt, match="is no name of an entry"):
        await Sides(
            lambda _: answer(1, {"%": "1"}), lambda _: answer(1, {}, more=True, end="YQ==")
        ).compared()
