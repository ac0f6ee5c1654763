"""Bulk work does not hold an exchange up: a master that waits long takes the member for lost."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.core.control import commands as m
from stele.member.control import dispatch as module
from stele.member.control.dispatch import CommandDispatcher

INGEST = m.Ingest("s1", (1, 2, 3))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> CommandDispatcher:
    """Without a node: only the running of commands is looked at."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    made = object.__new__(CommandDispatcher)
    made._bulk, made._slow_kinds = {}, module._BULK
    made._state_lock = cast("Any", SimpleNamespace(refuses=lambda command: False))
    return made


async def test_bulk_work_answers_wait_until_it_is_done_and_runs_once(made: CommandDispatcher) -> None:
    runs, may_end = 0, asyncio.Event()

    async def ingest(_: m.Ingest) -> m.Result:
        nonlocal runs
        runs += 1
        await may_end.wait()
        return m.Result(detail="done")

    made._handlers = {m.Ingest: ingest}
    assert [r.code for r in await made.run((INGEST,))] == ["WAIT"]
    assert [r.code for r in await made.run((INGEST,))] == ["WAIT"]
    may_end.set()
    await asyncio.sleep(0)
    assert [r.detail for r in await made.run((INGEST,))] == ["done"]
    assert runs == 1
    assert not made._bulk


async def test_what_nobody_asks_for_again_is_forgotten(made: CommandDispatcher) -> None:
    async def ingest(_: m.Ingest) -> m.Result:
        await asyncio.sleep(0.05)
        return m.Result()

    made._handlers = {m.Ingest: ingest}
    assert [r.code for r in await made.run((INGEST,))] == ["WAIT"]
    await asyncio.sleep(0.1)
    assert await made.run(()) == ()
    assert not made._bulk
