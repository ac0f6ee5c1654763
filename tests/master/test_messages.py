"""Who is asked how often while something is under way: in messages, not in seconds."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from stele.core.control.answers import _take_answer
from stele.core.control.commands import Abort, ExchangeReply, ExchangeRequest, Row
from stele.core.control.publication import lacks_rows, must_hear, waited_for
from stele.core.control.state import Answer, TableCursor
from stele.core.kv.keyspaces import NO_CATALOG
from stele.core.table.table import Partition
from stele.master.loop import Pace
from tests.fakes.members import FakeMember
from tests.master.harness import Harness, formed

MEMBERS = 8
TICKS, SECONDS = 40, 0.05
HEARTBEATS = 5
"""In so many ticks: one for each half of `heartbeatSeconds`."""


async def asked(harness: Harness) -> Counter[int]:
    """How often each member is asked in TICKS."""
    found: Counter[int] = Counter()
    exchange, places = harness.net.exchange, {pod.address: i for i, pod in harness.world.pods.items()}

    async def counting(address: str, request: ExchangeRequest, deadline_seconds: float) -> ExchangeReply:
        found[places[address]] += 1
        return await exchange(address, request, deadline_seconds)

    harness.net.exchange = counting  # type: ignore[method-assign]
    await harness.ticks(TICKS, SECONDS)
    harness.net.exchange = exchange  # type: ignore[method-assign]
    return found


async def migrating(monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Migrations that are under way, and do not get on."""
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    monkeypatch.setattr(FakeMember, "_probe", lambda self: None)
    harness.change_spec(members=MEMBERS + 1)
    await harness.until(lambda: harness.state.operations.migrations)
    await harness.ticks(TICKS, SECONDS)
    return harness


async def test_only_members_that_take_part_are_asked_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await migrating(monkeypatch)
    migrations = harness.state.operations.migrations.values()
    part = frozenset[int]().union(*(each.participants | each.base.members for each in migrations))
    others = harness.state.membership.liveness.keys() - part
    assert others
    assert part <= waited_for(harness.state)
    found = await asked(harness)
    assert all(found[index] >= TICKS - 1 for index in part)
    assert all(found[index] <= HEARTBEATS for index in others)


@pytest.mark.parametrize(
    ("migrations", "quiet", "round_seconds", "answer_seconds", "pause"),
    [
        (0, 0.0, 0.0, 0.0, 0.005),
        (1, 0.0, 0.0, 0.0, 0.005),
        (3, 0.0, 0.0, 0.0, 0.015),
        (20, 0.0, 0.0, 0.0, 0.03),
        (1, 0.0, 0.004, 0.0, 0.016),
        (1, 0.0, 0.004, 0.006, 0.024),
        (1, 0.08, 0.0, 0.001, 0.02),
        (1, 0.0, 0.0, 0.5, 0.03),
        (1, 60.0, 0.0, 0.0, 0.03),
    ],
)
async def test_few_migrations_are_asked_about_as_soon_as_answers_are_quick(
    migrations: int, quiet: float, round_seconds: float, answer_seconds: float, pause: float
) -> None:
    """And as soon as something was commanded or stored; never more often than every 30 ms for long."""
    harness = await formed()
    loop = harness.loop
    harness.state.operations.migrations = dict.fromkeys(range(migrations))  # type: ignore[assignment]
    loop._pace, loop._round_seconds, loop._acted_seconds = Pace(), round_seconds, harness.clock - quiet
    assert loop._busy_pause(answer_seconds) == pytest.approx(pause)


async def test_what_takes_long_is_asked_for_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrations that do not get on: members that take part are asked at first in each round, later not."""
    harness = await migrating(monkeypatch)
    part = waited_for(harness.state)
    monkeypatch.setattr(harness.loop, "_pace", Pace(busy_min=0.0, busy=10 * SECONDS))
    harness.loop._acted_seconds = harness.clock
    first = await asked(harness)
    second = await asked(harness)
    assert all(first[index] > second[index] for index in part), (first, second)
    assert all(second[index] <= TICKS / 10 + 1 for index in part), second


async def test_rows_of_others_wait_for_their_pace_while_something_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They arrive with a heartbeat at the latest, and at once when nothing moves."""
    harness = await migrating(monkeypatch)
    waited = waited_for(harness.state)
    other = next(index for index in harness.state.membership.liveness if index not in waited)
    number = next(n for n, row in enumerate(harness.state.table.partitions) if other not in row.members)
    monkeypatch.setattr(harness.loop, "_pace", Pace(busy=0.0, gather_member=1.0))
    row = harness.state.table.partitions[number]
    await harness.loop._store.write_shard(0, _with(harness, number, Partition(row.version + 9, row.replicas)))
    harness.state.apply({number: Partition(row.version + 9, row.replicas)})
    liveness = harness.state.membership.liveness[other]
    assert lacks_rows(harness.state, liveness)
    found = await asked(harness)
    assert found[other] <= HEARTBEATS + 1
    assert harness.world.volumes[other].row(number) == Row(number, row.version + 9, row.replicas)


async def test_a_member_that_leaves_is_waited_for() -> None:
    """It ends soon after its last row is gone, and hears of that before."""
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    harness.state.membership.set_leaving(frozenset({2}))
    assert waited_for(harness.state) == {2}


async def test_a_member_that_stops_is_waited_for_with_those_of_its_rows() -> None:
    """It may stop once none of them is behind the table."""
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    harness.state.stops.since[2] = harness.clock
    table = harness.state.table
    rows = [table.partitions[number] for number in table.replica_index.of(2)]
    assert waited_for(harness.state) == {2}.union(*(row.members for row in rows)) != {2}


async def test_a_change_of_the_state_that_has_ended_waits_for_nobody() -> None:
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    for state in ("Passive", "Active"):
        harness.change_spec(state=state)
        await harness.until(lambda state=state: harness.state.operations.change.state == state)
    await harness.until_quiet()
    assert waited_for(harness.state) == frozenset()


def _with(harness: Harness, number: int, row: Partition) -> list[Partition]:
    rows = list(harness.state.table.partitions)
    rows[number] = row
    return rows


async def test_at_rest_nobody_is_waited_for_and_nothing_is_lacked() -> None:
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    assert waited_for(harness.state) == frozenset()
    for liveness in harness.state.membership.liveness.values():
        assert not lacks_rows(harness.state, liveness)
        assert not must_hear(harness.state, liveness, NO_CATALOG)
    found = await asked(harness)
    assert all(number <= HEARTBEATS for number in found.values())


async def test_members_that_do_not_answer_or_have_not_yet_are_waited_for() -> None:
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    harness.cut(3)
    await harness.until(lambda: harness.state.membership.liveness[3].lost_seconds is not None)
    assert 3 in waited_for(harness.state)
    harness.net.cut.clear()
    await harness.restart()
    await harness.until(lambda: harness.loop.state is not None)
    if not harness.state.recovered:
        reported = {i for i, each in harness.state.membership.liveness.items() if each.report is not None}
        assert waited_for(harness.state) == harness.state.membership.liveness.keys() - reported


async def test_who_has_to_show_what_it_has_of_a_changed_row_is_waited_for_with_its_others() -> None:
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    state = harness.state
    row = state.table.partitions[0]
    state.apply({0: Partition(row.version + 1, row.replicas)})
    assert waited_for(state) == row.members


@dataclass
class Asked:
    """A channel to a member that has not answered yet."""

    answered: bool = False
    free: bool = False


async def sleeping(monkeypatch: pytest.MonkeyPatch, *, busy: bool) -> tuple[Harness, list[Asked], Any]:
    """A loop that waits for the answers of two members, of which the first has come."""
    harness, asked = Harness(), [Asked(), Asked()]
    monkeypatch.setattr(harness.loop, "_pace", Pace(gather=0.3))
    monkeypatch.setattr(harness.loop, "_channels", dict(enumerate(asked)))
    waits = asyncio.create_task(harness.loop._sleep(5.0, busy=busy))
    await asyncio.sleep(0)
    asked[0].answered = True
    harness.loop.wake()
    await asyncio.sleep(0.02)
    assert not waits.done(), "another answer is due"
    return harness, asked, waits


async def test_a_round_begins_when_the_last_answer_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, asked, waits = await sleeping(monkeypatch, busy=True)
    asked[1].answered = True
    harness.loop.wake()
    await asyncio.sleep(0.02)
    assert waits.done()


async def test_a_round_begins_without_an_answer_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked, waits = await sleeping(monkeypatch, busy=True)
    await asyncio.wait_for(waits, 5.0)
    assert not asked[1].answered


async def test_at_rest_answers_are_gathered_though_none_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members answer one by one then, and each would be a round."""
    harness, asked, waits = await sleeping(monkeypatch, busy=False)
    asked[1].answered = True
    harness.loop.wake()
    await asyncio.sleep(0.02)
    assert not waits.done()
    await asyncio.wait_for(waits, 5.0)


async def test_a_reply_before_rows_are_adopted_keeps_the_member_and_owes_it_the_rows() -> None:
    harness = await formed(members=MEMBERS, partitions=MEMBERS)
    liveness = harness.state.membership.liveness[0]
    published, answered = liveness.published, liveness.answered_seconds
    assert liveness.report is not None
    report = msgspec.structs.replace(liveness.report, stamp=7, results=(), adopting=True)
    cursor = TableCursor(published + 1, 8, False)
    answer = Answer(0, answered + 1.0, (Abort("m1", 0),), cursor, report)
    _take_answer(harness.state, answer, harness.clock)
    assert liveness.answered_seconds == answered + 1.0
    assert liveness.published == published, "neither is it known to have them, nor to lack the whole table"
