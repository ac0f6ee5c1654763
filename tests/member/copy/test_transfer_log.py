"""The transfer process logs at the level of its member, also after it restarted."""

import asyncio
from typing import cast

import pytest

from stele.core.control.member_settings import LogLevel, MemberSettings
from stele.errors import Refused, Unavailable
from stele.member.copy import transfer_log
from stele.member.live_settings import LiveSettings
from stele.member.settings import Settings

DEBUG, INFO = b'"DEBUG"', b'"INFO"'


class Transfer:
    """`refusals` are raised by the first calls."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals, self.told = list(refusals), list[bytes]()

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        assert (method, path) == ("PUT", "/v1/log-level")
        if self.refusals:
            raise self.refusals.pop(0)
        self.told.append(body or b"")
        return b""

    async def close(self) -> None: ...


async def test_a_level_is_told_until_it_is_the_usual_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_log, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr("stele.adapters.logs.follow", lambda level: None)
    transfer = Transfer(Unavailable("not yet"), Refused("not yet"))
    settings = LiveSettings(cast("Settings", None))
    keeping = asyncio.create_task(transfer_log.keep_log_level(transfer, settings))

    async def looks(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    await looks(10)
    assert transfer.told == [INFO], "an earlier process may have told another level"
    transfer.told.clear()
    settings.adopt(MemberSettings(log_level=LogLevel.DEBUG))
    await looks(10)
    assert set(transfer.told) == {DEBUG}
    assert len(transfer.told) > 2, "it may have restarted"
    settings.adopt(MemberSettings(log_level=LogLevel.INFO))
    await looks(10)
    assert transfer.told.count(INFO) == 1
    assert transfer.told[-1] == INFO
    keeping.cancel()
