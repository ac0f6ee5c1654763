"""A TabletCluster was deleted by mistake: a new one takes its volumes, and no acknowledged write is lost."""

import pytest

from stele.core.control.commands import ExchangeReply, Row
from stele.core.control.volumes import Recovery, RecoveryPolicy
from stele.errors import SteleError
from tests.master.checks import check_state
from tests.master.fuse import Crash, Fuse, crash, lose
from tests.master.harness import Harness, formed
from tests.master.scenarios import SCENARIOS, Scenario, finish, heal, prepared

UID = "cluster-uid"


def delete_cluster(harness: Harness) -> None:
    """The garbage collector takes the table, the members and their pods; volumes stay."""
    for index in list(harness.world.pods):
        harness.world.volumes[index].alive = False
    harness.net.members.clear()
    harness.world.members.clear()
    harness.world.pods.clear()
    harness.shared.objects.clear()
    harness.world.asked.clear()
    harness.world.events.clear()
    harness.last = ()


async def deleted(members: int = 3, partitions: int = 12, **desired: object) -> Harness:
    """A cluster that was deleted, whose successor is to take its volumes."""
    harness = await formed(members=members, partitions=partitions, **desired)
    await harness.loop.close()
    delete_cluster(harness)
    want(harness)
    harness.start_master()
    return harness


def want(harness: Harness, *accept_loss: str, policy: RecoveryPolicy = RecoveryPolicy.MERGE) -> None:
    harness.change_spec(recovery=Recovery("demo", UID, policy, frozenset(accept_loss)))


def said(harness: Harness, reason: str) -> list[str]:
    return [each.message for each in harness.world.events if each.reason == reason]


async def refused(harness: Harness) -> str:
    """Nothing is stored, and the reason says what to do."""
    await harness.ticks(20, 5.0)
    assert harness.state.failover.incomplete
    assert not any(row.version for row in harness.table().partitions)
    assert harness.table().members == {}
    assert said(harness, "RecoveryIncomplete")[-1] == harness.state.failover.incomplete
    return harness.state.failover.incomplete


async def test_a_new_cluster_takes_the_volumes_of_a_deleted_one() -> None:
    harness = await deleted()
    epochs = [volume.epoch for volume in harness.world.volumes.values()]
    await harness.until_quiet()
    assert harness.copies() == {2}
    assert harness.table().members.keys() == {0, 1, 2}
    assert harness.head().epoch > max(epochs)
    assert said(harness, "TableRecovered") == [
        "Merge of demo-0 (version sum 12), demo-1 (version sum 12), demo-2 (version sum 12); "
        "the tables differ in no partition"
    ]
    assert not said(harness, "TableAssigned")
    assert not harness.state.failover.lost
    check_state(harness)


async def test_nothing_begins_before_every_volume_has_reported() -> None:
    harness = await deleted()
    await harness.ticks(2)
    harness.cut(1)
    await harness.ticks(20, 1.0)
    assert not any(row.version for row in harness.table().partitions)
    assert not harness.state.failover.incomplete
    assert (await refused(harness)).startswith("demo-1 did not report within 60 s: the Events")
    harness.net.cut.clear()
    await harness.until_quiet()
    assert harness.copies() == {2}
    assert not harness.state.failover.incomplete


async def test_the_newest_row_of_each_partition_counts() -> None:
    """Members got the last rows at different times, and one accepted a row that was never stored."""
    harness = await formed(members=3, partitions=12)
    harness.change_spec(members=4)
    await harness.until(lambda: any(volume.accepted for volume in harness.world.volumes.values()))
    await harness.loop.close()
    versions = [max(volume.row(n).version for volume in harness.world.volumes.values()) for n in range(12)]
    delete_cluster(harness)
    want(harness)
    harness.start_master()
    await harness.until_quiet()
    assert all(row.version >= versions[n] for n, row in enumerate(harness.table().partitions))
    check_state(harness)


async def test_a_missing_volume_is_named_and_given_up_only_by_name() -> None:
    harness = await deleted()
    volume = harness.world.volumes.pop(1)
    text = await refused(harness)
    assert "demo-1 (no claim)" in text
    assert f"kubectl stele recover demo --from-uid {UID} --accept-loss demo-1" in text
    want(harness, "demo-2")
    assert "demo-1 (no claim)" in await refused(harness)
    want(harness, "demo-1")
    await harness.until_quiet()
    assert harness.copies() == {2}
    assert volume.uuid not in {each.uuid for each in harness.table().members.values()}
    assert not harness.state.failover.lost


async def test_what_only_a_missing_volume_held_stays_lost() -> None:
    harness = await deleted(replicas=1)
    rows = {n for n in range(12) if harness.world.volumes[0].row(n).replicas == (1,)}
    harness.world.volumes.pop(1)
    want(harness, "demo-1")
    for number in rows:
        harness.written.pop(number)
    await harness.ticks(60, 0.6)
    assert harness.state.failover.lost == rows


async def test_an_empty_volume_does_not_stand_for_the_one_that_is_missing() -> None:
    harness = await deleted()
    harness.world.volumes.pop(2)
    await harness.world.ensure_member(2)
    assert "demo-2 (the volume is that of another member)" in await refused(harness)


async def test_a_copied_volume_is_refused() -> None:
    harness = await deleted()
    await harness.ticks(2)
    harness.world.volumes[2].uuid = harness.world.volumes[1].uuid
    assert "demo-1 and demo-2 have one identity" in await refused(harness)


async def test_volumes_of_a_table_with_another_number_of_partitions_are_refused() -> None:
    harness = await deleted()
    harness.world.number = 31
    assert (await refused(harness)) == (
        "the table of demo-0 has 12 partitions, but spec.partitions is 31: "
        "delete this TabletCluster and recover with 12"
    )


async def test_without_claims_the_uid_or_the_name_is_wrong() -> None:
    harness = await deleted()
    harness.world.volumes.clear()
    assert await refused(harness) == (
        "no volume claim of cluster demo has the label stele.dev/cluster-uid=cluster-uid: "
        "correct the UID or the name"
    )


async def test_members_without_a_volume_of_the_cluster_are_removed_first() -> None:
    harness = await deleted()
    await harness.ticks(3)
    volume = harness.world.volumes.pop(2)
    await harness.ticks(30, 1.0)
    assert 2 not in harness.world.pods
    harness.world.volumes[2] = volume
    await harness.until_quiet()
    assert harness.copies() == {2}


@pytest.mark.parametrize("policy", ["MostRecent", "MostComplete"])
async def test_with_one_table_for_all_every_policy_takes_it(policy: str) -> None:
    harness = await deleted()
    want(harness, policy=RecoveryPolicy(policy))
    await harness.until_quiet()
    assert harness.copies() == {2}
    check_state(harness)


def advance(harness: Harness, partition: int, by: int, *indexes: int) -> None:
    """The last row of a partition, with another owner, reached only these members."""
    before = harness.world.volumes[0].row(partition)
    row = Row(partition, before.version + by, (*before.replicas[1:], before.replicas[0]))
    for index in indexes:
        harness.world.volumes[index].rows[partition] = row


NEWEST = "demo-0 (version sum 14)"
LARGEST = "demo-1 (version sum 13), demo-2 (version sum 13)"
POLICIES: dict[RecoveryPolicy, tuple[dict[int, int], str, tuple[int, ...]]] = {
    # Versions of rows, the choice as it is reported, and the members that have to be left out.
    RecoveryPolicy.MERGE: ({0: 3, 1: 2}, "", ()),
    RecoveryPolicy.MOST_RECENT: ({0: 3, 1: 1}, f"{NEWEST} and leaves out {LARGEST}", (1, 2)),
    RecoveryPolicy.MOST_COMPLETE: ({0: 1, 1: 2}, f"{LARGEST} and leaves out {NEWEST}", (0,)),
}


@pytest.mark.parametrize("policy", POLICIES)
async def test_of_tables_that_differ_each_policy_takes_another_one(policy: RecoveryPolicy) -> None:
    versions, choice, left_out = POLICIES[policy]
    harness = await deleted(replicas=3)
    advance(harness, 0, 2, 0)
    advance(harness, 1, 1, 1, 2)
    want(harness, policy=policy)
    if choice:
        names = [f"demo-{index}" for index in left_out]
        text = await refused(harness)
        assert f"{policy} takes the table of {choice}" in text
        assert text.endswith(" ".join(f"--accept-loss {name}" for name in names))
        for index in left_out:
            harness.world.volumes.pop(index).alive = False
        want(harness, *names, policy=policy)
    await harness.until(lambda: said(harness, "TableRecovered"))
    rows = harness.table().partitions
    assert {number: rows[number].version for number in versions} == versions
    await harness.until_quiet()
    assert harness.copies() == {3}
    check_state(harness)


INTERRUPTIONS = {
    "dies before": (False, crash),
    "dies after": (True, crash),
    "request lost": (False, lose),
    "answer lost": (True, lose),
}


async def recovered(fuse: Fuse) -> Harness:
    """A recovery after a scale-up that was under way, with a master that is interrupted."""
    harness = await formed(members=3, partitions=6)
    harness.change_spec(members=4)
    await harness.ticks(8)
    await harness.loop.close()
    delete_cluster(harness)
    want(harness)
    harness.start_master(fuse)
    try:
        await harness.until(lambda: harness.loop.state is not None and harness.state.recovered)
        await harness.ticks(3)
    except (Crash, SteleError):
        await harness.loop.close()
        harness.start_master()
    return harness


@pytest.mark.parametrize("how", INTERRUPTIONS)
async def test_an_interrupted_recovery_starts_again(how: str) -> None:
    after, act = INTERRUPTIONS[how]
    fuse = Fuse()
    await recovered(fuse)
    for at in range(1, fuse.count + 1):
        harness = await recovered(Fuse(at, after, act))
        await harness.until_quiet()
        assert harness.copies() == {2}, at
        assert not said(harness, "TableAssigned"), at
        check_state(harness)
        await harness.loop.close()


async def deleted_in(scenario: Scenario, at: int) -> Harness | None:
    """Delete the cluster when its master did that step of a change; None when there is no such step."""
    harness = await prepared(scenario)
    harness.start_master(Fuse(at, after=True))
    try:
        scenario.begin(harness)
        await finish(harness)
    except Crash:
        await harness.loop.close()
        delete_cluster(harness)
        harness.world.drained, harness.world.lite = set(), set()
        want(harness)
        harness.start_master()
        return harness
    await harness.loop.close()
    return None


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.forms])
async def test_a_cluster_that_is_deleted_at_any_step_of_a_change_comes_back_whole(name: str) -> None:
    at = 0
    while (harness := await deleted_in(SCENARIOS[name], at := at + 1)) is not None:
        try:
            await heal(harness)
            assert said(harness, "TableRecovered")
        except AssertionError as error:
            raise AssertionError(f"{name}, deleted after step {at}: {error}") from error
        await harness.loop.close()
    assert at > 1


def test_a_reply_without_a_table_is_not_taken_for_an_empty_volume() -> None:
    from stele.core.control.volumes import volume_of

    reply = ExchangeReply("OK", "", "uuid", UID, 1, epoch=4, stamp=17, member_list_version=3)
    assert volume_of("demo-0", reply) is None
