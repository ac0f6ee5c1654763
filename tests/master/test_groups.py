"""Groups of partitions: added to a running cluster, balanced by themselves, found again after a loss."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.core.control.rebalance.groups import _is_vacant, add_groups
from stele.core.control.volumes import Recovery
from stele.core.kv.keyspaces import Catalog, Settings
from stele.core.table.groups import GROUPS_MAX, DesiredGroup, PartitionGroup, PartitionGroups
from stele.core.table.table import SHARD_PARTITIONS, Partition
from stele.errors import Corrupt
from stele.model.ownership import NameTaken
from tests.master.checks import check_state
from tests.master.fuse import Crash, Fuse
from tests.master.harness import Harness, formed, of_the_format_before
from tests.master.test_features import upgrade
from tests.master.test_recover import UID, delete_cluster
from tests.sampled import sampled

ONE = (DesiredGroup("sessions", 6, 3),)
TWO = (*ONE, DesiredGroup("orders", 4, 1))
FOLLOWS = (DesiredGroup("all", 4, 0),)


class AfterShard(Fuse):
    """The master dies when it has made the second shard."""

    def burn(self, name: str, *, done: bool) -> None:
        if done and name == "shard-1":
            raise Crash


def copies_of(harness: Harness, keyspace: str) -> list[int]:
    table = harness.table()
    [group] = [each for each in table.groups.groups if each.keyspace == keyspace]
    return [len(row.members) for row in table.partitions[group.first : group.end]]


def said(harness: Harness, reason: str) -> list[str]:
    return [each.message for each in harness.world.events if each.reason == reason]


async def test_groups_are_appended_and_assigned_with_their_own_replicas() -> None:
    harness = await formed(members=4, partitions=12)
    before = harness.table().partitions
    await harness.apply(groups=ONE)
    await harness.apply(groups=TWO)
    table = harness.table()
    assert table.partitions[:12] == before, "no other row changes"
    assert table.groups == PartitionGroups(
        2, (PartitionGroup("sessions", 12, 6, 3), PartitionGroup("orders", 18, 4, 1))
    )
    assert set(copies_of(harness, "sessions")) == {3}
    assert set(copies_of(harness, "orders")) == {1}
    assert said(harness, "GroupAssigned") == [
        "6 partitions of sessions on 4 members",
        "4 partitions of orders on 4 members",
    ]
    for volume in harness.world.volumes.values():
        assert volume.groups == table.groups
        assert volume.partitions == 22
    check_state(harness)


async def test_each_group_is_balanced_when_members_join_and_leave() -> None:
    harness = await formed(members=3, partitions=12, groups=TWO)
    for members in (5, 3):
        await harness.apply(members=members)
        check_state(harness)
        table = harness.table()
        for part in table.groups.parts(len(table.partitions), 2):
            rows = table.partitions[part.first : part.end]
            held = Counter(member for row in rows for member in row.members)
            owned = Counter(row.owner for row in rows)
            for counts in (held, owned):
                assert max(counts.values()) - min(counts[each] for each in table.members) <= 1, part


async def test_a_group_that_is_no_longer_desired_stays() -> None:
    """Its data is there still; what becomes of it is decided elsewhere."""
    harness = await formed(members=3, partitions=4, groups=ONE)
    table = harness.table()
    await harness.apply(groups=())
    assert harness.table() == table


async def test_a_group_that_does_not_fit_is_left_out_and_smaller_ones_are_not() -> None:
    harness = await formed(
        members=2, partitions=4, groups=(DesiredGroup("a", 65_533, 2), DesiredGroup("b", 3, 2))
    )
    assert [group.keyspace for group in harness.table().groups.groups] == ["b"]


async def test_a_group_beyond_the_most_that_are_possible_is_left_out() -> None:
    """The head could not be stored with it, by this master or any later one."""
    groups = tuple(DesiredGroup(f"k{number}", 1, 1) for number in range(GROUPS_MAX + 1))
    harness = await formed(members=2, partitions=4, groups=groups[:-1])
    await harness.apply(groups=groups[-1:])
    assert len(harness.table().groups.groups) == GROUPS_MAX
    assert harness.table().groups.of(groups[-1].keyspace) is None


async def test_the_other_partitions_are_assigned_before_any_group_is_added() -> None:
    """The master waits a while for all members of a new cluster."""
    harness = Harness(members=3, partitions=4, groups=ONE)
    await harness.tick()
    harness.kill(2)
    await harness.ticks(20)
    assert not harness.table().groups.groups
    await harness.ticks(20, 5.0)
    assert all(row.version for row in harness.table().partitions)
    assert harness.table().groups.groups


async def test_a_group_waits_while_it_may_not_be_added() -> None:
    harness = await formed(members=2, partitions=4)
    await harness.apply(state="Frozen")
    await harness.apply(groups=ONE)
    assert not harness.table().groups.groups
    await harness.apply(state="Active", paused=True)
    assert not harness.table().groups.groups
    await harness.apply(paused=False)
    assert set(copies_of(harness, "sessions")) == {2}


async def test_a_group_waits_for_members_of_this_format() -> None:
    harness = await of_the_format_before(groups=ONE)
    assert not harness.table().groups.groups
    upgrade(harness, 0, 1, 2)
    await harness.until_quiet()
    assert set(copies_of(harness, "sessions")) == {3}


async def test_what_a_group_lacks_is_under_replicated() -> None:
    """Two members, where a group should have three copies; a third one joins."""
    harness = await formed(members=2, partitions=4, groups=ONE)
    assert set(copies_of(harness, "sessions")) == {2}
    assert harness.state.table.lacking(2) == 6
    assert harness.state.table.lacking(2, 2) == 0
    await harness.apply(members=3)
    assert harness.state.table.lacking(2) == 0


async def test_a_foreign_object_in_place_of_a_shard_prevents_only_the_group() -> None:
    harness = await formed(members=2, partitions=SHARD_PARTITIONS)
    plain = harness.loop._store.write_shard

    async def write_shard(number: int, rows: object) -> None:
        if number:
            raise NameTaken([f"ConfigMap demo-table-{number}"])
        await plain(number, rows)  # type: ignore[arg-type]

    harness.loop._store.write_shard = write_shard  # type: ignore[method-assign]
    harness.change_spec(groups=ONE)
    await harness.ticks(5)
    assert not harness.table().groups.groups
    harness.kill(1)
    await harness.until(lambda: {len(row.members) for row in harness.table().partitions} == {1})
    harness.loop._store.write_shard = plain  # type: ignore[method-assign]
    await harness.until_quiet()
    assert harness.table().groups.groups


@pytest.mark.parametrize(
    ("at", "after"),
    [sampled(at, after, kept=at == 2 + after) for at in range(1, 6) for after in (False, True)],
)
async def test_a_table_that_grows_by_a_shard_is_whole_whenever_the_master_dies(at: int, after: bool) -> None:
    harness = await formed(members=2, partitions=SHARD_PARTITIONS - 2)
    await harness.loop.close()
    harness.change_spec(groups=ONE)
    harness.start_master(Fuse(at, after))
    try:
        await harness.until_quiet()
    except Crash:
        await harness.loop.close()
        harness.start_master()
        await harness.until_quiet()
    assert set(harness.shared.objects) == {"head", "shard-0", "shard-1"}
    assert set(copies_of(harness, "sessions")) == {2}
    check_state(harness)


async def test_an_extension_that_was_left_is_written_over() -> None:
    """A master made the shard of a group, and died; another group comes."""
    harness = await formed(members=2, partitions=SHARD_PARTITIONS)
    harness.change_spec(groups=(DesiredGroup("other", 9, 2),))
    await harness.loop.close()
    harness.start_master(AfterShard())
    with pytest.raises(Crash):
        await harness.until_quiet()
    assert "shard-1" in harness.shared.objects
    assert not harness.head().groups.groups
    await harness.loop.close()
    harness.start_master()
    await harness.apply(groups=ONE)
    assert set(copies_of(harness, "sessions")) == {2}
    check_state(harness)


async def test_members_bring_the_groups_after_an_older_table_was_restored() -> None:
    harness = await formed(members=3, partitions=12)
    older = harness.stored()
    await harness.apply(groups=TWO)
    table = harness.table()
    await harness.restore(older)
    harness.change_spec(groups=())
    harness.start_master()
    await harness.until_quiet()
    assert harness.table().groups == table.groups
    assert all(
        now.version >= before.version
        for now, before in zip(harness.table().partitions, table.partitions, strict=True)
    )
    check_state(harness)


async def test_groups_that_contradict_each_other_are_corrupt() -> None:
    harness = await formed(members=3, partitions=12)
    older = harness.stored()
    await harness.apply(groups=ONE)
    await harness.restore(older)
    harness.world.volumes[1].groups = PartitionGroups(1, (PartitionGroup("else", 12, 6, 3),))
    harness.start_master()
    with pytest.raises(Corrupt, match="different groups"):
        await harness.ticks(10)


async def test_a_deleted_cluster_is_recovered_with_its_groups() -> None:
    harness = await formed(members=3, partitions=12, groups=TWO)
    table = harness.table()
    await harness.loop.close()
    delete_cluster(harness)
    harness.change_spec(recovery=Recovery("demo", UID), groups=())
    harness.start_master()
    await harness.until_quiet()
    assert harness.table().groups == table.groups
    assert [row.replicas for row in harness.table().partitions] == [row.replicas for row in table.partitions]
    check_state(harness)


@pytest.mark.parametrize("after", [False, True])
async def test_a_recovery_with_groups_is_complete_whenever_it_is_interrupted(after: bool) -> None:
    for at in range(1, 12):
        harness = await formed(members=2, partitions=4, groups=ONE)
        rows = [row.replicas for row in harness.table().partitions]
        await harness.loop.close()
        delete_cluster(harness)
        harness.change_spec(recovery=Recovery("demo", UID), groups=())
        harness.start_master(Fuse(at, after))
        try:
            await harness.until_quiet()
        except Crash:
            await harness.loop.close()
            harness.start_master()
            await harness.until_quiet()
        assert [row.replicas for row in harness.table().partitions] == rows, at
        check_state(harness)


async def test_a_group_waits_until_no_member_has_its_entries_elsewhere() -> None:
    harness = await formed(members=3, partitions=12)
    harness.world.volumes[1].occupied.add("sessions")
    await harness.apply(groups=TWO)
    assert [group.keyspace for group in harness.table().groups.groups] == ["orders"]
    harness.world.volumes[1].occupied.clear()
    await harness.until_quiet()
    assert [group.keyspace for group in harness.table().groups.groups] == ["orders", "sessions"]


async def test_what_was_reported_of_an_older_table_or_catalog_does_not_count() -> None:
    """An owner had nothing of the keyspace, then gave a partition to a member that has something."""
    harness = await formed(members=3, partitions=12)
    harness.world.stored_catalog = Catalog(7, {"sessions": Settings(own_partitions=True)})
    await harness.until_quiet()
    state = harness.state
    assert _is_vacant(state, ONE[0]._replace(since=7))
    assert not _is_vacant(state, ONE[0]._replace(since=8))
    row = state.table.partitions[0]
    state.table.store({0: Partition(row.version + 1, tuple(reversed(row.replicas)))})
    assert not _is_vacant(state, ONE[0]._replace(since=7))


async def test_no_group_is_added_while_a_row_of_the_others_changes() -> None:
    """Its new owner may hear of it from another member, before it is told of the group."""
    harness = await formed(members=3, partitions=12)
    harness.world.stored_catalog = Catalog(7, {"sessions": Settings(own_partitions=True)})
    await harness.until_quiet()
    table, operations = harness.state.table, harness.state.operations
    observation = cast(Any, SimpleNamespace(desired=replace(harness.world.wanted, groups=ONE)))
    row = table.partitions[0]
    assert _is_vacant(harness.state, ONE[0])
    table.stage(0, Partition(row.version + 1, tuple(reversed(row.replicas))))
    add_groups(harness.state, observation)
    assert table.staged_groups is None
    table.clear_staged()
    table.claim(0, row.version + 1)
    operations.by_row = {0: cast(Any, None)}
    add_groups(harness.state, observation)
    assert table.staged_groups is None
    operations.by_row = {}
    add_groups(harness.state, observation)
    assert table.staged_groups is not None, "a claim that no operation pursues is never stored"


async def test_a_replicated_keyspace_follows_the_members() -> None:
    """Up to seven; what fails is missing until it is removed, and no copy goes before its member does."""
    harness = await formed(members=3, partitions=12, groups=FOLLOWS)
    assert copies_of(harness, "all") == [3] * 4
    for members, copies in ((5, 5), (9, 7), (8, 7), (4, 4), (2, 2), (3, 3)):
        await harness.apply(members=members)
        assert copies_of(harness, "all") == [copies] * 4, members
        assert harness.state.table.lacking(2, members) == 0
        check_state(harness)
    assert not said(harness, "RebalanceProposed"), "no copy is given up that anyone has to approve"


async def test_a_lite_member_has_no_copy_and_one_that_is_away_keeps_its_place() -> None:
    harness = await formed(members=4, partitions=12, groups=FOLLOWS)
    harness.kill(3)
    await harness.until(lambda: copies_of(harness, "all") == [3] * 4)
    [group] = harness.table().groups.groups
    assert group.replicas == 4
    harness.revive(3)
    await harness.until(lambda: copies_of(harness, "all") == [4] * 4)
    harness.world.lite.add(3)
    await harness.until_quiet()
    assert copies_of(harness, "all") == [3] * 4
    check_state(harness)


async def test_a_group_gets_the_replicas_that_are_desired_later() -> None:
    harness = await formed(members=4, partitions=12, groups=ONE)
    await harness.apply(groups=(ONE[0]._replace(replicas=2),))
    assert copies_of(harness, "sessions") == [2] * 6
    await harness.apply(groups=(ONE[0]._replace(replicas=4),))
    assert copies_of(harness, "sessions") == [4] * 6
    check_state(harness)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
async def test_a_replicated_keyspace_follows_whenever_the_master_dies(at: int, after: bool) -> None:
    harness = await formed(members=4, partitions=4, groups=FOLLOWS)
    await harness.loop.close()
    harness.change_spec(members=3)
    harness.start_master(Fuse(at, after))
    try:
        await harness.until_quiet()
    except Crash:
        await harness.loop.close()
        harness.start_master()
        await harness.until_quiet()
    assert copies_of(harness, "all") == [3] * 4
    check_state(harness)
