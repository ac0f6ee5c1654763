"""Further bugs that Hazelcast had: what counts as done, what deletes, and what gets stuck."""

from stele.core.control.cluster_state import Step
from stele.wire.control import DeleteTablet, Result
from tests.master.checks import lost_partitions
from tests.master.fake_members import FakeMember
from tests.master.harness import Fuse, Harness, lose
from tests.master.stories import finish, heal
from tests.master.test_hazelcast_bugs import moving, until


async def test_pull_4174_no_version_moves_while_the_data_could_not_be_taken() -> None:
    """A copy that cannot be written is no copy: the row stays as it is, as often as it is tried."""
    harness = await moving()
    destination = harness.world.volumes[2]
    plain = destination._Ingest
    destination._Ingest = lambda c: Result("DISK_ERROR", "no room")  # type: ignore[method-assign]
    before = harness.table().partitions[0]
    for _ in range(100):
        await harness.tick()
        assert harness.table().partitions[0] == before
    assert destination.events.rolled_back
    destination._Ingest = plain  # type: ignore[method-assign]
    await until(harness, lambda: 2 in harness.table().partitions[0].members)
    await finish(harness)


async def test_pull_8420_a_member_that_fails_at_the_commit_ends_the_migration_on_both_sides() -> None:
    """What began is ended as often, by a commit or by a roll-back: `finish` compares the numbers."""
    harness = await moving()
    destination = harness.world.volumes[2]
    plain, answers = destination._Accept, [Result("DISK_ERROR")] * 3
    destination._Accept = lambda c: answers.pop() if answers else plain(c)  # type: ignore[method-assign]
    await until(harness, lambda: harness.table().partitions[0].replicas == (2, 1))
    await finish(harness)
    assert not answers
    assert len(destination.events.rolled_back) == 3
    assert len(harness.world.volumes[0].events.rolled_back) == 3


async def test_pull_8532_a_copy_that_lags_is_in_no_row() -> None:
    """The owner still sends it what it lacks: nobody takes it for one that has everything."""
    harness = await moving()
    source = harness.world.volumes[0]
    source._probe = lambda: None  # type: ignore[method-assign]
    await until(harness, lambda: source.learners)
    for _ in range(60):
        await harness.tick()
        assert 2 not in harness.table().partitions[0].members
    del source._probe  # type: ignore[method-assign]
    await until(harness, lambda: 2 in harness.table().partitions[0].members)
    await finish(harness)


async def test_pull_17564_nobody_is_told_to_delete_what_the_table_says_it_holds() -> None:
    """Also when the answers to such orders are lost and they are given twice."""
    harness = Harness(members=4, partitions=8)
    await harness.settle()
    deleted: list[int] = []

    def watched(member: FakeMember, index: int) -> None:
        plain = member._DeleteTablet

        def delete(c: DeleteTablet) -> Result:
            row = harness.table().partitions[c.partition]
            assert index not in row.members
            assert c.version == row.version
            deleted.append(c.partition)
            return plain(c)

        member._DeleteTablet = delete  # type: ignore[method-assign]

    for index, member in harness.world.volumes.items():
        watched(member, index)
    for members in (3, 4):
        for at in (4, 9, 14, 19):
            harness.start_master(Fuse(at, after=True, act=lose))
            harness.change_spec(members=members)
            await harness.settle()
    assert deleted


async def test_issue_15176_a_migration_that_never_ends_does_not_keep_a_state_from_coming() -> None:
    """It is said what is waited for; what makes no progress is rolled back, and the state is in force."""
    harness = await moving()
    source = harness.world.volumes[0]
    source._probe = lambda: None  # type: ignore[method-assign]
    await until(harness, lambda: source.learners)
    harness.change_spec(state="Frozen")
    await harness.tick()
    state = harness.loop.state
    assert state is not None
    assert (state.change.step, state.change.reason) == (
        Step.WAITING,
        "1 migrations are under way and end first",
    )
    for _ in range(150):
        await harness.tick(1.0)
    assert harness.head().state == "Frozen"
    assert not source.learners


async def test_issue_9972_a_master_that_dies_while_members_are_locked_leaves_nothing_locked() -> None:
    harness = Harness(members=3, partitions=6)
    await harness.settle()
    harness.change_spec(state="Frozen")
    harness.world.volumes[2]._LockState = lambda c: Result("MIGRATION_ACTIVE", "m")  # type: ignore[method-assign]
    await until(harness, lambda: harness.world.volumes[0].locked)
    await harness.loop.close()
    harness.change_spec(state="Active", members=4)
    harness.start_master()
    await harness.settle()
    assert not any(member.locked for member in harness.world.volumes.values())
    assert any(3 in row.members for row in harness.table().partitions), "migrations run again"
    assert harness.head().state == "Active"


async def test_issue_13553_members_of_one_place_that_die_together_take_no_partition_with_them() -> None:
    """Six on two machines: each partition has a copy on either, so a machine may go."""
    harness = Harness(members=6, partitions=24)
    harness.world.zones = {index: ("ab"[index % 2],) for index in range(6)}
    await harness.settle()
    for index in (0, 2, 4):
        harness.kill(index)
    for _ in range(40):
        await harness.tick()
    assert not lost_partitions(harness)
    assert all(row.members <= {1, 3, 5} for row in harness.table().partitions)
    await heal(harness)
