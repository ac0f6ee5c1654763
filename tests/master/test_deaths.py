"""A member dies at each command that it gets, before or after it did it; it returns, or it does not."""

import contextlib

import pytest

from tests.master.harness import Crash, Fuse, Harness

COMMANDS = (
    "StartTabletCopy",
    "AddLearner",
    "OpenSession",
    "FetchDirect",
    "Ingest",
    "HandOver",
    "Accept",
    "CloseSession",
    "DeleteTablet",
)


async def scaled_while_dying(command: str, victim: int) -> Harness:
    harness = Harness(members=3, partitions=6)
    await harness.settle()
    harness.rewish(members=4)
    while 3 not in harness.world.volumes:
        await harness.tick()
    harness.world.volumes[victim].dies_at = command
    for _ in range(60):
        await harness.tick()
        if not harness.world.volumes[victim].alive:
            break
    harness.world.volumes[victim].dies_at = ""
    return harness


@pytest.mark.parametrize("returns", [True, False], ids=["returns", "is gone"])
@pytest.mark.parametrize("victim", [0, 3], ids=["source", "destination"])
@pytest.mark.parametrize("command", [*COMMANDS, *(f"!{name}" for name in COMMANDS)])
async def test_a_member_dies_at_a_command(command: str, victim: int, returns: bool) -> None:
    harness = await scaled_while_dying(command, victim)
    if not harness.world.volumes[victim].alive:
        for _ in range(10):
            await harness.tick()
        if returns:
            harness.revive(victim)
        else:
            harness.clock += 31
    await harness.settle()
    assert all(len(row.members) == 2 for row in harness.table().partitions)


@pytest.mark.parametrize("victim", [0, 3], ids=["source", "destination"])
@pytest.mark.parametrize("command", ["!Accept", "Accept", "!HandOver", "!Ingest"])
async def test_member_and_master_die_together(command: str, victim: int) -> None:
    for at in range(1, 40, 3):
        harness = await scaled_while_dying(command, victim)
        await harness.loop.close()
        harness.start_master(Fuse(at))
        with contextlib.suppress(Crash):
            await harness.settle()
        await harness.loop.close()
        harness.start_master()
        if not harness.world.volumes[victim].alive:
            for _ in range(10):
                await harness.tick()
            harness.revive(victim)
        await harness.settle()
        assert all(len(row.members) == 2 for row in harness.table().partitions)
