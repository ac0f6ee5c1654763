"""A new master compares tables by digests: in rows that are sent, not in seconds."""

from collections.abc import Callable

import pytest

from stele.core.control.commands import ExchangeReply, ExchangeRequest, Row
from stele.core.control.publication import DIFFERING_RANGES_MAX
from stele.core.table import digests
from stele.core.table.digests import partitions_of
from stele.errors import Corrupt
from tests.fakes.members import FakeMember, FakeNet
from tests.master.harness import Harness, formed

MEMBERS, RANGES = 4, 12
ROWS = 2
"""Of a range, in these tests."""


class Counting:
    """Notes the rows of each request and reply, by member."""

    def __init__(self, net: FakeNet) -> None:
        self._net, self._exchange = net, net.exchange
        self.sent: dict[str, list[Row]] = {}
        self.told: dict[str, list[Row]] = {}
        self.whole: set[str] = set()
        self.before_reply: Callable[[FakeMember, ExchangeRequest], None] = lambda member, request: None
        net.exchange = self  # type: ignore[method-assign, assignment]

    async def __call__(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        self.sent.setdefault(address, []).extend(request.rows)
        if request.full:
            self.whole.add(address)
        self.before_reply(self._net.members[address], request)
        reply = await self._exchange(address, request, deadline_seconds)
        self.told.setdefault(address, []).extend(reply.rows)
        return reply

    @property
    def rows(self) -> int:
        return sum(len(rows) for each in (self.sent, self.told) for rows in each.values())


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "RANGE_ROWS", ROWS)


async def cluster() -> Harness:
    return await formed(members=MEMBERS, partitions=RANGES * ROWS)


async def taken_over(harness: Harness) -> Counting:
    """What a new master sends and is told until it is at rest."""
    counting = Counting(harness.net)
    await harness.restart()
    await harness.until_quiet()
    return counting


def behind(harness: Harness, index: int, ranges: int) -> list[Row]:
    """Let a member lack a row of others in each of so many ranges. Returns those rows."""
    member, lost = harness.world.volumes[index], dict[int, Row]()
    for row in member.rows.values():
        if index not in row.replicas and len(lost) < ranges:
            lost.setdefault(digests.range_of(row.partition), row)
    for row in lost.values():
        del member.rows[row.partition]
    return list(lost.values())


async def test_members_with_the_very_table_neither_tell_it_nor_get_it() -> None:
    counting = await taken_over(await cluster())
    assert counting.rows == 0
    assert len(counting.told) == MEMBERS


async def test_a_member_that_is_behind_gets_the_ranges_that_differ_and_nothing_else() -> None:
    harness = await cluster()
    (lost,) = behind(harness, 1, 1)
    counting = await taken_over(harness)
    address = harness.world.pods[1].address
    whole = set(partitions_of(digests.range_of(lost.partition), RANGES * ROWS))
    assert {row.partition for row in counting.sent[address]} == whole
    assert {row.partition for row in counting.told[address]} == whole - {lost.partition}
    assert counting.rows == 2 * len(whole) - 1
    assert harness.world.volumes[1].row(lost.partition) == lost


async def test_a_member_that_differs_in_many_ranges_gets_the_whole_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stele.core.control.publication.DIFFERING_RANGES_MAX", 1)
    harness = await cluster()
    lost = behind(harness, 1, 2)
    counting = await taken_over(harness)
    assert counting.whole == {harness.world.pods[1].address}
    assert [harness.world.volumes[1].row(row.partition) for row in lost] == lost
    assert DIFFERING_RANGES_MAX > 1


async def test_an_older_build_tells_all_and_gets_all() -> None:
    harness = await cluster()
    harness.world.volumes[2].compares = False
    counting = await taken_over(harness)
    address = harness.world.pods[2].address
    assert counting.whole == {address}
    assert {row.partition for row in counting.told[address]} == set(range(RANGES * ROWS))
    assert all(not rows for other, rows in counting.sent.items() if other != address)


async def test_rows_that_an_older_copy_of_the_configmaps_lacks_are_told_and_stored() -> None:
    harness = await cluster()
    older, before = harness.stored(), harness.table().partitions
    await harness.apply(members=MEMBERS + 1)
    newer = harness.table().partitions
    await harness.restore(older)
    assert harness.table().partitions == before != newer
    harness.start_master()
    await harness.until_quiet()
    pairs = zip(harness.table().partitions, newer, strict=True)
    assert all(row.version >= known.version for row, known in pairs)
    harness.check_data()


async def test_another_row_of_the_same_version_is_told_and_stops_everything() -> None:
    harness = await cluster()
    member = harness.world.volumes[3]
    row = next(row for row in member.rows.values() if 3 not in row.replicas)
    member.rows[row.partition] = Row(row.partition, row.version, row.replicas[::-1])
    await harness.restart()
    with pytest.raises(Corrupt, match=f"partition {row.partition} version {row.version}"):
        await harness.until_quiet()


async def test_a_member_that_loses_a_row_after_the_comparison_gets_the_whole_table() -> None:
    """Its stamp is another than what was published makes."""
    harness = await cluster()
    row = next(row for row in harness.world.volumes[1].rows.values() if 1 not in row.replicas)

    def lose(member: FakeMember, request: ExchangeRequest) -> None:
        if member is harness.world.volumes[1] and not request.want_tablets and harness.state.recovered:
            counting.before_reply = lambda member, request: None
            del member.rows[row.partition]

    counting = Counting(harness.net)
    counting.before_reply = lose
    await harness.restart()
    await harness.apply(members=MEMBERS + 1)
    assert harness.world.pods[1].address in counting.whole
    assert harness.world.volumes[1].row(row.partition).version >= row.version
