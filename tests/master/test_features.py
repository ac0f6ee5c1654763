"""The format in force: when it rises, that it never falls, and who is kept out."""

from stele.core.formats import FIRST, SPOKEN, UNSTATED, FormatRange
from stele.core.placement.migration import Type
from tests.master.harness import Harness, of_the_format_before

NEXT = FormatRange(SPOKEN.most, SPOKEN.most + 1)


def upgrade(harness: Harness, *indexes: int) -> None:
    """Restart them with this build."""
    for index in indexes:
        harness.kill(index)
        harness.world.volumes[index].formats = SPOKEN
        harness.revive(index)


def reasons(harness: Harness) -> list[str]:
    return [event.reason for event in harness.world.events]


async def test_a_new_cluster_has_the_highest_format_of_its_operator() -> None:
    harness = Harness()
    await harness.until_quiet()
    assert harness.head().features == SPOKEN.most
    assert "FeaturesRaised" not in reasons(harness)


async def test_the_features_rise_when_the_last_member_speaks_them() -> None:
    harness = await of_the_format_before()
    assert harness.head().features == FIRST
    upgrade(harness, 0, 1)
    await harness.until_quiet()
    assert harness.head().features == FIRST
    assert {volume.features for volume in harness.world.volumes.values()} == {FIRST}
    upgrade(harness, 2)
    await harness.until_quiet()
    assert harness.head().features == SPOKEN.most
    assert {volume.features for volume in harness.world.volumes.values()} == {SPOKEN.most}
    assert reasons(harness).count("FeaturesRaised") == 1


async def test_a_member_that_is_silent_since_the_master_took_over_keeps_the_features_down() -> None:
    harness = await of_the_format_before()
    upgrade(harness, 0, 1)
    harness.kill(2)
    await harness.restart()
    await harness.until_quiet()
    assert harness.head().features == FIRST
    harness.world.volumes[2].formats = SPOKEN
    harness.revive(2)
    await harness.until_quiet()
    assert harness.head().features == SPOKEN.most


async def test_a_member_that_became_silent_after_it_answered_does_not() -> None:
    harness = await of_the_format_before()
    upgrade(harness, 0)
    await harness.until_quiet()
    upgrade(harness, 1)
    harness.kill(0)
    upgrade(harness, 2)
    await harness.until_quiet()
    assert harness.head().features == SPOKEN.most


async def test_a_held_cluster_keeps_its_features() -> None:
    harness = await of_the_format_before()
    harness.change_spec(paused=True)
    upgrade(harness, 0, 1, 2)
    await harness.until_quiet()
    assert harness.head().features == FIRST
    await harness.apply(paused=False)
    assert harness.head().features == SPOKEN.most


async def test_a_member_without_the_features_is_not_let_in_and_says_what_to_do() -> None:
    """One that comes back with the build before, and a new one."""
    harness = Harness()
    await harness.until_quiet()
    before = harness.world.volumes[1].epoch, dict(harness.world.volumes[1].rows)
    harness.kill(1)
    harness.world.volumes[1].formats = UNSTATED
    harness.revive(1)
    harness.world.build = UNSTATED
    harness.change_spec(members=4)
    await harness.ticks(60, 0.5)
    head = harness.head()
    assert head.features == SPOKEN.most
    assert [member.index for member in head.members] == [0, 1, 2]
    assert (harness.world.volumes[1].epoch, harness.world.volumes[1].rows) == before
    messages = [event.message for event in harness.world.events if event.reason == "MemberIncompatible"]
    assert messages == [
        "demo-1: its build speaks format 1, the cluster uses format 2: upgrade it",
        "member 3: its build speaks format 1, the cluster uses format 2: upgrade it",
    ]
    assert not any(1 in row.replicas for row in harness.table().partitions)
    for index in (1, 3):
        harness.world.volumes[index].formats = SPOKEN
    await harness.until_quiet()
    assert [member.index for member in harness.head().members] == [0, 1, 2, 3]
    assert not any(each.incompatible for each in harness.state.membership.liveness.values())


async def test_a_member_that_skips_a_format_waits_until_the_others_speak_it() -> None:
    harness = await of_the_format_before()
    harness.kill(1)
    harness.world.volumes[1].formats = NEXT
    harness.revive(1)
    await harness.ticks(20, 0.5)
    text = "its build speaks formats 2 to 3, the cluster uses format 1: upgrade the others first"
    assert any(text in event.message for event in harness.world.events)


async def test_an_older_copy_of_the_table_does_not_lower_the_features() -> None:
    harness = await of_the_format_before()
    older = harness.stored()
    upgrade(harness, 0, 1, 2)
    await harness.until_quiet()
    assert harness.head().features == SPOKEN.most
    await harness.restore(older)
    harness.start_master()
    harness.world.volumes[2].formats = UNSTATED
    await harness.ticks(20, 0.5)
    assert harness.head().features == SPOKEN.most
    assert "MemberIncompatible" in reasons(harness)


async def test_owners_are_not_exchanged_before_all_members_know_how() -> None:
    """But other migrations are made, and what was left out is planned when the features have risen."""
    harness = await of_the_format_before()
    started: list[Type] = []

    async def watched() -> None:
        await harness.tick(0.3)
        started.extend(each.migration.type for each in harness.state.operations.migrations.values())

    harness.kill(0)
    for _ in range(20):
        await watched()
    harness.revive(0)
    for _ in range(40):
        await watched()
    assert started
    assert Type.SWAP not in started
    upgrade(harness, 0, 1, 2)
    await harness.until_quiet()
    assert harness.head().features == SPOKEN.most
    harness.check_balanced(3, 2)
