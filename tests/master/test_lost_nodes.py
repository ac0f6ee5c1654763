"""Members whose node is lost: the pod that no kubelet ends, and the member that comes in their place."""

import pytest

from stele.core.control.failure_detector import NodeState, Replacement
from tests.master.fuse import Crash, Fuse
from tests.master.harness import Harness, formed

GRACE_TICKS = 40


def lose_node(harness: Harness, index: int, state: NodeState = NodeState.GONE) -> str:
    """The node is cut off: its process runs on, and its pod is there. Returns the pod's UID."""
    harness.cut(index)
    harness.world.nodes[index] = state
    return harness.world.pods[index].uid


async def seconds(harness: Harness, number: int) -> None:
    await harness.ticks(number, 1.0)


def reasons(harness: Harness, reason: str) -> list[str]:
    return [each.message for each in harness.world.events if each.reason == reason]


async def test_a_member_whose_node_is_gone_is_replaced_with_a_new_volume() -> None:
    harness = await formed(members=3, partitions=12)
    uid = lose_node(harness, 2)
    await seconds(harness, 10)
    assert harness.world.forced == [uid]
    assert set(harness.world.members) == {0, 1, 2}, "its place is kept for the grace period"
    await seconds(harness, GRACE_TICKS)
    await harness.until_quiet()
    assert set(harness.world.members) == set(harness.table().members) == {0, 1, 3}
    assert harness.copies() == {2}
    assert harness.world.deletable == set(), "nothing was moved off its volume, so it stays"
    assert reasons(harness, "MemberReplaced") == [
        "another member takes the place of demo-2: its node node-2 is gone"
    ]


async def test_leases_of_a_process_on_a_gone_node_are_waited_for() -> None:
    """The Node object says nothing about processes: no owner follows before the lease has ended."""
    harness = await formed(members=3, partitions=12)
    owned = [number for number, row in enumerate(harness.table().partitions) if row.owner == 2]
    lose_node(harness, 2)
    await harness.until(lambda: harness.world.forced)
    assert not harness.state.membership.liveness[2].known_dead
    await harness.until(lambda: harness.state.operations.promotions)
    assert not any(each.owner_dead for each in harness.state.operations.promotions.values())
    await seconds(harness, 10)
    assert all(harness.table().partitions[number].owner != 2 for number in owned)


async def test_a_volume_that_can_move_is_kept_when_its_node_is_gone() -> None:
    """The next pod gets another node, so nothing is copied anew."""
    harness = await formed(members=3, partitions=12)
    lose_node(harness, 2)
    await harness.until(lambda: harness.world.forced)
    harness.world.nodes[2] = NodeState.READY
    harness.world.pods.pop(2, None)
    harness.net.cut.clear()
    await harness.until_quiet()
    assert set(harness.table().members) == {0, 1, 2}
    assert harness.copies() == {2}


async def test_out_of_service_deletes_only_a_terminating_pod_and_keeps_the_volume() -> None:
    harness = await formed(members=3, partitions=12)
    uid = lose_node(harness, 2, NodeState.OUT_OF_SERVICE)
    await seconds(harness, 6)
    assert not harness.world.forced, "its pod is not being deleted"
    harness.world.pods[2].terminating = True
    await seconds(harness, GRACE_TICKS)
    assert harness.world.forced[0] == uid
    assert set(harness.world.members) == {0, 1, 2}


async def test_a_member_that_answers_keeps_its_pod_whatever_its_node_is_called() -> None:
    harness = await formed(members=3, partitions=12)
    harness.world.nodes[2] = NodeState.GONE
    await seconds(harness, GRACE_TICKS)
    assert not harness.world.forced
    assert set(harness.table().members) == {0, 1, 2}


async def test_a_member_that_may_have_the_only_copy_is_not_replaced() -> None:
    harness = await formed(members=3, partitions=12, replicas=1)
    lose_node(harness, 2)
    await seconds(harness, GRACE_TICKS)
    assert set(harness.world.members) == {0, 1, 2}
    harness.world.nodes[2] = NodeState.READY
    harness.world.pods.pop(2)
    harness.net.cut.clear()
    await harness.until_quiet()
    assert not harness.state.failover.lost


async def test_a_member_that_is_not_in_the_row_of_a_lost_partition_may_have_its_last_copy() -> None:
    harness = await formed(members=3, partitions=3, replicas=2)
    number = next(n for n, row in enumerate(harness.table().partitions) if row.replicas[1] == 2)
    owner = harness.table().partitions[number].owner
    assert owner is not None
    harness.cut(2)
    await harness.until(lambda: 2 not in harness.table().partitions[number].members)
    harness.kill(owner)
    await seconds(harness, 10)
    harness.world.nodes[2] = NodeState.GONE
    await seconds(harness, GRACE_TICKS)
    assert number in harness.state.failover.lost
    assert 2 in harness.world.members


@pytest.mark.parametrize("limit", [0.0, 60.0])
async def test_a_member_that_stays_away_is_replaced_after_the_limit(limit: float) -> None:
    harness = await formed(members=3, partitions=12, replace_after_seconds=limit)
    harness.cut(2)
    await seconds(harness, 55)
    assert set(harness.world.members) == {0, 1, 2}
    await seconds(harness, 20)
    await harness.until_quiet()
    assert (2 in harness.world.members) is not limit
    assert harness.copies() == {2}


async def test_a_member_is_not_replaced_while_a_user_keeps_its_volume() -> None:
    harness = await formed(members=3, partitions=12, replace_after_seconds=1.0)
    harness.world.replacements[2] = Replacement.KEEP_VOLUME
    uid = lose_node(harness, 2, NodeState.NOT_READY)
    await seconds(harness, GRACE_TICKS)
    assert uid in harness.world.forced, "a user says that this node is off"
    harness.world.nodes[2] = NodeState.GONE
    await seconds(harness, GRACE_TICKS)
    assert 2 in harness.world.members


async def test_a_member_that_serves_is_replaced_by_moving_its_data() -> None:
    """No row has fewer copies at any time, and its volume may be deleted: everything was moved off it."""
    harness = await formed(members=3, partitions=12)
    harness.world.replacements[2] = Replacement.NEW_VOLUME
    while 2 in harness.world.members:
        await harness.tick()
        assert harness.copies() == {2}
    await harness.until_quiet()
    assert set(harness.table().members) == {0, 1, 3}
    assert harness.world.deletable == {2}


@pytest.mark.parametrize("state", ["Frozen", "Passive"])
async def test_nothing_is_replaced_while_no_member_may_join(state: str) -> None:
    harness = await formed(members=3, partitions=12, replace_after_seconds=1.0)
    harness.change_spec(state=state)
    await harness.until_quiet()
    lose_node(harness, 2)
    await seconds(harness, GRACE_TICKS)
    assert set(harness.world.members) == {0, 1, 2}


async def test_paused_clusters_keep_their_pods() -> None:
    harness = await formed(members=3, partitions=12, replace_after_seconds=1.0)
    harness.change_spec(paused=True)
    lose_node(harness, 2)
    await seconds(harness, GRACE_TICKS)
    assert not harness.world.forced
    assert set(harness.world.members) == {0, 1, 2}


async def test_a_replacement_goes_on_when_the_master_dies_at_any_step() -> None:
    at, ended = 1, False
    while not ended:
        harness = await formed(members=3, partitions=4)
        lose_node(harness, 2)
        harness.start_master(Fuse(at))
        try:
            await seconds(harness, GRACE_TICKS)
            await harness.until_quiet()
            ended = True
        except Crash:
            await harness.restart()
            await seconds(harness, GRACE_TICKS)
            await harness.until_quiet()
        assert set(harness.table().members) == {0, 1, 3}, at
        assert harness.copies() == {2}
        await harness.loop.close()
        at += 1
