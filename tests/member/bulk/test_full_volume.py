"""A bulk load on a volume that is full for a while."""

import asyncio
from pathlib import Path

import pytest

from stele.core.control.commands import OpId
from stele.errors import Unavailable
from stele.member.bulk import loads
from stele.member.bulk.local_loads import LoadJob
from stele.wire.storage.load_value import LoadValue
from stele.wire.storage.volume import DataState
from tests.member.harness.cluster import eventually
from tests.member.harness.single_member import single_member


async def test_a_flush_without_space_delays_a_load_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tablet would apply nothing more until the process starts again."""
    monkeypatch.setattr(loads, "RETRY_SECONDS", 0.01)
    async with single_member(tmp_path) as made:
        bulk, replica = made.node.loads, made.replica
        job = LoadJob(replica, 1, "load", LoadValue(1, 1, 0), "default")

        def full() -> None:
            raise Unavailable("no space left", "NO_SPACE")

        async def prepared(_: LoadJob) -> tuple[list[str], DataState]:
            return [], DataState(OpId(1, 1), {})

        monkeypatch.setattr(bulk, "_prepare", prepared)
        monkeypatch.setattr(bulk._local, "manifest", lambda job: job)
        monkeypatch.setattr(made.engine, "flush", full)
        replica.ingesting = True
        bulk._local.apply_next = lambda *_: None  # type: ignore[method-assign]
        await bulk._apply_batch([job])
        await eventually(lambda: asyncio.sleep(0, replica.ingesting), lambda ingesting: not ingesting)
        monkeypatch.undo()
