"""What a master hears of a member that is busy writing what it was told."""

import asyncio
from typing import Any

import msgspec
import pytest

from stele.core.control import commands as m
from stele.core.table.table import Partition
from stele.errors import Corrupt
from stele.member import limits
from stele.member.control import dispatch
from stele.member.control.parts import in_parts
from tests.member.harness.single_member import CLUSTER, ME, OTHER, THIRD, P, SingleMember


class Disk:
    """Writes of the member's files wait while it is `slow`."""

    def __init__(self, made: SingleMember, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.waiting = 0
        writer = made.node.metadata._writer
        save = writer.save

        async def slow(name: str, value: Any) -> None:
            self.waiting += 1
            await self.ready.wait()
            self.waiting -= 1
            await save(name, value)

        monkeypatch.setattr(writer, "save", slow)


@pytest.fixture
def disk(made: SingleMember, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(limits, "ADOPTION_SECONDS_MAX", 0.05)
    monkeypatch.setattr(dispatch, "SAVED_PATIENCE_SECONDS", 0.05)
    return Disk(made, monkeypatch)


NEXT = m.Row(P, 2, (THIRD, OTHER))
FENCE = m.Fence(P, 3, owner_dead=False)


async def test_a_long_adoption_goes_on_while_the_member_says_that_it_lives(
    made: SingleMember, disk: Disk
) -> None:
    before = (await made.ask()).stamp
    disk.ready.clear()
    first = await made.ask(rows=(NEXT,), patient=False)
    assert (first.adopting, first.stamp) == (True, before), "the row is not on the volume"
    second = await made.ask(FENCE, rows=(NEXT,), patient=False)
    assert (second.adopting, second.results) == (True, ()), "nothing is run before it"
    assert made.replica.tablet.promised < FENCE.term
    disk.ready.set()
    third = await made.ask(FENCE, rows=(NEXT,))
    assert len(third.results) == 1
    assert third.stamp != before
    assert made.node.rows[P].version == NEXT.version


async def test_what_is_adopted_meanwhile_is_adopted_once_in_order(made: SingleMember, disk: Disk) -> None:
    disk.ready.clear()
    assert (await made.ask(rows=(NEXT,), patient=False)).adopting
    later = m.Row(P, 3, (OTHER, THIRD))
    assert (await made.ask(rows=(later,), patient=False)).adopting
    disk.ready.set()
    await made.ask(rows=(later,))
    assert (made.node.rows[P].version, disk.waiting) == (3, 0)


async def test_a_master_that_takes_over_hears_nothing_before_the_end(made: SingleMember, disk: Disk) -> None:
    """It has to know every row that this member agreed to."""
    disk.ready.clear()
    assert (await made.ask(rows=(NEXT,), patient=False)).adopting
    request = m.ExchangeRequest(
        format=1, cluster=CLUSTER, epoch=2, recipient="uuid-0", self_index=ME, partitions=2, want_tablets=True
    )
    asked = asyncio.create_task(made.exchange.handle(request))
    await asyncio.sleep(4 * limits.ADOPTION_SECONDS_MAX)
    assert not asked.done()
    disk.ready.set()
    reply = await asked
    assert (reply.code, reply.adopting) == ("OK", False)
    assert NEXT in reply.rows


async def test_another_master_is_refused_while_something_is_adopted(made: SingleMember, disk: Disk) -> None:
    disk.ready.clear()
    assert (await made.ask(rows=(NEXT,), patient=False)).adopting
    request = m.ExchangeRequest(
        format=1, cluster="other", epoch=2, recipient="uuid-0", self_index=ME, partitions=2
    )
    reply = await made.exchange.handle(request)
    assert reply.code == "WRONG_CLUSTER"
    disk.ready.set()
    await made.ask()


async def test_a_failed_adoption_fails_its_exchange_and_not_the_next(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing() -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(made.node.fencing, "tidy", failing)
    with pytest.raises(ValueError, match="a defect"):
        await made.ask(rows=(NEXT,), patient=False)
    monkeypatch.undo()
    assert not (await made.ask(rows=(NEXT,), patient=False)).adopting


async def test_a_fence_that_the_disk_delays_is_found_when_asked_for_again(
    made: SingleMember, disk: Disk
) -> None:
    """With thousands of them the master would otherwise hear nothing until all are written."""
    disk.ready.clear()
    assert [each.code for each in (await made.ask(FENCE)).results] == ["WAIT"]
    assert [each.code for each in (await made.ask(FENCE)).results] == ["WAIT"]
    assert disk.waiting == 1, "it was begun once"
    disk.ready.set()
    assert await made.code(FENCE) in ("OK", "WAIT")
    assert made.replica.tablet.promised == FENCE.term


def test_an_older_master_reads_the_reply() -> None:
    """It has no field for it, and takes the missing rows for lost ones: it sends the table again."""
    encoded = msgspec.json.encode(m.ExchangeReply("OK", "", "u", "c", 1, 1, 7, 1, adopting=True))
    assert b'"adopting":true' in encoded
    assert msgspec.json.decode(encoded, type=m.ExchangeReply).stamp == 7


async def test_an_owner_s_newer_row_stays_while_rows_are_adopted(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other events are handled between rows of one exchange, and an owner may send one of these rows."""
    monkeypatch.setattr(limits, "ROWS_PER_PART", 1)
    roles, adopted = made.node.roles, list[tuple[int, int]]()
    adopt = roles.adopt
    rows = [m.Row(p, made.node.rows[p].version + 1, (THIRD, OTHER)) for p in range(len(made.node.rows))]
    last = rows[-1]

    def noting(partition: int, row: Partition) -> None:
        if not adopted:
            sent = Partition(last.version + 1, (OTHER, THIRD))
            asyncio.get_running_loop().call_soon(roles.adopt_from_owner, last.partition, sent)
        adopted.append((partition, row.version))
        adopt(partition, row)

    monkeypatch.setattr(roles, "adopt", noting)
    await made.ask(rows=tuple(rows))
    assert adopted == [(rows[0].partition, rows[0].version), (last.partition, last.version + 1)]
    assert made.node.rows[last.partition] == Partition(last.version + 1, (OTHER, THIRD))


async def test_a_few_items_are_one_part_and_others_wait_for_none_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ROWS_PER_PART", 3)
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count)

    loop = asyncio.get_running_loop()
    loop.call_soon(count)
    assert [part async for part in in_parts([1, 2, 3])] == [[1, 2, 3]]
    assert [part async for part in in_parts([])] == []
    assert turns == 0
    assert [(part, turns) async for part in in_parts(range(7))] == [
        (range(3), 0),
        (range(3, 6), 1),
        (range(6, 7), 2),
    ]


ROWS = tuple(m.Row(p, 2, (THIRD, OTHER)) for p in (P, 1))


async def test_promises_are_forgotten_for_rows_on_disk(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that an owner sends meanwhile is only in memory: what was agreed to is not to be lost with it."""
    monkeypatch.setattr(limits, "ROWS_PER_PART", 1)
    node, sent = made.node, m.Row(1, 2, (THIRD, ME))
    first, last = (node.tablets.replica_of(p) for p in (P, 1))
    last.meta = msgspec.structs.replace(last.meta, accepted=sent)
    node.metadata.overtaken |= {P, 1}
    tidy = node.fencing._tidy

    async def tidy_and_hear(partition: int, row: Partition) -> None:
        await tidy(partition, row)
        if partition == first.partition:
            node.roles.adopt_from_owner(sent.partition, Partition(sent.version, sent.replicas))

    monkeypatch.setattr(node.fencing, "_tidy", tidy_and_hear)
    await node.fencing.tidy()
    assert node.rows[1].version == sent.version
    assert last.meta.accepted == sent
    await node.fencing.tidy()
    assert last.meta.accepted is None


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Corrupt("a row is impossible")])
async def test_a_part_that_fails_is_adopted_again(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(limits, "ROWS_PER_PART", 1)
    node, errors = made.node, [error]
    node.tablets.replica_of(1)
    tidy, adopt = node.fencing._tidy, node.roles.adopt

    async def tidy_or_fail(partition: int, row: Partition) -> None:
        if partition == 1 and errors:
            raise errors.pop()
        await tidy(partition, row)

    def adopt_or_fail(partition: int, row: Partition) -> None:
        if partition == 1 and errors:
            raise errors.pop()
        adopt(partition, row)

    if isinstance(error, OSError):
        monkeypatch.setattr(node.fencing, "_tidy", tidy_or_fail)
    else:
        monkeypatch.setattr(node.roles, "adopt", adopt_or_fail)
    with pytest.raises(AssertionError, match=r"NO_SPACE|BAD_REQUEST"):
        await made.ask(rows=ROWS)
    assert (1 in node.metadata.overtaken) == isinstance(error, OSError)
    before = (await made.ask()).published_stamp
    reply = await made.ask(rows=ROWS)
    assert reply.published_stamp == reply.stamp
    assert (reply.stamp == before) == isinstance(error, OSError), (
        "rows are adopted before promises are tidied"
    )
    assert [row.version for row in node.rows] == [2, 2]
    assert not node.metadata.overtaken


async def test_tablets_are_created_in_parts(made: SingleMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all at once the event loop would only collect their writes, for longer than a lease if many."""
    created = list[str]()
    exchange = made.exchange

    async def create(row: m.Row) -> None:
        created.append(f"begin {row.partition}")
        await asyncio.sleep(0.01)
        created.append(f"end {row.partition}")

    monkeypatch.setattr(exchange, "_create", create)
    mine = [m.Row(p, 2, (ME, OTHER)) for p in (P, 1)]
    await exchange._create_tablets(mine)
    assert created == ["begin 0", "begin 1", "end 0", "end 1"]
    created.clear()
    monkeypatch.setattr(limits, "ROWS_PER_PART", 1)
    await exchange._create_tablets(mine)
    assert created == ["begin 0", "end 0", "begin 1", "end 1"]


async def test_rows_are_compared_in_parts(made: SingleMember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROWS_PER_PART", 1)
    table, looked = made.node.tablets.table, list[int]()
    newer = table.newer
    monkeypatch.setattr(table, "newer", lambda rows: looked.append(len(rows)) or newer(rows))
    await made.ask(rows=ROWS)
    assert looked == [1, 1, 1, 1]
