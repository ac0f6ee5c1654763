"""The master dies before or after each of its writes and exchanges; the next one always ends where it should.

Each story is run once to count its steps, then again from the start with a death at each of them.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stele.core.errors import SteleError
from tests.master.harness import Crash, Fuse, Harness

Story = Callable[[Harness], Awaitable[None]]


async def create(harness: Harness) -> None:
    await harness.settle()


async def scale_up(harness: Harness) -> None:
    harness.rewish(members=4)
    await harness.settle()


async def scale_down(harness: Harness) -> None:
    harness.rewish(members=2)
    await harness.settle()


async def owner_killed(harness: Harness) -> None:
    if harness.world.volumes[0].alive and not harness.world.pods[0].ended and harness.masters <= 2:
        harness.kill(0)
    for _ in range(10):
        await harness.tick()
    if harness.world.pods[0].ended:
        harness.revive(0)
    await harness.settle()


async def owner_gone_for_good(harness: Harness) -> None:
    if 0 in harness.world.pods and not harness.world.pods[0].ended:
        harness.kill(0)
    for _ in range(10):
        await harness.tick()
    harness.clock += 31
    await harness.settle()


async def wiped(harness: Harness) -> None:
    if harness.world.volumes[1].uuid.startswith("uuid-10"):
        harness.wipe(1)
    await harness.settle()


async def fewer_replicas(harness: Harness) -> None:
    harness.rewish(replicas=1)
    await harness.settle()


STORIES: dict[str, tuple[Story, int]] = {
    "create": (create, 0),
    "scale up": (scale_up, 3),
    "scale down": (scale_down, 3),
    "owner killed": (owner_killed, 3),
    "owner gone for good": (owner_gone_for_good, 3),
    "wiped": (wiped, 3),
    "fewer replicas": (fewer_replicas, 3),
}


async def prepared(before: int) -> Harness:
    harness = Harness(members=3, partitions=3)
    if before:
        await harness.settle()
    return harness


async def steps_of(story: Story, before: int) -> int:
    harness = await prepared(before)
    harness.start_master(Fuse())
    await story(harness)
    return harness.fuse.count


async def stop(harness: Harness) -> None:
    """The tasks of a dead process go with it."""
    await harness.loop.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", STORIES)
async def test_a_new_master_continues_from_each_step(name: str, after: bool) -> None:
    story, before = STORIES[name]
    total = await steps_of(story, before)
    for at in [*range(1, min(total, 60)), *range(60, min(total, 400), 7)]:
        harness = await prepared(before)
        await stop(harness)
        harness.start_master(Fuse(at, after))
        try:
            await story(harness)
        except Crash:
            await stop(harness)
            harness.start_master()
            try:
                await story(harness)
            except AssertionError as error:
                raise AssertionError(
                    f"{name}: died {'after' if after else 'before'} step {at}: {error}"
                ) from error
        harness.check_data()
        wanted = min(harness.world.wanted.replicas, harness.world.wanted.members)
        if name != "owner gone for good":
            assert all(len(row.members) == wanted for row in harness.table().partitions), (name, at)
        await stop(harness)


async def ticks(harness: Harness, number: int) -> None:
    for _ in range(number):
        await harness.tick()


async def test_two_masters_at_once_end_with_one() -> None:
    harness = await prepared(3)
    first = harness.loop
    harness.start_master()
    await harness.settle()
    harness.loop, second = first, harness.loop
    harness.rewish(members=4)
    with pytest.raises(SteleError, match=r"STALE_EPOCH|CONFLICT"):
        await ticks(harness, 5)
    harness.loop = second
    await harness.settle()
    await asyncio.gather(first.close(), second.close())
