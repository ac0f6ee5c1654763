"""The catalog of keyspaces on its way to the members."""

from stele.core.formats import FIRST, SPOKEN
from stele.core.kv.keyspaces import NO_CATALOG, Catalog, Settings
from tests.master.harness import Harness, of_the_format_before

CATALOG = Catalog(4, {"sessions": Settings(ttl_seconds=60)})


def in_use(harness: Harness) -> list[int]:
    return [volume.catalog.version for volume in harness.world.volumes.values()]


async def test_a_stored_catalog_reaches_all_members_once() -> None:
    harness = Harness()
    await harness.until_quiet()
    assert in_use(harness) == [0, 0, 0]
    harness.world.stored_catalog = CATALOG
    await harness.until_quiet()
    assert [volume.catalog for volume in harness.world.volumes.values()] == [CATALOG] * 3
    await harness.restart()
    await harness.until_quiet()
    harness.world.stored_catalog = Catalog(5)
    await harness.until_quiet()
    assert in_use(harness) == [5, 5, 5]


async def test_a_member_that_was_away_gets_it_when_it_returns() -> None:
    harness = Harness()
    await harness.until_quiet()
    harness.kill(1)
    harness.world.stored_catalog = CATALOG
    await harness.until_quiet()
    harness.revive(1)
    await harness.until_quiet()
    assert in_use(harness) == [4, 4, 4]


async def test_members_that_do_not_know_keyspaces_are_not_sent_any() -> None:
    harness = await of_the_format_before()
    harness.world.stored_catalog = CATALOG
    await harness.until_quiet()
    assert harness.head().features == FIRST
    assert [volume.catalog for volume in harness.world.volumes.values()] == [NO_CATALOG] * 3
    for index in (0, 1, 2):
        harness.kill(index)
        harness.world.volumes[index].formats = SPOKEN
        harness.revive(index)
    await harness.until_quiet()
    assert in_use(harness) == [4, 4, 4]
