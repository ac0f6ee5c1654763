"""While a member is unreachable and may return its place is kept, and everything else goes on."""

import pytest

from stele.core.control.requests import NamedMove
from tests.master.harness import Harness, formed
from tests.master.world import TIMING


async def lost(harness: Harness, index: int) -> set[int]:
    """The member is gone and out of all rows that others have, its grace period has just begun; what it
    held."""
    before = harness.held(index)
    harness.kill(index)
    await harness.until_quiet()
    assert not harness.held(index)
    assert in_grace(harness, index)
    return before


def in_grace(harness: Harness, index: int) -> bool:
    return harness.state.membership.liveness[index].in_grace(harness.clock, TIMING)


async def test_nobody_gets_what_a_member_held_that_may_return() -> None:
    harness = await formed(members=4, partitions=24)
    before = await lost(harness, 1)
    rows = harness.table().partitions
    assert {number for number, row in enumerate(rows) if len(row.members) == 1} == before
    assert in_grace(harness, 1)
    harness.revive(1)
    await harness.until_quiet()
    assert harness.held(1) == before
    harness.check_balanced(4, 2)


async def test_a_member_joins_while_another_s_place_is_kept() -> None:
    harness = await formed(members=4, partitions=40)
    before = await lost(harness, 1)
    await harness.apply(members=5)
    assert in_grace(harness, 1)
    taken = harness.held(4)
    assert len(taken) >= 40 * 2 // 5 - 2, "its share of what the others have"
    single = {number for number, row in enumerate(harness.table().partitions) if len(row.members) == 1}
    assert single <= before
    harness.revive(1)
    await harness.until_quiet()
    harness.check_balanced(5, 2)


async def test_a_member_is_drained_while_another_s_place_is_kept() -> None:
    harness = await formed(members=5, partitions=20)
    await lost(harness, 1)
    harness.world.drained.add(0)
    harness.change_spec(members=4)
    await harness.until_quiet(ticks=150)
    assert in_grace(harness, 1)
    assert 0 not in harness.table().members
    harness.revive(1)
    await harness.until_quiet()
    harness.check_balanced(4, 2)


@pytest.mark.parametrize(("destination", "phase"), [(3, "Done"), (1, "Running")])
async def test_a_user_s_move_waits_only_for_a_destination_whose_place_is_kept(
    destination: int, phase: str
) -> None:
    harness = await formed(members=4, partitions=24)
    await lost(harness, 1)
    number = next(p for p, row in enumerate(harness.table().partitions) if row.replicas == (0, 2))
    harness.world.ask("moves", moves=(NamedMove(number, "demo-2", f"demo-{destination}"),))
    await harness.until_quiet()
    assert in_grace(harness, 1)
    assert harness.world.asked["moves"].phase == phase
    harness.revive(1)
    await harness.until_quiet()
    assert harness.table().partitions[number].replicas == (0, destination)
    assert harness.world.asked["moves"].phase == "Done"


async def test_a_member_that_does_not_return_is_replaced_once_its_time_is_over() -> None:
    harness = await formed(members=4, partitions=24)
    await lost(harness, 1)
    await harness.apply(members=5)
    harness.clock += TIMING.grace
    await harness.until_quiet()
    assert harness.copies() == {2}


async def test_an_approval_holds_when_a_member_is_unreachable_for_a_while() -> None:
    harness = await formed(members=4, partitions=40, approval="Manual", parallel_per_member=1)
    await harness.proposed(members=5)
    harness.approve()
    await harness.until(lambda: len(harness.held(4)) >= 3)
    before = harness.progress
    harness.kill(1)
    await harness.until_quiet()
    assert in_grace(harness, 1)
    assert before.phase == "Superseded"
    harness.revive(1)
    await harness.until_quiet()
    harness.check_balanced(5, 2)


async def test_partitions_that_are_lost_meanwhile_are_left_alone() -> None:
    """A row that names a member that is away has nobody to copy from; both hold what they held."""
    harness = await formed(members=4, partitions=24)
    harness.kill(0)
    harness.kill(1)
    await harness.until_quiet()
    lost_rows = [row for row in harness.table().partitions if row.members & {0, 1}]
    assert lost_rows
    assert in_grace(harness, 1)
    harness.revive(0)
    harness.revive(1)
    await harness.until_quiet()
    harness.check_balanced(4, 2)
