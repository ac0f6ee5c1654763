"""What lines of the log name while a command of the master runs."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.adapters import logs
from stele.core.control import commands as m
from stele.member.control.dispatch import CommandDispatcher


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (m.Abort("m4-12", 3), {"partition": 3, "migration": "m4-12"}),
        (m.CloseSession("s4-1"), {"session": "s4-1"}),
        (m.UnlockState("c4-2"), {}),
    ],
)
async def test_a_command_is_named_while_it_runs(command: m.Command, named: dict[str, Any]) -> None:
    seen: list[dict[str, Any]] = []

    async def run(_: m.Command) -> m.Result:
        seen.append(logs.fields_now())
        return m.Result()

    made = object.__new__(CommandDispatcher)
    made._slow_kinds = ()
    made._tablets = cast("Any", SimpleNamespace(rows=[None] * 8))
    made._state_lock = cast("Any", SimpleNamespace(refuses=lambda command: False))
    made._bulk, made._handlers = {}, {type(command): run}
    await made.run((command,))
    assert seen == [named]
    assert logs.fields_now() == {}
