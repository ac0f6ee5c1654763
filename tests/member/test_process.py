"""A member's process: its settings, the order in which it begins, and how it ends."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from stele.adapters.listening import listen_hosts
from stele.core.control.member_settings import LogLevel, MemberSettings
from stele.errors import BadInput
from stele.member import process
from stele.member.settings import read_settings
from stele.member.storage.volume import Volume
from stele.model.cluster import Storage
from tests.member.harness.cluster import Cluster, MemberProcess, cluster, free_ports

HOST = "127.0.0.1"


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> process.Process:
    monkeypatch.setattr(process, "tune_gc", lambda: None)
    settings = read_settings(MemberProcess(0, HOST, tmp_path / "m0", free_ports(7)).environment())
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
                port = settings.metrics_port if path == "/readyz" else settings.admin_port
                async with http.get(f"http://{HOST}:{port}{path}") as response:
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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"STELE_DATA_DIR": ""}, "STELE_DATA_DIR is not set"),
        (
            {"STELE_PEER_PORT": "70000"},
            "STELE_PEER_PORT is '70000'; it must be a whole number from 1 to 65535",
        ),
        ({"STELE_FSYNC": "always"}, "STELE_FSYNC is 'always'; it must be one of Always, Interval, Never"),
        ({"STELE_LEASE_MS": "100"}, "STELE_LEASE_MS is 100; it must be at least twice STELE_HEARTBEAT_MS"),
        ({"STELE_HEARTBEAT_MS": "-5"}, "STELE_HEARTBEAT_MS is '-5'"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, str], text: str) -> None:
    base = {"STELE_DATA_DIR": "/x", "STELE_CLUSTER_UID": "u", "STELE_MEMBER_NAME": "m"}
    with pytest.raises(BadInput) as raised:
        read_settings({**base, **changes})
    assert text in str(raised.value)


def test_a_write_is_synced_before_it_is_acknowledged_unless_told_otherwise() -> None:
    base = {"STELE_DATA_DIR": "/x", "STELE_CLUSTER_UID": "u", "STELE_MEMBER_NAME": "m"}
    assert read_settings(base).fsync.value == Storage(size="1Gi").fsync.value == "Always"


def test_the_process_says_what_is_wrong_and_ends(tmp_path: Path) -> None:
    for env, code, text in (
        ({}, 2, "STELE_DATA_DIR is not set"),
        (
            {"STELE_DATA_DIR": "/proc/x", "STELE_CLUSTER_UID": "u", "STELE_MEMBER_NAME": "m"},
            1,
            "STELE_DATA_DIR /proc/x cannot be used",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "stele.member"], env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr + done.stdout


async def test_stops_politely_and_is_ready_when_it_serves(one: Cluster) -> None:
    member = one.members[0]
    url = f"http://{member.host}:{member.ports[4]}"
    for path, text in (("/healthz", "ok"), ("/readyz", "ok"), ("/metrics", "stele_requests_total")):
        async with one.http.get(url + path) as response:
            assert (response.status, text in await response.text()) == (200, True)
    assert await member.stop() == 0
    assert "Traceback" not in member.log()


@pytest.mark.skipif(len(listen_hosts("")) < 2, reason="no IPv6 on this machine")
async def test_every_port_answers_on_ipv6_too(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1, STELE_BIND="") as made:
        resp, peer, admin, _, metrics, cluster_port, read_port = made.members[0].ports
        for port in (resp, peer, admin, metrics, cluster_port, read_port):
            for host in ("127.0.0.1", "::1"):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
        async with made.http.get(f"http://[::1]:{metrics}/readyz") as response:
            assert response.status == 200


async def test_logs_in_json_and_at_the_level_that_the_master_sends(tmp_path: Path) -> None:
    names = {"STELE_LOG_NAMESPACE": "shop", "STELE_LOG_CLUSTER": "demo", "STELE_LOG_MEMBER": "demo-0"}
    async with cluster(tmp_path, 1, replicas=1, STELE_LOG_FORMAT="json", **names) as made:
        made.settings = MemberSettings(log_level=LogLevel.WARNING)
        await made.publish()
        assert await made.members[0].stop() == 0
        await made.members[0].start(STELE_FSYNC="sometimes")
        assert await made.members[0].process.wait() == 2
    lines = [json.loads(line) for line in (tmp_path / "m0.log").read_text().splitlines()]
    assert {(each["namespace"], each["cluster"], each["member"]) for each in lines} == {
        ("shop", "demo", "demo-0")
    }
    said = [each["message"] for each in lines]
    assert any(each.startswith("started: ") for each in said)
    assert "stopped" not in said, "that is of level INFO"
    assert lines[-1]["level"] == "CRITICAL"
    assert lines[-1]["message"].startswith("BAD_INPUT: STELE_FSYNC is 'sometimes'; it must be")
