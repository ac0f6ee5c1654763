"""The level of a process that copies, as it is told while it runs."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from stele.adapters.spark.client import CopierClient
from stele.core.control.member_settings import LogLevel
from stele.core.security.level import InternalTls
from stele.transfer.log_level import add_log_route
from stele.wire.urls import LOG_LEVEL
from tests.fakes.http import serving
from tests.transfer import checkpoints


@pytest.fixture(autouse=True)
def ours() -> Iterator[logging.Logger]:
    found = logging.getLogger("stele")
    before = found.level
    yield found
    found.setLevel(before)


async def test_a_level_is_in_effect_at_once(ours: logging.Logger) -> None:
    app = web.Application()
    add_log_route(app)
    async with serving(app) as url, CopierClient(url) as client:
        for level in (LogLevel.DEBUG, LogLevel.ERROR):
            await client.set_log_level(level)
            assert logging.getLevelName(ours.level) == level


@pytest.mark.parametrize("body", [b"", b"5", b'"LOUD"', b'"\xff"', b"[" * 5000])
async def test_what_is_no_level_changes_nothing(ours: logging.Logger, body: bytes) -> None:
    app, before = web.Application(), ours.level
    add_log_route(app)
    async with serving(app) as url, ClientSession() as http, http.put(url + LOG_LEVEL, data=body) as answer:
        assert answer.status == 400
        assert "invalid level of the log" in await answer.text()
    assert ours.level == before


@pytest.mark.parametrize("level", [InternalTls.OFF, InternalTls.REQUIRED])
async def test_only_the_pod_s_own_member_changes_that_of_a_transfer_process(
    volume: Path, ours: logging.Logger, level: InternalTls
) -> None:
    checkpoints.set_level(volume, level)
    own, before = checkpoints.own_headers(volume), ours.level
    async with checkpoints.transfer(volume) as url, ClientSession() as http:
        for headers, status in (({}, 403), ({"Authorization": "Bearer wrong"}, 403), (own, 204)):
            assert ours.level == before
            async with http.put(url + LOG_LEVEL, data=b'"ERROR"', headers=headers) as answer:
                assert answer.status == status
    assert ours.level == logging.ERROR


async def test_an_older_copier_keeps_its_own() -> None:
    async with serving(web.Application()) as url, CopierClient(url) as client:
        await client.set_log_level(LogLevel.DEBUG)
