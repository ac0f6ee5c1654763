"""Members that lack the whole table get it a few at a time, and share its rows."""

import pytest
from msgspec.structs import replace

from stele.core.control.commands import DeleteTablet, ExchangeReply, ExchangeRequest
from stele.core.control.publication import exchange_request, note_published
from stele.core.control.state import TableCursor
from stele.master.loop import WHOLE_TABLES_MAX
from tests.fakes.members import FakeNet
from tests.master.harness import Harness, formed

MEMBERS = 2 * WHOLE_TABLES_MAX + 1


class Counting:
    """Notes the whole tables in the requests of each turn: they are under way together."""

    def __init__(self, net: FakeNet) -> None:
        self._exchange = net.exchange
        self.rows: list[list[tuple[object, ...]]] = [[]]
        net.exchange = self  # type: ignore[method-assign, assignment]

    async def __call__(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        if request.full:
            self.rows[-1].append(request.rows)
        return await self._exchange(address, request, deadline_seconds)


async def taken_over() -> tuple[Harness, Counting]:
    """A new master of many members of an older build, each of which it sends the whole table."""
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    for member in harness.world.volumes.values():
        member.compares = False
    counting = Counting(harness.net)
    harness.start_master()
    while sum(map(len, counting.rows)) < MEMBERS:
        counting.rows.append([])
        await harness.tick()
        assert len(counting.rows) < 100
    return harness, counting


async def test_few_whole_tables_are_under_way_at_once() -> None:
    _, counting = await taken_over()
    assert max(map(len, counting.rows)) == WHOLE_TABLES_MAX


async def test_members_without_a_table_of_this_master_share_the_rows() -> None:
    _, counting = await taken_over()
    same = next(rows for rows in counting.rows if len(rows) == WHOLE_TABLES_MAX)
    assert all(each is same[0] for each in same)


async def test_a_member_that_is_ahead_by_rows_of_other_members_has_what_it_was_sent() -> None:
    harness = await formed(members=3, partitions=6)
    liveness = harness.state.membership.liveness[1]
    cursor = TableCursor(harness.state.table.changes, harness.state.table.stamp.value)
    report = replace(liveness.report, stamp=cursor.stamp + 1)
    note_published(liveness, cursor, replace(report, published_stamp=cursor.stamp))
    assert liveness.published == cursor.number
    for lacks in (None, cursor.stamp + 1):
        note_published(liveness, cursor, replace(report, published_stamp=lacks))
        assert liveness.published == 0


@pytest.mark.parametrize("may_send_table", [True, False])
async def test_who_has_to_wait_for_the_table_is_asked_for_a_report_alone(may_send_table: bool) -> None:
    harness = await formed(members=3, partitions=6)
    state = harness.state
    state.membership.liveness[1].note_published(0)
    commands = (DeleteTablet(3, 1),)
    request, cursor = exchange_request(
        state, 1, commands, cluster="c", replicas=2, may_send_table=may_send_table
    )
    assert request.recipient == state.table.members[1].uuid
    assert (request.full, bool(request.members), bool(request.commands)) == (may_send_table,) * 3
    assert len(request.rows) == (6 if may_send_table else 0)
    assert (cursor is not None) == may_send_table


async def test_who_has_the_table_gets_changes_whatever_others_lack() -> None:
    harness = await formed(members=3, partitions=6)
    state = harness.state
    known = state.table.changes
    state.table.store({3: state.table.partitions[3]})
    assert state.table.rows_since(known) == (known, ())
    request, cursor = exchange_request(state, 1, (), cluster="c", replicas=2, may_send_table=False)
    assert not request.full
    assert cursor is not None
