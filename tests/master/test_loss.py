"""Partitions that lose all their copies: they wait for a member, or begin anew when their user wants that."""

from dataclasses import replace

import pytest

from stele.core.control.failover.repair import without_reachable_copy
from tests.fakes.members import Tablet
from tests.master.fuse import Crash, Fuse
from tests.master.harness import Harness, formed
from tests.master.world import TIMING


async def lost(harness: Harness, *members: int) -> set[int]:
    """Kill these members at once; which partitions have no copy left."""
    gone = {n for n, row in enumerate(harness.table().partitions) if row.members <= set(members)}
    assert gone
    for member in members:
        harness.kill(member)
    await harness.ticks(10)
    return gone


def reasons(harness: Harness) -> set[str]:
    return {each.reason for each in harness.world.events}


async def test_what_two_members_held_alone_waits_for_one_of_them() -> None:
    harness = await formed(members=4, partitions=12)
    gone = await lost(harness, 0, 1)
    assert harness.state.failover.lost == gone
    harness.clock += 100
    await harness.ticks(40, 0.6)
    assert {row.members for n, row in enumerate(harness.table().partitions) if n in gone} == {
        frozenset({0, 1})
    }
    harness.revive(1)
    await harness.until_quiet()
    assert harness.state.failover.lost == set()
    assert harness.copies() == {2}
    assert {"DataLoss", "DataBack"} <= reasons(harness)
    assert "PartitionsReset" not in reasons(harness)


async def test_all_members_lost_and_back() -> None:
    harness = await formed(members=3, partitions=9, on_partition_loss="ResetToEmpty")
    before = [row.members for row in harness.table().partitions]
    assert await lost(harness, 0, 1, 2) == set(range(9))
    harness.clock += 100
    await harness.ticks(10, 0.6)
    for member in range(3):
        harness.revive(member)
    await harness.until_quiet()
    assert [row.members for row in harness.table().partitions] == before
    assert "PartitionsReset" not in reasons(harness)


async def begun_anew(harness: Harness, gone: set[int]) -> None:
    for number in gone:
        harness.written.pop(number)
    harness.clock += 31
    await harness.until_quiet()


async def test_what_is_lost_begins_anew_after_the_grace_period_when_that_is_set() -> None:
    harness = await formed(members=4, partitions=12, on_partition_loss="ResetToEmpty")
    gone = await lost(harness, 0, 1)
    await harness.ticks(10, 0.6)
    assert harness.state.failover.lost == gone
    await begun_anew(harness, gone)
    assert harness.state.failover.lost == set()
    assert harness.state.failover.reset_partitions == gone
    assert {"DataLoss", "PartitionsReset"} <= reasons(harness)
    assert "DataBack" not in reasons(harness)
    assert harness.copies() == {2}
    assert gone <= harness.written.keys()


async def test_a_member_that_is_back_too_late_puts_its_copy_aside() -> None:
    harness = await formed(members=4, partitions=12, on_partition_loss="ResetToEmpty")
    gone = await lost(harness, 0, 1)
    volumes = [harness.world.volumes[0], harness.world.volumes[1]]
    harness.change_spec(members=4)
    await begun_anew(harness, gone)
    for index in (0, 1):
        if index in harness.world.pods:
            harness.revive(index)
    await harness.until_quiet()
    for volume in volumes:
        for number in gone:
            named = volume.index in harness.table().partitions[number].members
            assert named or not volume.alive or volume.tablets[number].state == "DELETED"
    assert harness.copies() == {2}


async def test_a_copy_from_before_is_put_aside_although_its_partition_lacks_copies() -> None:
    """The member that is back could take a copy at once: what it had would be replaced by that."""
    harness = await formed(members=3, partitions=9, on_partition_loss="ResetToEmpty")
    gone = await lost(harness, 1, 2)
    before = {number: set(harness.written[number]) for number in gone}
    await begun_anew(harness, gone)
    assert harness.copies() == {1}
    harness.revive(1)
    harness.revive(2)
    await harness.until_quiet()
    assert harness.copies() == {2}
    for volume in harness.world.volumes.values():
        kept = {number: volume.tablets[number].data for number in gone if number in volume.tablets}
        assert not any(before[number] & set(data) for number, data in kept.items())


async def test_a_pause_keeps_what_is_lost_as_it_is() -> None:
    harness = await formed(members=4, partitions=12, on_partition_loss="ResetToEmpty", paused=False)
    harness.change_spec(paused=True)
    gone = await lost(harness, 0, 1)
    harness.clock += 100
    await harness.ticks(20, 0.6)
    assert harness.state.failover.lost == gone


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_the_master_dies_at_each_step_of_a_new_beginning(after: bool) -> None:
    for at in range(1, 30):
        harness = await formed(members=4, partitions=6, on_partition_loss="ResetToEmpty")
        gone = await lost(harness, 0, 1)
        for number in gone:
            harness.written.pop(number)
        harness.clock += 31
        await harness.loop.close()
        harness.start_master(Fuse(at, after))
        try:
            await over(harness)
        except Crash:
            await harness.restart()
            await over(harness)
        assert harness.state.failover.lost == set(), at
        assert harness.copies() == {2}, at
        await harness.loop.close()


async def one_lost(harness: Harness) -> tuple[int, int, Tablet]:
    """A partition of two dead members, and a third with an old copy of it that was restored."""
    gone = await lost(harness, 0, 1)
    number = min(gone)
    data = harness.world.volumes[0].tablets[number].data
    copy = harness.world.volumes[2].tablets[number] = Tablet("READY", 1, data[:1])
    await harness.ticks(10, 0.6)
    return number, harness.table().partitions[number].version, copy


async def test_an_old_copy_becomes_the_owner_only_when_a_user_accepts_it() -> None:
    harness = await formed(members=4, partitions=12)
    harness.write()
    number, version, copy = await one_lost(harness)
    harness.world.accepted[2] = {(number, version - 1)}
    await harness.ticks(20, 0.6)
    assert harness.table().partitions[number].members == {0, 1}
    assert copy.state == "READY", "nothing deletes it meanwhile"
    harness.world.accepted[2] = {(number, version)}
    await harness.ticks(10, 0.6)
    assert harness.table().partitions[number].owner == 2
    assert number not in harness.state.failover.lost
    assert "CopyAccepted" in reasons(harness)


async def test_a_copy_that_was_accepted_once_is_not_accepted_again() -> None:
    harness = await formed(members=4, partitions=12)
    harness.write()
    number, version, _ = await one_lost(harness)
    harness.world.accepted[2] = {(number, version)}
    await harness.ticks(10, 0.6)
    row = harness.table().partitions[number]
    assert row.owner == 2
    harness.change_spec(migration_paused=True)
    for index in row.members:
        harness.kill(index)
    harness.world.volumes[3].tablets.setdefault(number, Tablet("READY", 9, []))
    harness.world.accepted[3] = {(number, version)}
    await harness.ticks(20, 0.6)
    assert harness.table().partitions[number] == row


async def test_a_partition_with_a_live_copy_never_goes_back_to_an_old_one() -> None:
    harness = await formed(members=4, partitions=12)
    harness.write()
    before = harness.table().partitions
    number = next(n for n, row in enumerate(before) if 2 not in row.members)
    harness.world.volumes[2].tablets[number] = Tablet("READY", 9, [])
    harness.world.accepted[2] = {(number, before[number].version)}
    await harness.ticks(20, 0.6)
    assert harness.table().partitions[number].owner == before[number].owner
    harness.check_data()


async def test_what_may_be_the_last_copy_is_named_in_exchanges() -> None:
    """Before a partition counts as lost, too: its members are only away."""
    harness = await formed(members=4, partitions=12, timing=replace(TIMING, grace=1000.0))
    pair = {n for n, row in enumerate(harness.table().partitions) if row.members == {0, 1}}
    assert pair
    for member in (0, 1):
        harness.kill(member)
    harness.clock += 20
    await harness.ticks(10, 0.6)
    state = harness.state
    assert without_reachable_copy(state, harness.world.wanted, harness.clock) == pair
    harness.revive(1)
    await harness.ticks(10, 0.6)
    assert without_reachable_copy(state, harness.world.wanted, harness.clock) == set()


async def over(harness: Harness) -> None:
    """Beyond the grace period, whenever the master began to count it."""
    await harness.ticks(8)
    harness.clock += 31
    await harness.until_quiet()


async def test_a_backup_is_not_given_up_for_an_owner_that_just_died_unheard() -> None:
    """Nobody has said that the owner's process is gone when its backup is declared gone; the backup returns.

    Found by seed 92 of `swarm` (f299f62).
    """
    harness = await formed(members=3, partitions=12, replicas=2)
    harness.write()
    pairs = [number for number, row in enumerate(harness.table().partitions) if row.members == {0, 1}]
    assert pairs
    harness.kill(1)
    harness.cut(0)
    await harness.ticks(5)
    assert all(harness.table().partitions[number].members == {0, 1} for number in pairs)
    harness.revive(1)
    harness.kill(0)
    await harness.until_quiet()
    assert all(harness.table().partitions[number].owner == 1 for number in pairs)
    harness.check_data()


async def test_a_lost_backup_is_taken_out_once_the_owner_answered() -> None:
    harness = await formed(members=3, partitions=12, replicas=2)
    harness.kill(1)
    ticks = 0
    while any(1 in row.members for row in harness.table().partitions):
        await harness.tick()
        ticks += 1
        assert ticks < 10
