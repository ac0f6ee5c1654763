"""The master's loop with members in memory: it converges, and loses nothing on the way."""

from tests.master.harness import Harness


def balanced(harness: Harness, members: int, replicas: int) -> None:
    counts = harness.counts()
    assert len(counts) == members
    total = harness.world.number
    for index, (owned, held) in counts.items():
        assert abs(owned - total / members) < 1.01, (index, counts)
        assert abs(held - total * replicas / members) < 2.01, (index, counts)
    for row in harness.table().partitions:
        assert len(row.members) == min(replicas, members)


async def test_a_cluster_forms_and_every_partition_has_its_copies() -> None:
    harness = Harness(members=3, partitions=8)
    await harness.until_quiet()
    balanced(harness, 3, 2)
    assert all(row.version == 1 for row in harness.table().partitions)
    assert harness.written.keys() == set(range(8))


async def test_a_new_member_gets_its_share() -> None:
    harness = Harness(members=3, partitions=12)
    await harness.until_quiet()
    harness.change_spec(members=4)
    await harness.until_quiet()
    balanced(harness, 4, 2)


async def test_a_member_that_is_too_many_is_emptied_before_it_goes() -> None:
    harness = Harness(members=4, partitions=12)
    await harness.until_quiet()
    harness.change_spec(members=3)
    await harness.until_quiet()
    balanced(harness, 3, 2)
    assert sorted(harness.world.pods) == [0, 1, 2]
    assert harness.head().next_member_index == 4


async def test_a_changed_mind_in_the_middle_of_a_scale_down_keeps_the_member() -> None:
    harness = Harness(members=4, partitions=24, parallel_per_member=2)
    await harness.until_quiet()
    harness.change_spec(members=3)
    for _ in range(12):
        await harness.tick()
    assert any(3 in row.members for row in harness.table().partitions)
    harness.change_spec(members=4)
    await harness.until_quiet()
    balanced(harness, 4, 2)
    assert sorted(harness.world.pods) == [0, 1, 2, 3]


async def test_a_killed_owner_is_replaced_at_once_and_rejoins() -> None:
    harness = Harness(members=3, partitions=9)
    await harness.until_quiet()
    harness.kill(0)
    for _ in range(12):
        await harness.tick()
    assert all(0 not in row.members for row in harness.table().partitions)
    before = {number: len(values) for number, values in harness.written.items()}
    await harness.tick()
    assert all(len(harness.written[number]) > before[number] for number in before)
    harness.revive(0)
    await harness.until_quiet()
    balanced(harness, 3, 2)


async def test_a_lost_member_s_place_is_kept_for_the_grace_period_only() -> None:
    harness = Harness(members=3, partitions=9)
    await harness.until_quiet()
    harness.kill(2)
    for _ in range(40):
        await harness.tick()
    assert any(len(row.members) == 1 for row in harness.table().partitions)
    harness.clock += 30
    await harness.until_quiet()
    assert all(len(row.members) == 2 for row in harness.table().partitions)


async def test_a_wiped_member_is_another_member() -> None:
    harness = Harness(members=3, partitions=9)
    await harness.until_quiet()
    harness.wipe(1)
    await harness.until_quiet()
    assert sorted(harness.table().members) == [0, 2, 3]
    balanced(harness, 3, 2)


async def test_all_replicas_lost_waits_for_the_volumes() -> None:
    harness = Harness(members=3, partitions=6)
    await harness.until_quiet()
    harness.kill(0)
    harness.kill(1)
    for _ in range(30):
        await harness.tick()
    assert any(each.reason == "DataLoss" for each in harness.world.events)
    harness.revive(0)
    harness.revive(1)
    await harness.until_quiet()
    balanced(harness, 3, 2)
    assert any(each.reason == "DataBack" for each in harness.world.events)


async def test_more_replicas_than_members_fills_what_can_be_filled() -> None:
    harness = Harness(members=2, partitions=4, replicas=3)
    await harness.until_quiet()
    assert all(len(row.members) == 2 for row in harness.table().partitions)
    harness.change_spec(members=3)
    await harness.until_quiet()
    assert all(len(row.members) == 3 for row in harness.table().partitions)


async def test_fewer_replicas_are_taken_away() -> None:
    harness = Harness(members=3, partitions=6, replicas=3)
    await harness.until_quiet()
    harness.change_spec(replicas=2)
    await harness.until_quiet()
    balanced(harness, 3, 2)


async def test_members_with_data_are_not_let_into_an_empty_table() -> None:
    harness = Harness(members=3, partitions=6)
    await harness.until_quiet()
    await harness.loop.close()
    harness.shared.objects.clear()
    harness.last = ()
    harness.start_master()
    for _ in range(10):
        await harness.tick()
    assert any(each.reason == "TableMissing" for each in harness.world.events)
    assert not harness.table().members


async def test_a_table_that_was_lost_is_not_begun_anew_on_members_without_data() -> None:
    """Somebody empty may join; what the others hold would be put aside by an assignment without them."""
    harness = Harness(members=3, partitions=6)
    await harness.until_quiet()
    await harness.loop.close()
    harness.shared.objects.clear()
    harness.last = ()
    harness.wipe(2)
    harness.start_master()
    for _ in range(80):
        await harness.tick(1.0)
    assert 2 in harness.table().members
    assert not any(row.version for row in harness.table().partitions)
    assert any(each.reason == "TableMissing" for each in harness.world.events)


async def test_a_paused_cluster_replaces_a_dead_owner_and_moves_nothing() -> None:
    harness = Harness(members=3, partitions=6)
    await harness.until_quiet()
    harness.change_spec(members=4, held=True)
    harness.kill(0)
    for _ in range(40):
        await harness.tick()
    assert all(row.replicas and 0 not in row.members for row in harness.table().partitions)
    assert sorted(harness.world.pods) == [0, 1, 2]
    harness.revive(0)
    harness.change_spec(held=False)
    await harness.until_quiet()
    balanced(harness, 4, 2)


async def test_no_migration_while_the_state_forbids_it() -> None:
    harness = Harness(members=3, partitions=6)
    await harness.until_quiet()
    before = harness.table().partitions
    harness.change_spec(members=4, state="NoMigration")
    await harness.until_quiet()
    assert len(harness.table().members) == 4
    assert harness.table().partitions == before
    harness.change_spec(state="Frozen", members=5)
    await harness.until_quiet()
    assert len(harness.table().members) == 4


async def test_a_cancelled_plan_starts_nothing_more() -> None:
    harness = Harness(members=3, partitions=24, parallel_per_member=1)
    await harness.until_quiet()
    harness.change_spec(members=4)
    while harness.loop.state is None or not harness.loop.state.migrations:
        await harness.tick()
    harness.world.ask("plan", plan=harness.loop.state.plan_id, cancel=True)
    await harness.until_quiet()
    held = sum(3 in row.members for row in harness.table().partitions)
    assert held < 6
    harness.change_spec(members=5)
    await harness.until_quiet()
    balanced(harness, 5, 2)
