"""TLS among members: the level is stored, raised and lowered step by step, and survives what is lost."""

import random

import pytest

from stele.core.control.member_tls import WantedTls
from stele.core.formats import SPOKEN
from stele.core.security.level import STEPS, InternalTls
from tests.master.checks import check_state
from tests.master.harness import Harness, formed, of_the_format_before
from tests.master.test_recover import delete_cluster, want

REQUIRED, OFF = WantedTls(InternalTls.REQUIRED), WantedTls(InternalTls.OFF)


def steps_in(harness: Harness) -> list[str]:
    told = [each.message for each in harness.world.events if each.reason == "MemberTlsChanged"]
    return [text.removeprefix("TLS among members: ") for text in told]


async def required() -> Harness:
    harness = await formed(member_tls=REQUIRED)
    check_state(harness)
    return harness


async def test_a_cluster_that_nobody_has_used_begins_with_what_it_asks_for() -> None:
    harness = await required()
    assert steps_in(harness) == ["Required, after Off"]


async def test_one_in_use_goes_step_by_step_each_when_all_have_the_one_before() -> None:
    harness = await formed()
    harness.change_spec(member_tls=REQUIRED)
    harness.cut(2)
    await harness.ticks(20, 0.1)
    assert [each.tls for each in harness.world.volumes.values()] == ["Accept", "Accept", "Off"]
    harness.net.cut.clear()
    await harness.until_quiet()
    assert steps_in(harness) == ["Accept, after Off", "Dial, after Accept", "Required, after Dial"]
    check_state(harness)


async def test_it_falls_only_when_that_is_allowed() -> None:
    harness = await required()
    await harness.apply(member_tls=OFF)
    assert harness.head().member_tls is InternalTls.REQUIRED
    await harness.apply(member_tls=WantedTls(InternalTls.OFF, may_fall=True))
    assert harness.head().member_tls is InternalTls.OFF
    assert len(steps_in(harness)) == len(STEPS)
    check_state(harness)


async def test_while_a_link_gets_no_tls_it_does_not_rise_and_falls_when_asked() -> None:
    harness = await formed()
    harness.world.volumes[1].stuck_plain = True
    harness.change_spec(member_tls=REQUIRED)
    await harness.ticks(60, 0.5)
    assert harness.head().member_tls is InternalTls.DIAL
    assert {each.tls for each in harness.world.volumes.values()} == {InternalTls.DIAL}
    harness.change_spec(member_tls=WantedTls(InternalTls.OFF, may_fall=True))
    await harness.until_quiet()
    assert harness.head().member_tls is InternalTls.OFF
    check_state(harness)


async def test_it_stays_while_what_is_asked_for_is_not_ready_and_while_the_cluster_is_held() -> None:
    harness = await formed()
    await harness.apply(member_tls=WantedTls(None))
    await harness.apply(member_tls=REQUIRED, paused=True)
    assert harness.head().member_tls is InternalTls.OFF
    await harness.apply(paused=False)
    assert harness.head().member_tls is InternalTls.REQUIRED
    await harness.apply(member_tls=WantedTls(None, may_fall=True))
    assert harness.head().member_tls is InternalTls.REQUIRED


async def test_a_head_that_the_last_release_can_read_names_no_level() -> None:
    harness = await of_the_format_before()
    await harness.apply(member_tls=REQUIRED)
    assert harness.head().member_tls is InternalTls.OFF
    for index in range(3):
        harness.kill(index)
        harness.world.volumes[index].formats = SPOKEN
        harness.revive(index)
    await harness.until_quiet()
    assert harness.head().member_tls is InternalTls.REQUIRED


async def test_a_level_that_members_have_outlives_an_older_copy_of_the_head() -> None:
    harness = await formed()
    older = harness.stored()
    await harness.apply(member_tls=REQUIRED)
    harness.change_spec(member_tls=OFF)
    await harness.restore(older)
    harness.start_master()
    await harness.until_quiet()
    assert harness.head().member_tls is InternalTls.REQUIRED
    assert {each.tls for each in harness.world.volumes.values()} == {InternalTls.REQUIRED}


async def test_a_volume_that_is_not_listed_brings_no_level() -> None:
    """It was removed while TLS was required; the cluster has fallen since, and takes it again."""
    harness = await formed()
    await harness.loop.close()
    await harness.world.ensure_member(3)
    harness.world.volumes[3].tls = InternalTls.REQUIRED
    harness.change_spec(members=4)
    harness.start_master()
    await harness.until_quiet()
    assert harness.table().members.keys() == {0, 1, 2, 3}
    assert steps_in(harness) == []
    assert {each.tls for each in harness.world.volumes.values()} == {InternalTls.OFF}
    check_state(harness)


async def test_a_member_that_does_not_know_its_level_is_told_it() -> None:
    for wanted in (OFF, REQUIRED):
        harness = await formed(member_tls=wanted)
        steps = steps_in(harness)
        harness.world.volumes[1].tls_damaged = True
        await harness.restart()
        await harness.until_quiet()
        assert not harness.world.volumes[1].tls_damaged
        assert harness.head().member_tls is wanted.level
        assert steps_in(harness) == steps
        check_state(harness)


async def test_recovered_volumes_bring_the_highest_of_their_levels() -> None:
    harness = await required()
    await harness.loop.close()
    harness.world.volumes[0].tls = harness.world.volumes[2].tls = InternalTls.DIAL
    delete_cluster(harness)
    want(harness)
    harness.change_spec(member_tls=OFF)
    harness.start_master()
    await harness.until_quiet()
    assert harness.head().member_tls is InternalTls.REQUIRED
    assert {each.tls for each in harness.world.volumes.values()} == {InternalTls.REQUIRED}


async def happen(harness: Harness, dice: random.Random) -> None:
    """One thing that may happen to a cluster whose owner changes their mind."""
    index = dice.randrange(3)
    match dice.choice(["wish", "wish", "not ready", "stuck", "kill", "revive", "cut", "heal", "restart"]):
        case "wish":
            wanted = dice.choice([InternalTls.REQUIRED, InternalTls.OFF])
            harness.change_spec(member_tls=WantedTls(wanted, may_fall=True))
        case "not ready":
            harness.change_spec(member_tls=WantedTls(None))
        case "stuck":
            harness.world.volumes[index].stuck_plain = not harness.world.volumes[index].stuck_plain
        case "kill" if index in harness.world.pods and harness.world.volumes[index].alive:
            harness.kill(index)
        case "revive" if index in harness.world.pods and not harness.world.volumes[index].alive:
            harness.revive(index)
        case "cut" if index in harness.world.pods:
            harness.cut(index)
        case "heal":
            harness.net.cut.clear()
        case "restart":
            await harness.restart()
    await harness.ticks(dice.randrange(1, 8), dice.choice([0.05, 0.5]))


@pytest.mark.parametrize("seed", range(6))
async def test_any_two_members_can_dial_each_other_at_any_moment(seed: int) -> None:
    """The harness looks at that after each exchange; in the end the wish comes true."""
    dice, harness = random.Random(seed), await formed(members=3, partitions=4)
    for _ in range(40):
        await happen(harness, dice)
    harness.net.cut.clear()
    for index, volume in list(harness.world.volumes.items()):
        volume.stuck_plain = False
        if index in harness.world.pods and not volume.alive:
            harness.revive(index)
    harness.change_spec(member_tls=REQUIRED)
    await harness.ticks(60, 1.0)
    await harness.until_quiet()
    assert harness.head().member_tls is InternalTls.REQUIRED
    listed = harness.table().members
    assert {harness.world.volumes[index].tls for index in listed} == {InternalTls.REQUIRED}
