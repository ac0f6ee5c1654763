"""What a member holds when it promises to be a replica is on its disk, whatever `fsync` says."""

from dataclasses import replace

import pytest

from stele.core.control import commands as m
from stele.member.settings import Fsync
from tests.member.harness.single_member import OTHER, P, SingleMember


@pytest.mark.parametrize("mode", [Fsync.INTERVAL, Fsync.NEVER])
async def test_what_came_with_a_migration_is_on_disk_before_it_counts_as_a_copy(
    made: SingleMember, mode: Fsync
) -> None:
    """With another fsync than Always too: only what is written later may go with the power."""
    fencing = made.node.fencing
    fencing._settings = replace(fencing._settings, fsync=mode)
    await made.receive()
    steps: list[str] = []
    sync, save = made.engine.sync_log, made.node.metadata.save_meta

    async def save_meta(*args: object, **changes: object) -> None:
        steps.append("promise")
        await save(*args, **changes)  # type: ignore[arg-type]

    made.engine.sync_log = lambda: (steps.append("log"), sync())[1]  # type: ignore[method-assign]
    made.node.metadata.save_meta = save_meta  # type: ignore[method-assign]
    assert await made.code(m.Accept("copy", m.Row(P, 2, (OTHER, 0)), None)) == "OK"
    assert steps == ["log", "promise"]
