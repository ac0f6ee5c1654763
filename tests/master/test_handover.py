"""Members that are to own nothing, through the whole loop: emptied at once, and left alone until released."""

import pytest

from stele.core.control.commands import Fence, HandOver, Result
from stele.core.control.progress import RebalanceProgress
from stele.core.control.rebalance import handover
from stele.core.control.rebalance.handover import HandoverProgress, demote, handover_progress, release
from stele.core.control.requests import NamedHandover
from stele.core.control.state import Observation
from stele.core.formats import FIRST, SWAPS, FormatRange
from stele.core.placement.migration import Type
from tests.fakes.members import FakeMember
from tests.master.harness import Harness, formed, of_the_format_before

PARTITIONS = 24


def progress(harness: Harness, member: int) -> HandoverProgress:
    world = harness.world
    seen = Observation(harness.clock, world.desired(), world.member_objects())
    return handover_progress(harness.state, seen, member)


def owned(harness: Harness, member: int) -> int:
    return harness.counts()[member][0]


async def emptied(harness: Harness, member: int = 0, ticks: int = 60) -> None:
    """Tick until the member owns nothing."""
    demote(harness.state, "a test", member)
    for _ in range(ticks):
        await harness.tick()
        if progress(harness, member).done:
            return
    raise AssertionError(f"member {member} still owns {owned(harness, member)}: {progress(harness, member)}")


async def test_a_member_is_emptied_without_a_copy_and_gets_its_share_back() -> None:
    harness = await formed(partitions=PARTITIONS)
    before = harness.held(0)
    assert progress(harness, 0).left == owned(harness, 0) > 0
    await emptied(harness)
    await harness.until_quiet()
    assert (owned(harness, 0), harness.held(0)) == (0, before)
    assert abs(owned(harness, 1) - owned(harness, 2)) <= 1
    release(harness.state, "a test")
    await harness.until_quiet()
    harness.check_balanced(3, 2)
    assert owned(harness, 0) == PARTITIONS // 3
    assert harness.held(0) == before, "nothing was copied"


async def test_nothing_is_planned_back_to_it() -> None:
    harness = await formed(partitions=PARTITIONS, replicas=3)
    await emptied(harness)
    await harness.apply(members=4)
    await harness.apply(members=3)
    assert owned(harness, 0) == 0
    harness.kill(1)
    await harness.ticks(20, 0.5)
    assert owned(harness, 0) == 0, "what it got by the failover was handed over again"


async def test_it_goes_before_everything_that_is_planned() -> None:
    """One migration at a time of a plan that takes long; copies of what it owns are rolled back."""
    harness = await formed(partitions=60, parallel_per_member=1)
    harness.change_spec(members=4)
    await harness.until(
        lambda: harness.state.rebalance.progress and len(harness.state.rebalance.queues) >= 20
    )
    left = len(harness.state.rebalance.queues)
    await emptied(harness, ticks=30)
    assert len(harness.state.rebalance.queues) > left / 2
    await harness.until_quiet(2_000)
    assert owned(harness, 0) == 0


async def test_only_some_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "SWAPS_PER_MEMBER_MAX", 2)
    harness = await formed(partitions=PARTITIONS)
    demote(harness.state, "a test", 0)
    most = 0
    while not progress(harness, 0).done:
        await harness.tick()
        running = harness.state.operations.migrations.values()
        assert all(each.migration.type is Type.SWAP for each in running)
        most = max(most, len(running))
    assert most == 2


@pytest.mark.parametrize("forbids", [{"state": "NoMigration"}, {"migration_paused": True}, {"paused": True}])
async def test_it_waits_while_migrations_may_not_start(forbids: dict[str, object]) -> None:
    harness = await formed(partitions=PARTITIONS)
    await harness.apply(**forbids)
    before = owned(harness, 0)
    demote(harness.state, "a test", 0)
    await harness.ticks(20)
    assert owned(harness, 0) == before
    harness.change_spec(state="Active", migration_paused=False, paused=False)
    await harness.until(lambda: progress(harness, 0).done)


async def test_no_approval_is_needed_and_none_is_lost() -> None:
    harness = await formed(partitions=PARTITIONS, approval="Manual")
    proposed = await harness.proposed(members=4)
    await emptied(harness)
    assert harness.progress.situation == proposed.situation
    assert harness.progress.phase == "Proposed"
    harness.approve()
    await harness.until_quiet()
    assert owned(harness, 0) == 0


async def test_a_single_replica_stays_and_says_why() -> None:
    harness = await formed(partitions=PARTITIONS, replicas=1)
    demote(harness.state, "a test", 0)
    await harness.ticks(20)
    found = progress(harness, 0)
    assert (found.left, found.ended, found.done) == (owned(harness, 0), True, False)
    assert {(each.reason, each.detail) for each in found.refusals} == {
        ("NO_BACKUP", "it has a single replica, so no other member can own it")
    }


async def test_a_backup_that_is_behind_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await formed(partitions=6)
    real = FakeMember._HandOver
    behind = [True]

    def refuse(self: FakeMember, c: HandOver) -> Result:
        return Result("BACKUP_BEHIND", "a test") if behind[0] else real(self, c)

    monkeypatch.setattr(FakeMember, "_HandOver", refuse)
    demote(harness.state, "a test", 0)
    await harness.ticks(30)
    assert owned(harness, 0) > 0
    behind[0] = False
    await harness.until(lambda: progress(harness, 0).done)


async def test_two_members_are_emptied_onto_the_third() -> None:
    harness = await formed(partitions=PARTITIONS, replicas=3)
    demote(harness.state, "one", 0)
    demote(harness.state, "another", 1)
    await harness.until(lambda: progress(harness, 0).done and progress(harness, 1).done)
    assert owned(harness, 2) == PARTITIONS
    demote(harness.state, "again", 1)
    release(harness.state, "another")
    release(harness.state, "none")
    await harness.until_quiet()
    assert (owned(harness, 0), owned(harness, 1)) == (0, 0)


async def test_rows_whose_owner_is_being_replaced_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await formed(partitions=6)
    real, leases = FakeMember._Fence, [True]

    def wait(self: FakeMember, c: Fence) -> Result:
        return Result("WAIT", wait_ms=10) if leases[0] else real(self, c)

    monkeypatch.setattr(FakeMember, "_Fence", wait)
    harness.cut(0)
    await harness.until(lambda: harness.state.operations.promotions)
    harness.net.cut.clear()
    demote(harness.state, "a test", 0)
    await harness.ticks(20)
    assert harness.state.operations.promotions
    leases[0] = False
    await harness.until(lambda: progress(harness, 0).done)
    await harness.until_quiet()


async def test_a_new_leadership_forgets_what_is_not_asked_for_again() -> None:
    harness = await formed(partitions=PARTITIONS)
    demote(harness.state, "a test", 0)
    await harness.ticks(2)
    await harness.restart()
    await harness.until_quiet()
    harness.check_balanced(3, 2)
    assert owned(harness, 0) > 0


# -- by users


async def asked(harness: Harness, member: str, to: str = "") -> RebalanceProgress:
    """The plan of a TabletRebalance, once nothing happens any more."""
    harness.world.ask("by-hand", uid="u", handover=NamedHandover(member, to))
    await harness.tick()
    plan = harness.state.rebalance.user_plans["by-hand"]
    await harness.until_quiet()
    return plan


async def test_a_user_hands_over_until_the_object_is_gone() -> None:
    harness = await formed(partitions=PARTITIONS)
    before = owned(harness, 0)
    plan = await asked(harness, "demo-0")
    assert (plan.phase, plan.done, plan.planned) == ("Done", {Type.SWAP: before}, {Type.SWAP: before})
    assert owned(harness, 0) == 0
    assert "HandedOver" in {event.reason for event in harness.world.events}
    await harness.restart()
    await harness.until_quiet()
    assert owned(harness, 0) == 0, "also for the next master"
    del harness.world.asked["by-hand"]
    await harness.until_quiet()
    harness.check_balanced(3, 2)
    assert owned(harness, 0) > 0


async def test_a_user_cancels_a_hand_over_that_is_done() -> None:
    harness = await formed(partitions=PARTITIONS)
    await asked(harness, "demo-0")
    harness.world.ask("by-hand", cancel=True)
    await harness.until_quiet()
    harness.check_balanced(3, 2)
    assert owned(harness, 0) > 0


async def test_a_hand_over_to_one_member_says_what_stays() -> None:
    harness = await formed(partitions=PARTITIONS)
    rows = harness.table().partitions
    possible = sum(row.replicas == (0, 1) for row in rows)
    plan = await asked(harness, "demo-0", "demo-1")
    assert (plan.phase, plan.done[Type.SWAP]) == ("Done", possible)
    assert owned(harness, 0) == len(plan.refusals)
    assert {each.reason for each in plan.refusals.values()} == {"NOT_A_HOLDER"}


@pytest.mark.parametrize(
    ("member", "to", "code"),
    [
        ("demo-9", "", "UNKNOWN_MEMBER"),
        ("demo-0", "demo-9", "UNKNOWN_MEMBER"),
        ("demo-0", "demo-2", "MEMBER_LITE"),
    ],
)
async def test_what_makes_no_sense_is_refused(member: str, to: str, code: str) -> None:
    harness = await formed(partitions=PARTITIONS)
    harness.world.lite = {2}
    await harness.until_quiet()
    before = owned(harness, 0)
    plan = await asked(harness, member, to)
    assert (plan.phase, [each.reason for each in plan.refusals.values()]) == ("Failed", [code])
    assert owned(harness, 0) == before


async def test_a_hand_over_of_a_member_that_was_removed_is_done() -> None:
    harness = await formed(partitions=PARTITIONS, members=4)
    harness.change_spec(migration_paused=True)
    harness.world.ask("by-hand", uid="u", handover=NamedHandover("demo-3"))
    await harness.ticks(3)
    await harness.apply(members=3, migration_paused=False)
    assert 3 not in harness.table().members
    assert harness.world.asked["by-hand"].phase == "Done"
    assert not harness.state.rebalance.demotions


# -- builds that do not know SWAPs


async def test_nothing_is_swapped_until_all_members_know_swaps() -> None:
    """Neither by a hand-over nor by a plan, and nothing waits for it, or the features would never rise."""
    harness = await of_the_format_before(2, partitions=4, replicas=2)
    assert harness.state.operations.change.features < SWAPS
    demote(harness.state, "a test", 0)
    await harness.until_quiet()
    assert progress(harness, 0).ended
    release(harness.state, "a test")
    harness.world.weights = {1: 3}
    await harness.until_quiet()
    assert owned(harness, 1) == 2
    for member in harness.world.volumes.values():
        member.formats = FormatRange(FIRST, SWAPS)
    await harness.until_quiet()
    assert harness.state.operations.change.features == SWAPS
    assert owned(harness, 1) == 3
