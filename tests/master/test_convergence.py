"""The master's loop with members in memory: it converges, and loses nothing on the way."""

from tests.master.harness import formed


async def test_a_cluster_forms_and_every_partition_has_its_copies() -> None:
    harness = await formed(members=3, partitions=8)
    harness.check_balanced(3, 2)
    assert all(row.version == 1 for row in harness.table().partitions)
    assert harness.written.keys() == set(range(8))


async def test_a_member_that_is_too_many_is_emptied_before_it_goes() -> None:
    harness = await formed(members=4, partitions=12)
    await harness.apply(members=3)
    harness.check_balanced(3, 2)
    assert sorted(harness.world.pods) == [0, 1, 2]
    assert harness.head().next_member_index == 4


async def test_a_killed_owner_is_replaced_at_once_and_rejoins() -> None:
    harness = await formed(members=3, partitions=9)
    harness.kill(0)
    await harness.ticks(12)
    assert all(0 not in row.members for row in harness.table().partitions)
    before = {number: len(values) for number, values in harness.written.items()}
    await harness.tick()
    assert all(len(harness.written[number]) > before[number] for number in before)
    harness.revive(0)
    await harness.until_quiet()
    harness.check_balanced(3, 2)


async def test_a_wiped_member_is_another_member() -> None:
    harness = await formed(members=3, partitions=9)
    harness.wipe(1)
    await harness.until_quiet()
    assert sorted(harness.table().members) == [0, 2, 3]
    harness.check_balanced(3, 2)


async def test_more_replicas_than_members_fills_what_can_be_filled() -> None:
    harness = await formed(members=2, partitions=4, replicas=3)
    assert harness.copies() == {2}
    await harness.apply(members=3)
    assert harness.copies() == {3}


async def test_members_with_data_are_not_let_into_an_empty_table() -> None:
    harness = await formed(members=3, partitions=6)
    await harness.restore({})
    harness.start_master()
    await harness.ticks(10)
    assert any(each.reason == "TableMissing" for each in harness.world.events)
    assert not harness.table().members


async def test_a_table_that_was_lost_is_not_begun_anew_on_members_without_data() -> None:
    """Somebody empty may join; what the others hold would be put aside by an assignment without them."""
    harness = await formed(members=3, partitions=6)
    await harness.restore({})
    harness.wipe(2)
    harness.start_master()
    await harness.ticks(80, 1.0)
    assert 2 in harness.table().members
    assert not any(row.version for row in harness.table().partitions)
    assert any(each.reason == "TableMissing" for each in harness.world.events)


async def test_a_paused_cluster_replaces_a_dead_owner_and_moves_nothing() -> None:
    harness = await formed(members=3, partitions=6)
    harness.change_spec(members=4, paused=True)
    harness.kill(0)
    await harness.ticks(40)
    assert all(row.replicas and 0 not in row.members for row in harness.table().partitions)
    assert sorted(harness.world.pods) == [0, 1, 2]
    harness.revive(0)
    await harness.apply(paused=False)
    harness.check_balanced(4, 2)
