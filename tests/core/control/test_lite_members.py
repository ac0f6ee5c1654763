"""Lite members: they hold nothing, and become data members or stop being such without a copy less."""

import pytest

from stele.master.manifests import member_object
from stele.model import API_VERSION, TabletCluster
from tests.master.checks import check_state
from tests.master.harness import Harness


async def with_lite(number: int = 1) -> Harness:
    """Three data members and lite ones with the next numbers."""
    harness = Harness(members=3, partitions=6)
    await harness.until_quiet()
    harness.world.lite = set(range(3, 3 + number))
    harness.change_spec(members=3 + number)
    await harness.until_quiet()
    check_state(harness)
    return harness


def held(harness: Harness, index: int) -> int:
    return sum(index in row.members for row in harness.table().partitions)


async def test_a_lite_member_is_known_and_holds_nothing() -> None:
    harness = await with_lite()
    assert harness.table().members[3].lite
    assert held(harness, 3) == 0
    assert not any(tablet.state != "DELETED" for tablet in harness.world.volumes[3].tablets.values())
    assert any(info.index == 3 and info.lite for info in harness.world.volumes[0].members)


async def test_copies_are_never_put_on_a_lite_member_even_when_others_are_lost() -> None:
    harness = await with_lite()
    harness.kill(0)
    for _ in range(45):
        await harness.tick(1.0)
    await harness.until_quiet()
    assert held(harness, 3) == 0
    assert all(len(row.members) == 2 for row in harness.table().partitions)


async def test_a_promotion_is_published_with_a_new_member_list_and_data_follows() -> None:
    harness = await with_lite()
    before = harness.head().member_list_version
    harness.world.lite = set()
    await harness.until_quiet()
    check_state(harness)
    assert harness.head().member_list_version == before + 1
    assert {each.member_list_version for each in harness.world.volumes.values()} == {before + 1}
    assert held(harness, 3) == 3
    assert [each.reason for each in harness.world.events].count("MemberPromoted") == 1


async def test_a_silent_member_is_promoted_when_it_answers() -> None:
    harness = await with_lite()
    harness.cut(3)
    for _ in range(6):
        await harness.tick(1.0)
    harness.world.lite = set()
    for _ in range(6):
        await harness.tick(1.0)
    assert harness.table().members[3].lite
    harness.net.cut.clear()
    await harness.until_quiet()
    assert not harness.table().members[3].lite
    assert held(harness, 3) == 3


async def test_a_data_member_is_emptied_before_it_is_lite() -> None:
    harness = await with_lite(0)
    harness.world.lite = {0}
    for _ in range(60):
        await harness.tick()
        assert all(len(row.members) == 2 for row in harness.table().partitions)
        assert held(harness, 0) == 0 or not harness.table().members[0].lite
    assert harness.table().members[0].lite
    await harness.until_quiet()
    check_state(harness)
    assert 0 in harness.world.pods


async def test_the_last_data_member_keeps_its_data_whatever_is_asked_for() -> None:
    harness = Harness(members=1, partitions=2, replicas=1)
    await harness.until_quiet()
    harness.world.lite = {0}
    await harness.until_quiet()
    assert held(harness, 0) == 2
    assert not harness.table().members[0].lite


async def test_a_changed_mind_in_the_middle_of_emptying_keeps_a_data_member() -> None:
    harness = await with_lite(0)
    harness.world.lite = {0}
    for _ in range(6):
        await harness.tick()
    harness.world.lite = set()
    await harness.until_quiet()
    check_state(harness)
    assert not harness.table().members[0].lite
    assert held(harness, 0) == 4


@pytest.mark.parametrize(
    ("join_as", "version_sum", "lite"), [("Data", 9, False), ("Lite", 9, True), ("Lite", 0, False)]
)
def test_new_members_are_lite_when_it_is_asked_for_and_the_table_is_assigned(
    join_as: str, version_sum: int, lite: bool
) -> None:
    found = TabletCluster.read(
        {
            "apiVersion": API_VERSION,
            "kind": "TabletCluster",
            "metadata": {"name": "demo", "namespace": "n", "uid": "u"},
            "spec": {"members": 3, "storage": {"size": "1Gi"}, "joinAs": join_as},
            "status": {"versionSum": version_sum},
        }
    )
    assert isinstance(found, TabletCluster)
    assert member_object(found, 3)["spec"]["lite"] is lite
