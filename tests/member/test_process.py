"""The order in which a member begins."""

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest

from stele.member import process
from stele.member.settings import read_settings
from stele.member.storage.volume import Volume
from tests.member.harness.cluster import MemberProcess, free_ports

HOST = "127.0.0.1"


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> process.Process:
    monkeypatch.setattr(process, "tune_gc", lambda: None)
    settings = read_settings(MemberProcess(0, HOST, tmp_path / "m0", free_ports(4)).environment())
    return process.Process(settings)


async def test_nothing_is_told_or_promised_before_the_volume_is_read(
    member: process.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that heard another one too early would write promises over those that it had not read."""
    settings, loop = member._settings, asyncio.get_running_loop()
    told: list[tuple[int, str]] = []
    refused: list[bool] = []

    async def ask() -> None:
        async with aiohttp.ClientSession() as http:
            for path in (
                "/v1/tablets",
                "/v1/tablets/0",
                "/v1/quarantine",
                "/v1/digest?partition=0",
                "/readyz",
            ):
                async with http.get(f"http://{HOST}:{settings.admin_port}{path}") as response:
                    told.append((response.status, await response.text()))

    def delete_folders(*_: object) -> None:
        asyncio.run_coroutine_threadsafe(ask(), loop).result(10)
        with socket.socket() as peer:
            refused.append(peer.connect_ex((HOST, settings.peer_port)) != 0)
        loop.call_soon_threadsafe(member._stop.set)

    monkeypatch.setattr(Volume, "delete_folders", delete_folders)
    assert await member.run() == 0
    assert set(refused) == {True}
    assert {status for status, _ in told} == {503}
    assert all("loading" in text for _, text in told)
