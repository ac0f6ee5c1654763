"""Frozen and Passive: the table stays as it is while members go and come back."""

import pytest

from stele.core.control.failure_detector import NodeState
from stele.master.conditions import _available
from stele.master.view import partition_counts
from tests.master.harness import Harness, formed
from tests.master.test_statuses import NOON, View

STATES = pytest.mark.parametrize("state", ["Frozen", "Passive"])


async def in_state(state: str, members: int = 3, **desired: object) -> Harness:
    harness = await formed(members=members, partitions=12, **desired)
    await harness.apply(state=state)
    return harness


async def seconds(harness: Harness, number: int) -> None:
    await harness.ticks(number, 1.0)


@STATES
@pytest.mark.parametrize("together", [True, False])
async def test_all_members_restart_and_the_table_is_as_it_was(state: str, together: bool) -> None:
    """One after the other or all at once, for longer than the grace period."""
    harness = await in_state(state)
    before = harness.table()
    for batch in [(0, 1, 2)] if together else [(0,), (1,), (2,)]:
        for index in batch:
            harness.kill(index)
        await seconds(harness, 40)
        for index in batch:
            harness.revive(index)
        await harness.until_quiet()
    assert harness.table().partitions == before.partitions
    assert not harness.state.failover.lost
    await harness.apply(state="Active")
    assert harness.table().partitions == before.partitions
    harness.check_data()


@STATES
async def test_a_new_master_keeps_the_rows_too(state: str) -> None:
    harness = await in_state(state)
    before = harness.table().partitions
    harness.kill(1)
    await harness.restart()
    await seconds(harness, 40)
    harness.revive(1)
    await harness.until_quiet()
    # Versions grow: the former master may have asked the silent member for a row that is not stored.
    assert [row.replicas for row in harness.table().partitions] == [row.replicas for row in before]


@STATES
async def test_silent_members_leave_their_rows_once_another_state_is_in_force(state: str) -> None:
    harness = await in_state(state)
    harness.cut(1)
    await seconds(harness, 40)
    assert harness.state.failover.kept == harness.held(1)
    harness.change_spec(state="NoMigration")
    await seconds(harness, 20)
    assert not harness.held(1)
    assert not harness.state.failover.kept
    assert all(row.owner not in (1, None) for row in harness.table().partitions)


@STATES
async def test_an_interrupted_promotion_does_not_hold_up_the_end_of_the_state(state: str) -> None:
    """Its partition waits like the others, and no operation is begun that only a silent member could end."""
    harness = await in_state(state)
    harness.cut(1)
    number = min(harness.held(1))
    await seconds(harness, 10)
    harness.state.failover.fenced.add(number)
    await seconds(harness, 5)
    assert not harness.state.operations.promotions
    harness.change_spec(state="Active")
    await seconds(harness, 40)
    await harness.until_quiet()
    assert harness.head().state == "Active"
    assert 1 not in harness.table().partitions[number].members


@STATES
async def test_a_wiped_member_leaves_its_rows(state: str) -> None:
    """It never comes back."""
    harness = await in_state(state)
    harness.wipe(1)
    await seconds(harness, 20)
    assert not harness.held(1)
    harness.check_data()


@STATES
async def test_nothing_is_reset_while_all_members_restart(state: str) -> None:
    harness = await in_state(state, replicas=1, on_partition_loss="ResetToEmpty")
    before = harness.table().partitions
    harness.kill(1)
    await seconds(harness, 60)
    harness.revive(1)
    await harness.until_quiet()
    assert harness.table().partitions == before
    harness.check_data()


@STATES
async def test_it_is_said_who_is_waited_for(state: str) -> None:
    harness = await in_state(state)
    harness.cut(1)
    await seconds(harness, 10)
    shown = _available(View(harness.state, harness.world.wanted, harness.clock, NOON))
    waiting = len(harness.held(1))
    assert shown[1] is False
    assert shown[3].startswith(f"{waiting} partitions wait for demo-1: the cluster state {state} keeps them")
    counts = partition_counts(harness.state, 2)
    assert (counts.safe, counts.under_replicated, counts.lost) == (12 - waiting, waiting, 0)


async def test_partitions_whose_members_all_went_at_once_are_counted_once() -> None:
    harness = await formed(members=2, partitions=4)
    for index in (0, 1):
        harness.kill(index)
    await seconds(harness, 10)
    counts = partition_counts(harness.state, 2)
    assert (counts.safe, counts.under_replicated, counts.lost) == (0, 0, 4)


async def test_a_lost_node_changes_no_row_of_a_frozen_table() -> None:
    harness = await in_state("Frozen")
    before = harness.table().partitions
    harness.cut(2)
    harness.world.nodes[2] = NodeState.GONE
    await seconds(harness, 60)
    assert harness.table().partitions == before
