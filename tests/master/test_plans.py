"""What people say about plans, and plans that they make themselves, through the whole loop."""

from dataclasses import replace

import pytest

from stele.core.control.commands import Result
from stele.core.control.operations.move import Step
from stele.core.control.rebalance.planner import preview
from stele.core.control.requests import NamedMove
from tests.master.fuse import Crash, Fuse
from tests.master.harness import Harness, formed


async def test_a_plan_waits_for_its_approval_and_tells_what_it_would_do() -> None:
    harness = await formed(approval="Manual")
    record = await harness.proposed(members=4)
    assert harness.held(3) == set()
    assert record.planned.total() > 0
    assert record.bytes_planned > 0
    assert [each.reason for each in harness.world.events].count("RebalanceProposed") == 1
    harness.approve()
    await harness.until_quiet()
    harness.check_balanced(4, 2)
    assert [each.phase for each in harness.world.requests() if each.plan] == ["Done"]


async def test_missing_copies_are_made_without_approval() -> None:
    harness = await formed(approval="Manual")
    harness.kill(2)
    harness.clock += 31
    await harness.ticks(20)
    harness.clock += 31
    await harness.until_quiet()
    assert harness.copies() == {2}
    harness.change_spec(replicas=3)
    harness.revive(2)
    await harness.until_quiet()
    assert harness.copies() == {3}


async def test_a_changed_situation_makes_a_new_plan_that_is_not_approved() -> None:
    harness = await formed(approval="Manual")
    first = await harness.proposed(members=4)
    harness.approve()
    harness.change_spec(members=5)
    second = await harness.proposed()
    assert (first.phase, second.phase) == ("Superseded", "Proposed")
    assert first.situation != second.situation
    assert len(harness.held(4)) == 0


async def test_an_approval_outlives_two_masters() -> None:
    """What nobody approved is what the second finds: the plan of the first for what was left."""
    harness = await formed(partitions=24, approval="Manual", parallel_per_member=1)
    await harness.proposed(members=4)
    harness.approve()
    for held_at_least in (3, 8):
        await harness.until(lambda least=held_at_least: len(harness.held(3)) >= least)
        await harness.restart()
    await harness.until_quiet()
    harness.check_balanced(4, 2)


async def test_a_plan_that_waits_still_waits_after_the_master_was_replaced() -> None:
    harness = await formed(approval="Manual")
    await harness.proposed(members=4)
    await harness.restart()
    await harness.until_quiet()
    assert harness.progress.phase == "Proposed"
    assert harness.held(3) == set()


async def half_cancelled() -> Harness:
    """A fourth member took in a few partitions; then the plan was cancelled."""
    harness = await formed(partitions=24, parallel_per_member=1)
    harness.change_spec(members=4)
    await harness.until(lambda: len(harness.held(3)) >= 2)
    harness.world.ask(f"demo-{harness.state.plan_id}", cancel=True)
    await harness.until_quiet()
    return harness


async def test_a_cancelled_plan_stays_cancelled_when_the_master_is_replaced() -> None:
    harness = await half_cancelled()
    before = harness.held(3)
    assert len(before) < 8
    await harness.restart()
    await harness.until_quiet()
    assert harness.held(3) == before
    await harness.apply(members=5)
    harness.check_balanced(5, 2)


async def test_a_cancelled_proposal_is_over() -> None:
    harness = await formed(approval="Manual")
    record = await harness.proposed(members=4)
    harness.world.ask(f"demo-{harness.state.plan_id}", cancel=True)
    await harness.until_quiet()
    assert record.phase == "Superseded"
    assert harness.held(3) == set()


async def test_what_is_under_way_is_undone_when_its_user_says_so() -> None:
    harness = await formed(partitions=24, parallel_per_member=3)
    harness.change_spec(members=4)
    await harness.until(lambda: any(each.step is Step.CATCH_UP for each in _running(harness)))
    early = {each.partition for each in _running(harness) if each.step is Step.CATCH_UP}
    harness.world.ask(f"demo-{harness.state.plan_id}", cancel=True, roll_back=True)
    await harness.until_quiet()
    assert not early & harness.held(3)
    assert all(not each.copies and not each.learners for each in harness.world.volumes.values())


def _running(harness: Harness) -> list[object]:
    return [] if harness.loop.state is None else list(harness.state.operations.migrations.values())  # type: ignore[arg-type]


async def test_single_partitions_are_left_out_of_a_plan() -> None:
    harness = await formed(approval="Manual")
    record = await harness.proposed(members=4)
    numbers = sorted({each.partition for each in record.plan.migrations})
    name = f"demo-{harness.state.plan_id}"
    harness.world.ask(name, approved=True, cancelled=frozenset(numbers[:2]))
    before = [harness.table().partitions[number] for number in numbers[:2]]
    await harness.until_quiet()
    assert [harness.table().partitions[number] for number in numbers[:2]] == before
    assert harness.held(3)


def movable(harness: Harness, source: int, destination: int, number: int = 1) -> list[int]:
    some = harness.held(source) - harness.held(destination)
    return sorted(some)[:number]


@pytest.mark.parametrize("approval", ["Automatic", "Manual"])
async def test_a_user_moves_a_replica_and_balancing_leaves_it_there(approval: str) -> None:
    harness = await formed(approval=approval)
    numbers = movable(harness, 0, 2, 3)
    moves = tuple(NamedMove(number, "demo-0", "demo-2") for number in numbers)
    harness.world.ask("mine", moves=moves)
    await harness.until_quiet()
    assert harness.world.asked["mine"].phase == "Done"
    assert set(numbers) <= harness.held(2) - harness.held(0)
    assert harness.copies() == {2}
    versions = [row.version for row in harness.table().partitions]
    for _ in range(2):
        await harness.restart()
        await harness.until_quiet()
    if approval == "Automatic":
        assert [row.version for row in harness.table().partitions] == versions
        harness.check_balanced(3, 2)
    harness.world.ask("again", moves=moves)
    await harness.until_quiet()
    assert harness.world.asked["again"].phase == "Done"
    assert [row.version for row in harness.table().partitions] == versions


async def test_progress_of_a_user_s_plan_is_on_its_own_object() -> None:
    harness = await formed()
    number = movable(harness, 0, 2)[0]
    harness.world.ask("mine", moves=(NamedMove(number, "demo-0", "demo-2"),))
    record = None
    while record is None or record.phase != "Done":
        await harness.tick()
        record = harness.state.rebalance.user_plans.get("mine", record)
    assert record.planned == record.done
    assert record.done.total() >= 1
    assert record.bytes_copied > 0


async def test_a_user_s_plan_that_fails_again_and_again_waits_longer_each_time() -> None:
    harness = await formed()
    number = movable(harness, 0, 2)[0]
    harness.world.volumes[2]._Ingest = lambda c: Result("CORRUPT", "bytes")  # type: ignore[method-assign]
    harness.world.ask("mine", moves=(NamedMove(number, "demo-0", "demo-2"),))
    before = len(harness.world.events)
    await harness.ticks(600, 0.1)
    begun = [each for each in harness.world.events[before:] if each.reason == "RebalanceStarted"]
    assert 3 <= len(begun) <= 10, len(begun)
    assert harness.state.rebalance.retries.failed[number] >= 3
    assert number not in harness.held(2)


REFUSED = [
    (NamedMove(0, "demo-9", "demo-2"), "UNKNOWN_MEMBER", "there is no member demo-9; there are: demo-0"),
    (NamedMove(99, "demo-0", "demo-2"), "NOT_ALLOWED", "there is no partition 99; the last one is 11"),
    (NamedMove(0, "", "spare"), "UNKNOWN_MEMBER", "there is no member spare"),
]


@pytest.mark.parametrize(("move", "code", "said"), REFUSED)
async def test_a_move_that_breaks_a_rule_is_refused_with_the_reason(
    move: NamedMove, code: str, said: str
) -> None:
    await refused(await formed(), move, code, said)


async def refused(harness: Harness, move: NamedMove, code: str, said: str) -> None:
    before = harness.table().partitions
    harness.world.ask("mine", moves=(move,), phase="")
    await harness.tick()
    (found,) = harness.state.rebalance.user_plans["mine"].refusals.values()
    assert (found.reason, said in found.detail) == (code, True), found
    await harness.until_quiet()
    assert harness.table().partitions == before
    assert harness.world.asked["mine"].phase == "Failed"
    assert said in [each for each in harness.world.events if each.reason == "MovesRefused"][-1].message


async def test_moves_that_do_not_fit_the_row_are_refused() -> None:
    harness = await formed(members=4)
    holder, other = harness.table().partitions[0].replicas
    absent = sorted({0, 1, 2, 3} - {holder, other})
    cases = [
        (NamedMove(0, f"demo-{absent[0]}", f"demo-{absent[1]}"), "NOT_A_HOLDER", "holds no replica of it"),
        (NamedMove(0, f"demo-{holder}", f"demo-{other}"), "HOLDS_IT", "holds a replica of it already"),
        (NamedMove(0, "", f"demo-{absent[0]}"), "REPLICA_COUNT", "say in `from` who gives one up"),
        (NamedMove(0, f"demo-{holder}", ""), "REPLICA_COUNT", "it would be left with 1 of 2 replicas"),
    ]
    for move, code, said in cases:
        await refused(harness, move, code, said)


async def test_adding_and_removing_one_replica_is_a_move() -> None:
    harness = await formed()
    number = movable(harness, 0, 2)[0]
    harness.world.ask("mine", moves=(NamedMove(number, "", "demo-2"), NamedMove(number, "demo-0", "")))
    await harness.until_quiet()
    assert harness.world.asked["mine"].phase == "Done"
    assert number in harness.held(2) - harness.held(0)


async def test_a_user_chooses_who_gives_a_replica_up_and_who_gets_a_missing_one() -> None:
    harness = await formed(replicas=3, members=4)
    row = harness.table().partitions[0].replicas
    victim, absent = row[1], next(iter({0, 1, 2, 3} - set(row)))
    harness.change_spec(replicas=2)
    harness.world.ask("less", moves=(NamedMove(0, f"demo-{victim}", ""),))
    await harness.until_quiet()
    assert harness.world.asked["less"].phase == "Done"
    assert victim not in harness.table().partitions[0].members
    harness.change_spec(replicas=3)
    harness.world.ask("more", moves=(NamedMove(0, "", f"demo-{absent}"),))
    await harness.until_quiet()
    assert harness.world.asked["more"].phase == "Done"
    assert absent in harness.table().partitions[0].members
    assert harness.copies() == {3}


async def test_a_cancelled_user_s_plan_moves_nothing_more() -> None:
    harness = await formed(partitions=24, parallel_per_member=1)
    numbers = movable(harness, 0, 2, 5)
    harness.world.ask("mine", moves=tuple(NamedMove(n, "demo-0", "demo-2") for n in numbers))
    await harness.until(lambda: set(numbers) & harness.held(2))
    harness.world.ask("mine", cancel=True, roll_back=True)
    await harness.until_quiet()
    assert harness.world.asked["mine"].phase == "Superseded"
    assert set(numbers) - harness.held(2)
    harness.check_balanced(3, 2)


async def test_a_move_to_a_member_that_dies_is_refused_and_nothing_is_lost() -> None:
    harness = await formed(partitions=24, parallel_per_member=1)
    numbers = movable(harness, 0, 2, 5)
    harness.world.ask("mine", moves=tuple(NamedMove(n, "demo-0", "demo-2") for n in numbers))
    await harness.until(lambda: set(numbers) & harness.held(2))
    harness.kill(2)
    await harness.ticks(10)
    harness.clock += 31
    await harness.until_quiet()
    assert harness.world.asked["mine"].phase == "Failed"
    assert harness.copies() == {2}


async def test_a_preview_shows_what_changes_of_the_cluster_and_moves_would_do() -> None:
    harness = await formed()
    state, desired = harness.state, harness.world.desired()
    assert preview(state, (), desired, harness.clock).migrations == ()
    more = preview(state, (), replace(desired, members=4), harness.clock)
    assert {each.destination for each in more.migrations} >= {3}
    less = preview(state, (), replace(desired, members=2), harness.clock)
    assert all(2 not in row for row in less.targets)
    single = preview(state, (), replace(desired, replicas=1), harness.clock)
    assert {len(row) for row in single.targets} == {1}
    number = movable(harness, 0, 2)[0]
    moves = [NamedMove(number, "demo-0", "demo-2"), NamedMove(number, "demo-0", "demo-9")]
    moved = preview(state, (), desired, harness.clock, moves)
    assert 2 in moved.targets[number]
    assert [each.reason for each in moved.refusals] == ["UNKNOWN_MEMBER"]


async def test_an_object_of_the_same_name_is_another_plan() -> None:
    harness = await formed()
    first, second = movable(harness, 0, 2, 2)
    harness.world.ask("mine", uid="1", moves=(NamedMove(first, "demo-0", "demo-2"),))
    while harness.world.asked["mine"].phase != "Running":
        await harness.tick(1.1)
    harness.world.ask("mine", uid="2", phase="", moves=(NamedMove(second, "demo-0", "demo-2"),))
    await harness.until_quiet()
    assert harness.world.asked["mine"].phase == "Done"
    assert second in harness.held(2) - harness.held(0)


async def test_a_user_s_plan_waits_while_the_cluster_is_paused_and_can_be_cancelled_then() -> None:
    harness = await formed(paused=False)
    harness.change_spec(paused=True)
    number = movable(harness, 0, 2)[0]
    for name in ("one", "two"):
        harness.world.ask(name, moves=(NamedMove(number, "demo-0", "demo-2"),))
    await harness.ticks(4, 1.1)
    assert harness.world.asked["one"].phase == "Pending"
    harness.world.ask("one", cancel=True)
    harness.world.ask("two", cancel=True)
    await harness.until_quiet()
    await harness.apply(paused=False)
    assert {harness.world.asked[name].phase for name in ("one", "two")} == {"Superseded"}
    assert number in harness.held(0)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_moves_and_approved_plans_survive_a_master_that_dies_at_any_step(after: bool) -> None:
    for at in range(1, 80, 3):
        harness = await formed(partitions=6, approval="Manual")
        await harness.apply(members=4)
        harness.approve()
        number = movable(harness, 0, 2)[0]
        harness.world.ask("mine", moves=(NamedMove(number, "demo-0", "demo-2"),))
        await harness.loop.close()
        harness.start_master(Fuse(at, after))
        try:
            await harness.until_quiet()
        except Crash:
            await harness.restart()
            await harness.until_quiet()
        assert harness.world.asked["mine"].phase == "Done", at
        assert number in harness.held(2) - harness.held(0), at
        assert harness.held(3), at
        assert harness.copies() == {2}, at
        await harness.loop.close()


async def test_a_move_is_made_although_the_plan_of_the_same_situation_was_cancelled() -> None:
    harness = await half_cancelled()
    before = harness.held(3)
    number = movable(harness, 0, 3)[0]
    harness.world.ask("mine", moves=(NamedMove(number, "demo-0", "demo-3"),))
    await harness.until_quiet()
    assert harness.world.asked["mine"].phase == "Done"
    assert harness.held(3) == before | {number}
