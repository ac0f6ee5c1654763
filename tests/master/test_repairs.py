"""Rows that lack copies do not wait for the rest of a plan, through the whole loop."""

from itertools import pairwise

import pytest

from stele.core.control.commands import Ingest, Result
from stele.core.control.rebalance import planner
from stele.core.control.retries import RETRY_SECONDS
from stele.core.control.state import RebalanceProgress
from tests.master.harness import Harness, formed

PARTITIONS = 60


async def busy(**desired: object) -> Harness:
    """A fourth member takes its share, one partition at a time, and most of that is left."""
    harness = await formed(partitions=PARTITIONS, parallel_per_member=1, **desired)
    harness.change_spec(members=4)
    await harness.until(
        lambda: harness.state.rebalance.progress and len(harness.state.rebalance.queues) >= 20
    )
    for _ in range(int(planner.PLAN_PAUSE_SECONDS / 0.05) + 1):
        await harness.tick()
    assert len(harness.state.rebalance.queues) > 15
    return harness


def lose_a_backup(harness: Harness, but: int | None = None) -> int:
    """A tablet of a backup is put aside, because it was damaged: its partition, of which nothing runs.

    A master may not have heard yet of the one before, whose row still names the backup.
    """
    state = harness.state
    running = state.operations.migrations.keys() | state.rebalance.queues.waiting | {but}
    for number, row in enumerate(state.table.partitions):
        backup = row.replicas[1] if len(row.members) == 2 else None
        tablets = {} if backup is None else harness.world.volumes[backup].tablets
        if number not in running and number in tablets and 3 not in row.members:
            del tablets[number]
            return number
    raise AssertionError("no partition is whole and idle")


async def until_copied(harness: Harness, number: int, ticks: int = 400) -> int:
    """Tick until the partition has all copies again; what was left of the plan when the copy began."""
    left = -1
    for _ in range(ticks):
        await harness.tick()
        state = harness.state
        if (
            left < 0
            and number in state.operations.migrations
            and state.operations.migrations[number].migration.adds
        ):
            left = len(state.rebalance.queues)
        if left >= 0 and len(state.table.partitions[number].members) == 2:
            return left
    raise AssertionError(f"{number} is {harness.state.table.partitions[number]}")


async def finished(harness: Harness, record: RebalanceProgress) -> None:
    await harness.until_quiet(ticks=3000)
    harness.check_balanced(4, 2)
    assert record.phase == "Done"
    assert record.planned == record.done


async def test_a_row_that_shrinks_while_a_plan_runs_is_repaired_at_once() -> None:
    harness = await busy()
    record = harness.progress
    number = lose_a_backup(harness)
    left = await until_copied(harness, number)
    assert left > 10, f"with {left} migrations left"
    assert harness.progress is record
    await finished(harness, record)


async def test_a_partition_that_began_anew_while_a_plan_runs_gets_its_copies_at_once() -> None:
    harness = await busy(on_partition_loss="ResetToEmpty")
    number = lose_a_backup(harness)
    owner = harness.state.table.partitions[number].owner
    assert owner is not None
    del harness.world.volumes[owner].tablets[number]
    harness.written.pop(number)
    await harness.until(lambda: number in harness.state.failover.lost)
    harness.clock += harness.world.wanted.timing.grace
    left = await until_copied(harness, number)
    assert left > 10, f"with {left} migrations left"


async def test_a_row_that_shrinks_while_a_plan_waits_for_approval_is_repaired_at_once() -> None:
    harness = await formed(partitions=PARTITIONS, approval="Manual")
    record = await harness.proposed(members=4)
    waiting = record.planned.total()
    number = lose_a_backup(harness)
    await until_copied(harness, number)
    await harness.until_quiet()
    assert harness.copies() == {2}
    assert (harness.progress, record.phase) == (record, "Proposed")
    assert abs(record.planned.total() - waiting) <= 2


async def test_a_row_that_shrinks_while_the_place_of_another_member_is_kept_is_planned_for_at_once() -> None:
    """So many rows as before wait for the member that is away; which of them is all the same."""
    harness = await formed(members=4, partitions=PARTITIONS)
    harness.kill(3)
    await harness.until(lambda: not harness.held(3))
    for _ in range(int(planner.PLAN_PAUSE_SECONDS / 0.05)):
        await harness.tick()
    waiting = short(harness)
    lose_a_backup(harness)
    await harness.ticks(100)
    assert 0 < short(harness) <= waiting


def short(harness: Harness) -> int:
    """How many rows lack a copy."""
    return sum(len(row.members) < 2 for row in harness.table().partitions)


async def test_an_approved_plan_stays_approved_when_a_row_shrinks() -> None:
    harness = await formed(partitions=PARTITIONS, approval="Manual", parallel_per_member=1)
    record = await harness.proposed(members=4)
    harness.world.ask(f"demo-{harness.state.plan_id}", approved=True)
    await harness.until(lambda: record.done.total() >= 3)
    number = lose_a_backup(harness)
    assert await until_copied(harness, number) > 10
    assert harness.progress is record
    await finished(harness, record)


def fail_copies(harness: Harness, number: int, times: int) -> list[float]:
    """Copies of a partition fail so often at each member; when they did."""
    failed: list[float] = []
    for volume in harness.world.volumes.values():

        def ingest(c: Ingest, plain: object = volume._Ingest) -> Result:
            if number not in c.partitions or len(failed) >= times:
                return plain(c)  # type: ignore[operator, no-any-return]
            failed.append(harness.clock)
            return Result("DISK_ERROR", "it does not write")

        volume._Ingest = ingest  # type: ignore[method-assign]
    return failed


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)], ids=["joins", "leaves"])
async def test_an_approval_outlives_a_plan_of_which_a_move_that_failed_is_left(
    before: int, after: int
) -> None:
    """While the move pauses, a row shrinks and what is left is planned again without the move."""
    harness = await formed(before, PARTITIONS, approval="Manual", parallel_per_member=1)
    record, state = await harness.proposed(members=after), harness.state
    number = next(each.partition for each in record.plan.migrations if 3 in (each.source, each.destination))
    failed = fail_copies(harness, number, times=1)
    state.rebalance.retries.failed[number] = 10
    harness.world.ask(f"demo-{state.plan_id}", approved=True)
    await harness.until(lambda: failed and number not in state.operations.migrations)
    await until_copied(harness, lose_a_backup(harness, but=number))
    await harness.until(lambda: record.finished_seconds is not None)
    assert number in state.rebalance.retries.paused(harness.clock)
    assert (record.phase, record.planned) == ("Superseded", record.done)
    await harness.until(lambda: not state.rebalance.retries.pauses)
    await harness.until_quiet()
    harness.check_balanced(after, 2)
    assert [each.reason for each in harness.world.events].count("RebalanceProposed") == 1
    assert state.rebalance.approved == ""


async def test_a_repair_that_fails_once_is_made_again_while_the_plan_goes_on() -> None:
    harness = await busy()
    record = harness.progress
    number = lose_a_backup(harness)
    failed = fail_copies(harness, number, times=1)
    await harness.until(lambda: failed)
    left = await until_copied(harness, number)
    assert left > 5, f"with {left} migrations left"
    assert harness.clock - failed[0] < RETRY_SECONDS + planner.PLAN_PAUSE_SECONDS + 1
    await finished(harness, record)
    assert (record.failed, record.failures) == (1, {})


async def test_a_repair_that_fails_for_ever_pauses_longer_each_time_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await busy()
    record, made, plain = harness.progress, list[float](), planner.plan_migrations
    monkeypatch.setattr(planner, "plan_migrations", lambda *a: (made.append(harness.clock), plain(*a))[1])
    number = lose_a_backup(harness)
    failed = fail_copies(harness, number, times=1000)
    began = harness.clock
    while record.finished_seconds is None or harness.clock < began + 60:
        await harness.tick(0.05 if record.finished_seconds is None else 0.25)
    assert all(len(row.members) == 2 for n, row in enumerate(harness.table().partitions) if n != number)
    waits = [later - sooner for sooner, later in pairwise(failed)]
    assert 4 <= len(waits) <= 10, waits
    assert waits[-1] > 8
    assert len(made) <= 2 * len(failed) + 4


async def test_a_cancelled_plan_is_not_made_again_because_a_row_shrinks() -> None:
    harness = await busy()
    harness.world.ask(f"demo-{harness.state.plan_id}", cancel=True)
    await harness.until_quiet()
    lose_a_backup(harness)
    await harness.until_quiet()
    assert harness.copies() == {1, 2}
    harness.change_spec(members=3)
    await harness.until_quiet(ticks=3000)
    assert harness.copies() == {2}


async def test_rows_that_shrink_one_after_the_other_make_one_plan_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await busy()
    made, plain = list[float](), planner.plan_migrations
    monkeypatch.setattr(planner, "plan_migrations", lambda *a: (made.append(harness.clock), plain(*a))[1])
    for _ in range(8):
        lose_a_backup(harness)
        await harness.ticks(5)
    assert 0 < len(made) <= 8 * 5 * 0.05 / planner.PLAN_PAUSE_SECONDS + 1
