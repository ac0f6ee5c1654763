"""One member, or one status, with a number near the end of its range takes nothing from all the others."""

from collections.abc import Callable

import pytest

from stele.core.control.commands import Row
from stele.core.table.ids import EPOCH_MAX, STEP_MAX, VERSION_MAX
from tests.fakes.members import FakeMember
from tests.master.harness import formed


def _epoch(member: FakeMember) -> None:
    member.epoch = EPOCH_MAX


def _list_version(member: FakeMember) -> None:
    member.member_list_version = EPOCH_MAX


def _row(member: FakeMember) -> None:
    row = member.rows[0]
    member.rows[0] = Row(0, VERSION_MAX, row.replicas)


def _accepted(member: FakeMember) -> None:
    member.accepted[0] = Row(0, VERSION_MAX - 1, member.rows[0].replicas)


def _promised(member: FakeMember) -> None:
    for tablet in member.tablets.values():
        tablet.promised = VERSION_MAX - 1


PER_LEADERSHIP = [(poison, False) for poison in (_epoch, _list_version, _accepted, _promised)]
AT_A_TAKE_OVER = [(poison, True) for poison in (_epoch, _list_version, _row, _accepted, _promised)]


@pytest.mark.parametrize(("poison", "restarted"), PER_LEADERSHIP + AT_A_TAKE_OVER)
async def test_a_member_whose_numbers_jump_is_not_believed(
    poison: Callable[[FakeMember], None], restarted: bool
) -> None:
    harness = await formed(members=4, replicas=3)
    member = harness.world.volumes[1]
    poison(member)
    if restarted:
        harness.start_master()
    await harness.ticks(20, 0.6)
    harness.wipe(1)
    await harness.until_quiet()
    assert harness.head().epoch <= 3
    assert harness.head().member_list_version < 100
    assert max(row.version for row in harness.table().partitions) < 1000
    told = [each.message for each in harness.world.events if each.reason == "MemberNotBelieved"]
    assert told
    assert "Numbers that jump" in told[0]
    assert {row.replicas.count(None) for row in harness.table().partitions} == {0}


async def test_a_status_whose_epoch_jumps_ends_no_leadership() -> None:
    harness = await formed()
    harness.world.shown_epoch = EPOCH_MAX
    await harness.until_quiet()
    assert harness.head().epoch == 1


async def test_the_master_goes_above_an_epoch_within_the_step() -> None:
    """An older copy of the ConfigMaps was restored: the members have seen later masters."""
    harness = await formed()
    for member in harness.world.volumes.values():
        member.epoch = 1 + STEP_MAX
    await harness.until_quiet()
    assert harness.head().epoch == 2 + STEP_MAX
