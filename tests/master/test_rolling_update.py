"""Members restart one after the other, and those that stop are emptied before."""

import pytest

from stele.core.control.commands import OpenSession, Result
from stele.core.control.rebalance import handover
from stele.core.control.state import UpdatePolicy, UpdateType
from tests.fakes.members import FakeMember
from tests.master.fuse import Fuse
from tests.master.harness import Harness, formed


def outdated(harness: Harness) -> set[int]:
    return {index for index, pod in harness.world.pods.items() if pod.outdated}


def watch_restarts(harness: Harness) -> None:
    """Nobody waits for a restarted member: no row names it, and the others have all copies but its own."""

    def check(index: int) -> None:
        rows = harness.table().partitions
        alone = [number for number, row in enumerate(rows) if row.members == {index}]
        assert not harness.held(index) or harness.held(index) == set(alone)
        assert all(member.alive for at, member in harness.world.volumes.items() if at != index)
        for number, row in enumerate(rows):
            assert len(row.members) >= harness.world.wanted.replicas - 1, (number, row)

    harness.world.on_restart = check


def forbid_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy session would be a copy that nobody needs."""

    def refuse(member: FakeMember, command: OpenSession) -> Result:
        raise AssertionError(f"{member.address} is copied: {command}")

    monkeypatch.setattr(FakeMember, "_OpenSession", refuse)


@pytest.mark.parametrize("partitions", [12, 31])
@pytest.mark.parametrize(("members", "replicas"), [(3, 2), (3, 3), (4, 2), (2, 2), (5, 3)])
async def test_members_restart_one_after_the_other_without_a_copy(
    members: int, replicas: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """31 partitions are no multiple of the members: a member may hold one more than its share."""
    harness = await formed(members - 1, partitions, replicas=min(replicas, members - 1))
    await harness.apply(members=members, replicas=replicas)
    forbid_copies(monkeypatch)
    watch_restarts(harness)
    harness.world.outdate()
    await harness.until_quiet(ticks=2000)
    assert harness.world.restarts == sorted(range(members), reverse=True)
    assert not outdated(harness)
    assert not harness.world.restarting
    plans = [event.message for event in harness.world.events if event.reason == "RebalanceStarted"]
    assert not [text for text in plans if "expected back" in text], "nothing is made in place of a member"
    assert not [event for event in harness.world.events if event.reason == "RebalanceIncomplete"]
    harness.check_balanced(members, replicas)


async def test_no_member_restarts_while_one_cannot_read_its_users() -> None:
    """It would have none, and let nobody in."""
    harness = await formed(3, 6)
    harness.world.volumes[1].users_problem = "file of users: not JSON"
    await harness.ticks(5, 1.0)
    harness.world.outdate()
    await harness.until(lambda: harness.state.stops.update_waits)
    await harness.ticks(50, 1.0)
    assert harness.state.stops.update_waits.startswith("demo-1 cannot read the file of users")
    assert not harness.world.restarts
    harness.world.volumes[1].users_problem = ""
    await harness.until_quiet(ticks=2000)
    assert harness.world.restarts == [2, 1, 0]


async def test_the_next_master_goes_on() -> None:
    harness = await formed(3, 6)
    watch_restarts(harness)
    harness.world.outdate()
    await harness.until(lambda: harness.world.restarts)
    await harness.loop.close()
    harness.start_master(Fuse())
    await harness.until_quiet(ticks=2000)
    assert harness.world.restarts == [2, 1, 0]
    assert not harness.world.restarting


async def test_a_member_that_does_not_come_back_stops_the_update_until_the_spec_is_set_right() -> None:
    harness = await formed(3, 6)
    harness.world.broken = "ErrImagePull: no such image"
    harness.world.outdate()
    await harness.until(lambda: harness.state.stops.update_problem)
    assert harness.state.stops.update_problem == (
        "demo-2 does not come back after its restart: ErrImagePull: no such image"
    )
    await harness.ticks(50, 1.0)
    assert harness.world.restarts == [2]
    assert harness.copies() == {1, 2}, "its place is kept"
    harness.world.broken = ""
    harness.world.pods[2].outdated = True
    await harness.until_quiet(ticks=2000)
    assert harness.world.restarts == [2, 2, 1, 0]
    assert harness.state.stops.update_problem == ""
    harness.check_balanced(3, 2)


async def with_wrong_image(members: int = 3, **desired: object) -> Harness:
    """A new cluster whose pods cannot start."""
    harness = Harness(members=members, partitions=6, **desired)  # type: ignore[arg-type]
    harness.world.broken = "ErrImagePull: no such image"
    await harness.until(lambda: len(harness.world.pods) == members)
    await harness.ticks(50, 1.0)
    return harness


async def correct_image(harness: Harness) -> None:
    harness.world.broken = ""
    harness.world.outdate()
    await harness.ticks(100, 1.0)


@pytest.mark.parametrize(
    "update",
    [
        UpdatePolicy(UpdateType.ROLLING_UPDATE, False, 0),
        UpdatePolicy(UpdateType.ROLLING_UPDATE, True, 0),
        UpdatePolicy(UpdateType.ROLLING_UPDATE, False, 3),
    ],
)
async def test_a_first_image_that_is_wrong_is_replaced_once_it_is_corrected(update: UpdatePolicy) -> None:
    """Nothing is restarted: nothing ever ran. So what keeps members from being restarted does not count."""
    harness = await with_wrong_image(update=update)
    assert not harness.world.replaced, "another pod would not start either"
    await correct_image(harness)
    assert sorted(harness.world.replaced) == [0, 1, 2]
    assert not harness.world.restarts
    told = [event.message for event in harness.world.events if event.reason == "MemberPodReplaced"]
    assert told == [
        f"the pod of demo-{each} never started and is outdated: it gets another one" for each in range(3)
    ]
    harness.check_balanced(3, 2)


async def test_a_member_that_is_new_gets_the_corrected_image_and_the_others_are_left_alone() -> None:
    harness = await formed(3, 6, update=UpdatePolicy(UpdateType.ROLLING_UPDATE, True, 0))
    harness.world.broken = "ErrImagePull: no such image"
    harness.change_spec(members=4)
    await harness.until(lambda: 3 in harness.world.pods)
    await correct_image(harness)
    assert harness.world.replaced == [3]
    assert not harness.world.restarts
    harness.check_balanced(4, 2)


@pytest.mark.parametrize(
    "held_back",
    [{"update": UpdatePolicy(UpdateType.ON_DELETE, False, 0)}, {"paused": True}],
)
async def test_pods_that_never_started_stay_where_users_say_so(held_back: dict[str, object]) -> None:
    harness = await with_wrong_image(update=UpdatePolicy(UpdateType.ROLLING_UPDATE, False, 0))
    harness.change_spec(**held_back)
    await correct_image(harness)
    assert not harness.world.replaced


async def test_a_pod_that_never_started_stays_when_its_member_has_joined_before() -> None:
    """The member list was lost: its volume may have what no other one has."""
    harness = await with_wrong_image()
    harness.world.joined = {1}
    await correct_image(harness)
    assert sorted(harness.world.replaced) == [0, 2]


async def test_a_pod_that_started_stays_although_its_member_did_not_join() -> None:
    harness = await with_wrong_image(members=2)
    harness.world.pods[1].problem = ""
    await correct_image(harness)
    assert harness.world.replaced == [0]


async def test_the_place_of_a_member_is_kept_for_a_time_only() -> None:
    harness = await formed(4, 6)
    harness.world.broken = "Unschedulable: too little memory"
    harness.world.outdate()
    await harness.until(lambda: harness.state.stops.update_problem)
    await harness.ticks(700, 1.0)
    assert harness.copies() == {2}, "the copies are made elsewhere"
    assert harness.world.restarts == [3]


async def test_an_outdated_member_that_dies_keeps_its_place_no_longer_than_others() -> None:
    """Its pod is replaced at once; when that does not start either, nobody waits 10 minutes for it."""
    harness = await formed(4, 6, update=UpdatePolicy(UpdateType.ROLLING_UPDATE, False, 3))
    harness.world.broken = "ErrImagePull: no such image"
    harness.kill(3)
    harness.world.outdate()
    await harness.until(lambda: harness.world.restarts)
    await harness.ticks(int(harness.world.wanted.timing.grace) + 60, 1.0)
    assert harness.world.restarts == [3]
    assert harness.copies() == {2}, "the copies are made elsewhere"
    assert harness.state.stops.update_problem, "it is still shown"


@pytest.mark.parametrize(
    ("policy", "restarts", "why"),
    [
        (UpdatePolicy(UpdateType.ON_DELETE, False, 0), [], "spec.updateStrategy.type is OnDelete"),
        (UpdatePolicy(UpdateType.ROLLING_UPDATE, True, 0), [], "spec.updateStrategy.paused is true"),
        (UpdatePolicy(UpdateType.ROLLING_UPDATE, False, 2), [2], "spec.updateStrategy.partition is 2: "),
    ],
)
async def test_members_are_restarted_as_the_strategy_says(
    policy: UpdatePolicy, restarts: list[int], why: str
) -> None:
    harness = await formed(3, 6, update=policy)
    harness.world.outdate()
    await harness.until_quiet(ticks=2000)
    assert harness.world.restarts == restarts
    assert harness.state.stops.update_waits.startswith(why)
    await harness.apply(update=UpdatePolicy(UpdateType.ROLLING_UPDATE, False, 0))
    assert not outdated(harness)


async def test_nobody_is_restarted_while_migrations_are_paused() -> None:
    """Nothing could be handed over."""
    harness = await formed(3, 6, migration_paused=True)
    watch_restarts(harness)
    harness.world.outdate()
    await harness.until_quiet(ticks=500)
    assert not harness.world.restarts
    assert harness.state.stops.update_waits.startswith("spec.migration.paused is true")
    await harness.apply(migration_paused=False)
    assert harness.world.restarts == [2, 1, 0]


@pytest.mark.parametrize("replicas", [2, 3])
async def test_the_member_that_is_emptied_stays_when_another_is_lost(replicas: int) -> None:
    harness = await formed(4, 12, replicas=replicas)
    watch_restarts(harness)
    harness.world.outdate()
    await harness.until(lambda: harness.state.stops.updating == 3)
    harness.cut(1)
    await harness.ticks(200)
    assert not harness.world.restarts
    assert harness.state.stops.update_waits == "demo-1 does not answer"
    assert harness.held(3), "it has its copies again"
    harness.net.cut.clear()
    await harness.until_quiet(ticks=2000)
    assert harness.world.restarts == [3, 2, 1, 0]
    harness.check_balanced(4, replicas)


async def test_an_update_that_is_taken_back_empties_nobody() -> None:
    harness = await formed(3, 6)
    harness.world.outdate()
    await harness.until(lambda: harness.state.stops.since)
    for pod in harness.world.pods.values():
        pod.outdated = False
    await harness.until_quiet(ticks=2000)
    assert not harness.world.restarts
    harness.check_balanced(3, 2)


async def test_a_pod_that_is_deleted_is_emptied_and_its_place_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await formed(3, 6)
    forbid_copies(monkeypatch)
    harness.world.pods[1].terminating = True
    await harness.until(lambda: 1 in harness.state.stops.may_stop)
    assert not harness.held(1)
    harness.kill(1)
    await harness.ticks(10)
    harness.world.pods[1].terminating = False
    harness.revive(1)
    await harness.until_quiet(ticks=2000)
    harness.check_balanced(3, 2)


async def test_what_a_member_left_is_not_copied_while_a_row_of_it_is_not_served_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may not stop yet, and has left other rows: they wait for it all the same."""
    harness = await formed(3, 6)
    forbid_copies(monkeypatch)
    harness.world.pods[1].terminating = True
    await harness.until(lambda: harness.state.stops.left.get(1))
    before = harness.table().partitions
    with monkeypatch.context() as patched:
        patched.setattr(handover, "_unsettled", lambda state, member, owned: 1)
        await harness.ticks(40, 0.6)
        assert not harness.state.stops.emptied
    await harness.until(lambda: 1 in harness.state.stops.may_stop)
    assert harness.table().partitions == before


@pytest.mark.parametrize("state", ["Frozen", "Passive"])
async def test_nothing_is_moved_off_a_member_while_the_state_forbids_it(state: str) -> None:
    harness = await formed(3, 6)
    await harness.apply(state=state)
    before = harness.table().partitions
    harness.world.pods[1].terminating = True
    await harness.until(lambda: 1 in harness.state.stops.may_stop)
    await harness.ticks(20)
    assert harness.table().partitions == before


async def test_last_copies_stay_where_they_are() -> None:
    harness = await formed(3, 6, replicas=1)
    before = harness.table().partitions
    harness.world.pods[1].terminating = True
    await harness.until(lambda: 1 in harness.state.stops.may_stop)
    assert harness.table().partitions == before


async def test_two_members_that_stop_together_do_not_hand_over_to_each_other() -> None:
    harness = await formed(3, 12, replicas=2)
    for index in (0, 1):
        harness.world.pods[index].terminating = True
    await harness.until(lambda: harness.state.stops.may_stop == {0, 1})
    both = [row for row in harness.table().partitions if row.members == {0, 1}]
    assert both, "rows of these two keep both copies"
    assert all(row.owner == 2 for row in harness.table().partitions if 2 in row.members)
