"""Who is asked how often while something is under way: in messages, not in seconds."""

from collections import Counter

import pytest

from stele.core.control.commands import ExchangeReply, ExchangeRequest, Row
from stele.core.control.publication import lacks_rows, must_hear, waited_for
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
