"""Bugs that Hazelcast had in its migrations, by their issue or pull request: none comes back."""

from stele.core.control.commands import DeleteTablet, Result
from stele.core.control.operations.cluster_state import Step
from stele.core.control.publication import exchange_request
from tests.fakes.members import FakeMember
from tests.master.checks import lost_partitions
from tests.master.fuse import Fuse, lose
from tests.master.harness import Harness, formed
from tests.master.scenarios import SCENARIOS, finish, heal, prepared


async def moving() -> Harness:
    """One partition on members 0 and 1; its owner is about to be moved to member 2."""
    harness = await prepared(SCENARIOS["move of the owner"])
    harness.start_master()
    harness.world.drained = {0}
    return harness


async def test_issue_5444_a_joiner_that_dies_while_data_moves_to_it_costs_nothing() -> None:
    """The source gives its copy up only after the destination committed and that was published."""
    harness = await moving()
    source, destination = harness.world.volumes[0], harness.world.volumes[2]
    while source.tablets[0].state == "READY":
        row = harness.table().partitions[0]
        assert 0 in row.members or destination.tablets[0].state == "READY"
        await harness.tick()
    row = harness.table().partitions[0]
    assert row.replicas == (2, 1)
    assert destination.row(0).version == row.version
    assert destination.tablets[0].state == "READY"


async def test_issue_2804_a_member_that_leaves_politely_is_kept_until_no_row_names_it() -> None:
    """Its pod goes only after every partition is as full as before without it."""
    harness = await formed(members=3, partitions=3)
    harness.change_spec(members=2)
    for _ in range(60):
        named = any(2 in row.members for row in harness.table().partitions)
        await harness.tick()
        assert 2 in harness.world.pods or not named
    assert 2 not in harness.world.pods
    assert harness.copies() == {2}


async def test_pull_6337_an_empty_partition_begins_and_ends_like_any_other() -> None:
    """Source and destination both note a commit, although there is nothing to copy."""
    harness = await moving()
    for volume in harness.world.volumes.values():
        for tablet in volume.tablets.values():
            tablet.data.clear()
    harness.written.clear()
    harness.write = lambda: None  # type: ignore[method-assign]
    await finish(harness)
    destination = harness.world.volumes[2].events
    assert destination.begun == destination.committed
    assert harness.world.volumes[0].events.committed == destination.committed


async def test_pull_12535_a_commit_without_an_answer_is_asked_again_and_done_once() -> None:
    """The answer of the destination is lost; the same question gets the same answer, and no version is
    skipped.
    """
    harness = await moving()
    before = harness.table().partitions[0].version
    await harness.until(lambda: harness.world.volumes[0].frozen)
    harness.fuse.left, harness.fuse.after, harness.fuse.act = 1, True, lose
    await finish(harness)
    assert harness.fuse.left < 0
    assert harness.table().partitions[0].version == before + 1


async def test_pull_10138_owners_that_die_are_replaced_without_migration() -> None:
    """NoMigration means no copies; a backup is promoted all the same."""
    harness = await formed(members=3, partitions=3)
    harness.change_spec(state="NoMigration")
    harness.kill(0)
    await harness.ticks(40, 1.0)
    rows = harness.table().partitions
    assert all(row.owner not in (0, None) for row in rows)
    assert any(len(row.members) == 1 for row in rows)


async def test_pull_16189_no_migration_begins_before_the_one_before_it_is_cleaned_up() -> None:
    """A member that still speaks of an ended migration is told first that it ended."""
    harness = await moving()
    await harness.until(lambda: harness.world.volumes[0].learners)
    old = harness.world.volumes[0].learners[0].id
    source = harness.world.volumes[0]
    refused: list[str] = []
    plain = source._AddLearner
    source._AddLearner = lambda c: note(refused, plain(c))  # type: ignore[method-assign]
    for volume in harness.world.volumes.values():
        for copy in volume.copies.values():
            copy.refused = True
    await harness.restart()
    await finish(harness)
    assert old in source.events.rolled_back
    assert "MIGRATION_ACTIVE" not in refused


def note(codes: list[str], result: object) -> object:
    codes.append(result.code)  # type: ignore[attr-defined]
    return result


async def test_pull_16627_the_table_goes_to_members_only() -> None:
    """A process that is not in the dictionary is asked who it is, and told nothing."""
    harness = await formed(members=3, partitions=3)
    harness.change_spec(state="Frozen")
    await harness.ticks(4, 1.0)
    harness.change_spec(members=4)
    harness.world.members[7] = True
    harness.world.start_pod(7)
    await harness.until_quiet()
    state = harness.state
    assert 7 in state.membership.liveness
    assert 7 not in harness.table().members
    assert not exchange_request(state, 7, (), cluster="c", replicas=2)[0].rows
    assert not harness.world.volumes[7].rows


async def test_issue_24831_a_migration_that_fails_does_not_hold_the_table_back() -> None:
    """Others are stored and published while one fails again and again."""
    harness = await formed(members=3, partitions=6)
    harness.change_spec(members=4)
    await harness.until(lambda: 3 in harness.world.volumes)
    refusing = harness.world.volumes[3]
    plain = refusing._Accept
    refusing._Accept = lambda c: Result("DISK_ERROR") if c.row.partition == first else plain(c)  # type: ignore[method-assign]
    first = next(n for n, row in enumerate(harness.table().partitions) if row.owner == 0)
    await harness.ticks(200)
    rows = harness.table().partitions
    assert any(3 in row.members for row in rows)
    for volume in harness.world.volumes.values():
        assert {n: row.version for n, row in volume.rows.items()} == {
            n: r.version for n, r in enumerate(rows)
        }


async def test_issue_14088_all_addresses_change_at_once() -> None:
    """Every pod comes back under another address; identities stay, and so does every row's members."""
    harness = await formed(members=3, partitions=6)
    before = [row.members for row in harness.table().partitions]
    for index in list(harness.world.pods):
        harness.world.volumes[index].alive = False
        del harness.world.pods[index]
        harness.world.start_pod(index)
    await harness.until_quiet()
    assert [row.members for row in harness.table().partitions] == before
    addresses = {entry.address for entry in harness.table().members.values()}
    assert addresses == {pod.address for pod in harness.world.pods.values()}


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
    await harness.until(lambda: 2 in harness.table().partitions[0].members)
    await finish(harness)


async def test_pull_8420_a_member_that_fails_at_the_commit_ends_the_migration_on_both_sides() -> None:
    """What began is ended as often, by a commit or by a roll-back: `finish` compares the numbers."""
    harness = await moving()
    destination = harness.world.volumes[2]
    plain, answers = destination._Accept, [Result("DISK_ERROR")] * 3
    destination._Accept = lambda c: answers.pop() if answers else plain(c)  # type: ignore[method-assign]
    await harness.until(lambda: harness.table().partitions[0].replicas == (2, 1))
    await finish(harness)
    assert not answers
    assert len(destination.events.rolled_back) == 3
    assert len(harness.world.volumes[0].events.rolled_back) == 3


async def test_pull_8532_a_copy_that_lags_is_in_no_row() -> None:
    """The owner still sends it what it lacks: nobody takes it for one that has everything."""
    harness = await moving()
    source = harness.world.volumes[0]
    source._probe = lambda: None  # type: ignore[method-assign]
    await harness.until(lambda: source.learners)
    for _ in range(60):
        await harness.tick()
        assert 2 not in harness.table().partitions[0].members
    del source._probe  # type: ignore[method-assign]
    await harness.until(lambda: 2 in harness.table().partitions[0].members)
    await finish(harness)


async def test_pull_17564_nobody_is_told_to_delete_what_the_table_says_it_holds() -> None:
    """Also when the answers to such orders are lost and they are given twice."""
    harness = await formed(members=4, partitions=8)
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
            await harness.apply(members=members)
    assert deleted


async def test_issue_15176_a_migration_that_never_ends_does_not_keep_a_state_from_coming() -> None:
    """It is said what is waited for; what makes no progress is rolled back, and the state is in force."""
    harness = await moving()
    source = harness.world.volumes[0]
    source._probe = lambda: None  # type: ignore[method-assign]
    await harness.until(lambda: source.learners)
    harness.change_spec(state="Frozen")
    await harness.tick()
    state = harness.state
    assert (state.operations.change.step, state.operations.change.reason) == (
        Step.WAITING,
        "1 migrations are under way and end first",
    )
    await harness.ticks(150, 1.0)
    assert harness.head().state == "Frozen"
    assert not source.learners


async def test_issue_13553_members_of_one_place_that_die_together_take_no_partition_with_them() -> None:
    """Six on two machines: each partition has a copy on either, so a machine may go."""
    harness = Harness(members=6, partitions=24)
    harness.world.zones = {index: ("ab"[index % 2],) for index in range(6)}
    await harness.until_quiet()
    for index in (0, 2, 4):
        harness.kill(index)
    await harness.ticks(40)
    assert not lost_partitions(harness)
    assert all(row.members <= {1, 3, 5} for row in harness.table().partitions)
    await heal(harness)
