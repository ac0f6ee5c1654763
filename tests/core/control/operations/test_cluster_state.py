"""A change of the cluster state in a cluster; its steps are in `tests/golden/cluster-state`."""

import itertools

import pytest

from stele.core.control.commands import ExchangeReply, ExchangeRequest, Result, StartTabletCopy
from stele.core.control.operations.cluster_state import (
    TRANSITIONS,
    StateChange,
    Step,
)
from stele.errors import Refused, Unavailable
from tests.master.harness import Harness


@pytest.mark.parametrize(
    ("start", "to"), [(a, b) for a, b in itertools.product(Step, Step) if b not in TRANSITIONS[a]]
)
def test_other_steps_are_refused(start: Step, to: Step) -> None:
    change = StateChange(step=start)
    with pytest.raises(Refused, match=f"{start.value} does not lead to {to.value}"):
        change.enter(to)
    assert change.step is start


async def moving() -> Harness:
    harness = Harness(members=3, partitions=12, parallel_per_member=1)
    await harness.until_quiet()
    harness.change_spec(members=4)
    while not any(volume.learners for volume in harness.world.volumes.values()):
        await harness.tick()
    return harness


@pytest.mark.parametrize("state", ["NoMigration", "Frozen", "Passive"])
async def test_migrations_under_way_end_before_the_state_is_in_force_and_none_begins(state: str) -> None:
    harness = await moving()
    assert harness.loop.state is not None
    under_way = {running.id for running in harness.loop.state.operations.migrations.values()}
    assert len(harness.loop.state.rebalance.queues)
    before = {id for volume in harness.world.volumes.values() for id in volume.events.begun}
    harness.change_spec(state=state)
    await harness.tick()
    assert harness.head().state == "Active"
    assert "under way" in harness.loop.state.operations.change.reason
    await harness.until_quiet()
    assert harness.head().state == state
    assert {each.state for each in harness.world.volumes.values()} == {state}
    later = {id for volume in harness.world.volumes.values() for id in volume.events.begun}
    assert later <= before | under_way
    assert before <= later
    rows = harness.table().partitions
    harness.change_spec(members=5)
    await harness.until_quiet()
    assert harness.table().partitions == rows


async def test_a_copy_that_a_slow_member_has_not_begun_does_not_begin_once_it_is_forbidden() -> None:
    harness = Harness(members=3, partitions=12, parallel_per_member=1)
    await harness.until_quiet()
    exchange, refused = harness.net.exchange, list[ExchangeRequest]()

    async def lose_starts(address: str, request: ExchangeRequest, seconds: float) -> ExchangeReply:
        if any(isinstance(each, StartTabletCopy) for each in request.commands):
            refused.append(request)
            raise Unavailable(f"{address} is slow")
        return await exchange(address, request, seconds)

    harness.net.exchange = lose_starts  # type: ignore[method-assign]
    harness.change_spec(members=4)
    while not refused:
        await harness.tick()
    harness.change_spec(state="NoMigration")
    await harness.tick()
    harness.net.exchange = exchange  # type: ignore[method-assign]
    await harness.until_quiet()
    assert harness.head().state == "NoMigration"
    assert not any(volume.events.begun for volume in harness.world.volumes.values())
    await harness.apply(state="Active")
    assert any(volume.events.begun for volume in harness.world.volumes.values())


@pytest.mark.parametrize("rollback", [True, False])
async def test_a_change_waits_for_copies_or_rolls_them_back(rollback: bool) -> None:
    """A copy that never ends keeps the state from being in force, unless a user does not wait for it."""
    harness = Harness(members=3, partitions=12, parallel_per_member=1)
    await harness.until_quiet()
    before = harness.table().partitions
    for volume in harness.world.volumes.values():
        volume._probe = lambda: None  # type: ignore[method-assign]
    harness.change_spec(members=4)
    await harness.until(lambda: any(volume.learners for volume in harness.world.volumes.values()))
    harness.change_spec(state="Frozen", rollback_copies=rollback)
    await harness.ticks(20, 0.2)
    assert harness.head().state == ("Frozen" if rollback else "Active")
    assert bool(harness.state.operations.migrations) is not rollback
    if rollback:
        assert harness.table().partitions == before
        assert not any(volume.learners for volume in harness.world.volumes.values())


async def test_a_member_that_refuses_leaves_the_cluster_as_it_was() -> None:
    harness = Harness(members=3, partitions=3)
    await harness.until_quiet()
    refusing = harness.world.volumes[1]
    refusing._LockState = lambda c: Result("MIGRATION_ACTIVE", "m9-9 is not over here")  # type: ignore[method-assign]
    harness.change_spec(state="Passive")
    for _ in range(7):
        await harness.tick(1.0)
    assert harness.head().state == "Active"
    told = [each.message for each in harness.world.events if each.reason == "ClusterStateRefused"]
    assert "m9-9 is not over here" in told[0]
    del refusing._LockState
    for _ in range(4):
        await harness.tick(1.0)
    await harness.until_quiet()
    assert harness.head().state == "Passive"


async def test_a_member_that_is_lost_is_told_when_it_returns() -> None:
    harness = Harness(members=3, partitions=3)
    await harness.until_quiet()
    harness.kill(2)
    harness.change_spec(state="Frozen")
    await harness.until_quiet()
    assert harness.head().state == "Frozen"
    harness.revive(2)
    await harness.until_quiet()
    assert harness.world.volumes[2].state == "Frozen"


@pytest.mark.parametrize(("state", "joins"), [("NoMigration", True), ("Frozen", False), ("Passive", False)])
async def test_who_may_join(state: str, joins: bool) -> None:
    harness = Harness(members=3, partitions=3)
    await harness.until_quiet()
    harness.change_spec(state=state)
    await harness.until_quiet()
    harness.world.members[3] = True
    harness.world.start_pod(3)
    harness.change_spec(members=4)
    await harness.until_quiet()
    assert (3 in harness.table().members) is joins
    refusals = [each for each in harness.world.events if each.reason == "JoinRefused"]
    assert len(refusals) == (0 if joins else 1)
    assert harness.loop.state is not None
    assert joins or state in harness.loop.state.membership.liveness[3].problem
