"""`verify` while time passes: entries that expire, by whose clock, and rows that change."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.adapters.memory.engine import MemoryEngine
from stele.cli import verify
from stele.cli.options import Where
from stele.core.table.table import Member, Partition
from stele.member.admin.checksum import tablet_checksum
from stele.transfer.client.fragment_writer import EXPIRED_MARGIN_MS
from stele.wire.admin import TabletChecksum
from stele.wire.storage import keys
from tests.cli.conftest import Run

BEGIN = 1_800_000_000.0
HOUR = 3600.0
LATER = 15 * 60.0
"""Seconds after the begin at which the second partition is copied, and compared."""


class Members:
    """An owner and a replica of two partitions, as the command sees them.

    Before the second partition is asked for, LATER passes, and the replica of it becomes a copy.
    """

    def __init__(self, expires: float, *, tell_time: bool = True, copied: bool = True) -> None:
        self.now, self._tell_time, self._copied = BEGIN, tell_time, copied
        self.engines = {name: MemoryEngine() for name in ("m0", "m1")}
        self._expire_ms = int(expires * 1000)
        self.versions: Iterator[int] = iter(())
        for engine in self.engines.values():
            engine.write_data([(key(partition), self.stored(b"v")) for partition in range(2)])

    def stored(self, value: bytes) -> bytes:
        return keys.pack_value(value, self._expire_ms)

    async def cluster(self, name: str) -> None:
        """There is one."""

    async def table_head(self, cluster: str) -> Any:
        return SimpleNamespace(rows=2, members=[Member(n, f"m{n}", f"u{n}", "") for n in range(2)])

    async def table_shard(self, cluster: str, head: Any, number: int) -> tuple[Partition, ...]:
        return (Partition(1, (0, 1)), Partition(next(self.versions, 9), (0, 1)))

    async def ask_member(self, method: str, member: str, path: str, form: Any, **query: str) -> Any:
        partition = int(query["partition"])
        if partition == 1 and self.now < BEGIN + LATER:
            self.now += LATER
            self._copy()
        if not self._tell_time:
            query.setdefault("now_ms", "0")
        node: Any = SimpleNamespace(
            engine=self.engines[member], background=SimpleNamespace(wall=lambda: self.now)
        )
        replica: Any = SimpleNamespace(partition=partition, generation=1)
        answer = tablet_checksum(node, replica, query)
        return answer if self._tell_time else msgspec.structs.replace(answer, now_ms=0)

    def _copy(self) -> None:
        if self._copied and self._expire_ms <= self.now * 1000 - EXPIRED_MARGIN_MS:
            self.engines["m1"].write_data([(key(1), None)])


def key(partition: int) -> bytes:
    return keys.user_key(partition, 1, b"default", b"k")


def verified(monkeypatch: pytest.MonkeyPatch, run: Run, members: Members, clock: float) -> dict[str, Any]:
    """What the command says on a machine whose clock is ahead by so many seconds."""

    def ask(_: Where, question: Callable[[Any], Awaitable[Any]]) -> Any:
        return asyncio.run(asked(question))

    async def asked(question: Callable[[Any], Awaitable[Any]]) -> Any:
        return await question(members)

    monkeypatch.setattr(Where, "ask", ask)
    monkeypatch.setattr(verify, "time", SimpleNamespace(time=lambda: members.now + clock))
    monkeypatch.setattr("stele.cli.comparison.ROUND_SECONDS", 0.0)
    monkeypatch.setattr(verify, "TRY_SECONDS", 0.0)
    found: dict[str, Any] = json.loads(run("verify", "demo", "-o", "json").out)
    return found


@pytest.mark.parametrize(
    ("tell_time", "clock"), [(True, 0.0), (True, -HOUR), (True, HOUR), (False, 0.0), (False, HOUR)]
)
def test_what_a_later_copy_left_out_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, run: Run, tell_time: bool, clock: float
) -> None:
    """It expires 4 minutes after the command began. Members of older releases do not tell their time."""
    members = Members(BEGIN + 4 * 60, tell_time=tell_time)
    found = verified(monkeypatch, run, members, clock)
    assert (found["partitions"], found["differences"], found["skipped"]) == (2, [], [])
    assert members.engines["m1"].get(key(1)) is None, "it was not left out"


@pytest.mark.parametrize("clock", [0.0, HOUR])
def test_a_fast_clock_of_the_machine_hides_no_difference(
    monkeypatch: pytest.MonkeyPatch, run: Run, clock: float
) -> None:
    members = Members(BEGIN + HOUR / 2, copied=False)
    members.engines["m1"].write_data([(key(1), members.stored(b"other"))])
    found = verified(monkeypatch, run, members, clock)
    assert [each["partition"] for each in found["differences"]] == [1]
    assert found["differences"][0]["first"] == "default/k"


async def test_an_answer_says_its_time_also_when_it_was_asked_for_one() -> None:
    members = Members(BEGIN + 60)

    async def asked(**query: str) -> TabletChecksum:
        answer = await members.ask_member("GET", "m0", "", None, partition="0", **query)
        assert isinstance(answer, TabletChecksum)
        return answer

    own, later = await asked(), await asked(now_ms=str(int(BEGIN + 61) * 1000))
    assert (own.now_ms, own.entries) == (int(BEGIN) * 1000, 1)
    assert (later.now_ms, later.entries) == (int(BEGIN + 61) * 1000, 0)
    everything = await asked(now_ms="0")
    assert (everything.now_ms, everything.entries) == (0, 1)


@pytest.mark.parametrize(
    ("versions", "differ", "skipped"),
    [
        ([9, 9], 1, []),
        ([8, 9, 9], 1, []),
        ([6, 7, 8, 9], 0, ["partition 1: its row changed 3 times meanwhile"]),
    ],
)
def test_what_differs_counts_when_the_row_stayed(
    monkeypatch: pytest.MonkeyPatch, run: Run, versions: list[int], differ: int, skipped: list[str]
) -> None:
    """Each of the versions is what one read of the row finds."""
    members = Members(BEGIN + HOUR, copied=False)
    members.engines["m1"].write_data([(key(1), members.stored(b"other"))])
    members.versions = iter(versions)
    found = verified(monkeypatch, run, members, 0.0)
    assert (len(found["differences"]), found["skipped"]) == (differ, skipped)
    assert next(members.versions, None) is None, "a read is missing"


def test_what_differed_under_an_earlier_row_does_not_count(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    members = Members(BEGIN + HOUR, copied=False)
    engine = members.engines["m1"]
    engine.write_data([(key(1), members.stored(b"other"))])

    def versions() -> Iterator[int]:
        yield 8
        engine.write_data([(key(1), members.stored(b"v"))])
        yield 9

    members.versions = versions()
    found = verified(monkeypatch, run, members, 0.0)
    assert (found["partitions"], found["differences"], found["skipped"]) == (2, [], [])
