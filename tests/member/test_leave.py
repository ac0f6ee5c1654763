"""`stele-member leave`: asks the running process of its pod for a planned stop, and always ends."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from stele.adapters import pod_token
from stele.member import limits
from stele.member.leave import leave
from stele.member.settings import read_settings
from tests.member.harness.cluster import Cluster, MemberProcess, cluster, eventually

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAVE_SECONDS_MIN", 0.0)
    monkeypatch.setattr(limits, "LEAVE_LOOK_SECONDS", 0.01)


@asynccontextmanager
async def master(made: Cluster) -> AsyncIterator[None]:
    """Exchanges with member 0, as often as a master does."""

    async def tick() -> None:
        while True:
            await made.exchange(0, rows=())
            await asyncio.sleep(0.05)

    task = asyncio.create_task(tick())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def leaving(member: MemberProcess, seconds: float) -> "asyncio.Future[str]":
    settings = read_settings(member.environment())
    return asyncio.ensure_future(asyncio.to_thread(leave, settings, seconds))


async def reports_stopping(made: Cluster) -> bool:
    return (await made.exchange(0, rows=())).stopping


async def test_it_ends_as_soon_as_the_master_has_nothing_more_to_move(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made, master(made):
        assert not await reports_stopping(made)
        gone = leaving(made.members[0], 30)
        await eventually(lambda: reports_stopping(made), bool)
        await asyncio.sleep(0.2)
        assert not gone.done()
        made.may_stop.add(0)
        assert (await asyncio.wait_for(gone, 5)).endswith("nothing more to move off this member")
        assert await reports_stopping(made), "SIGTERM has not come yet"
        assert await made.members[0].stop() == 0


async def test_it_gives_new_connections_time_to_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAVE_SECONDS_MIN", 0.5)
    async with cluster(tmp_path, 1, replicas=1) as made, master(made):
        made.may_stop.add(0)
        text = await leaving(made.members[0], 30)
        assert 0.5 <= float(text.split()[1]) < 5, text


async def test_without_a_master_it_ends_and_with_one_that_comes_back_it_waits(tmp_path: Path) -> None:
    """An operator that is evicted from the same node starts elsewhere, and finds the member serving."""
    async with cluster(tmp_path, 2, LIMITS='{"MASTER_AWAY_SECONDS_MAX": 1.0}') as made:
        text = await asyncio.wait_for(leaving(made.members[0], 30), 10)
        assert text.endswith("rows name this member, and no master has called for 1 s"), text
        await leaving(made.members[0], 0)
        gone = leaving(made.members[0], 30)
        await asyncio.sleep(0.5)
        async with master(made):
            await asyncio.sleep(1.5)
            assert not gone.done()
            made.may_stop.add(0)
            assert "nothing more to move" in await asyncio.wait_for(gone, 5)


async def test_it_ends_when_its_time_is_over_and_the_member_goes_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made, master(made):
        assert "16 rows name this member" in await asyncio.wait_for(leaving(made.members[0], 0.5), 5)
        await eventually(lambda: reports_stopping(made), lambda stopping: not stopping)
        gone = leaving(made.members[0], 3600)
        await eventually(lambda: reports_stopping(made), bool)
        made.may_stop.add(0)
        # It asks again and again: one that still waits would announce the stop once more.
        await asyncio.wait_for(gone, 5)
        await leaving(made.members[0], 0)
        assert not await reports_stopping(made)


async def test_a_member_that_ends_or_hangs_does_not_hold_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAVE_ANSWER_SECONDS_MAX", 0.5)
    async with cluster(tmp_path, 2) as made, master(made):
        member = made.members[1]
        gone = leaving(member, 30)
        await asyncio.sleep(0.3)
        assert not gone.done()
        await member.kill()
        assert (await asyncio.wait_for(gone, 5)).startswith("not announced: ")
        with socket.create_server((member.host, member.ports[2])):
            assert "timed out" in await asyncio.wait_for(leaving(member, 30), 5)


async def test_nobody_but_processes_of_the_pod_can_announce_a_stop(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        url = f"http://{made.members[0].host}:{made.members[0].ports[2]}/v1/stopping"
        volume = read_settings(made.members[0].environment()).data_dir
        own = pod_token.headers(pod_token.read(volume))
        # A forwarded port comes from the loopback address.
        for address, shown in (("127.0.0.200", own), ("127.0.0.1", {}), ("127.0.0.1", pod_token.headers(""))):
            connector = aiohttp.TCPConnector(local_addr=(address, 0))
            async with (
                aiohttp.ClientSession(connector=connector) as http,
                http.post(url, data='{"seconds": 60}', headers=shown) as response,
            ):
                assert (response.status, await response.text()) == (
                    403,
                    "only a process of this pod may stop this member\n",
                )
        for body, text in (
            ('{"seconds": -1}', "Expected `float` >= 0.0 - at `$.seconds`"),
            ("{}", "missing required field `seconds`"),
        ):
            async with made.http.post(url, data=body, headers=own) as response:
                assert (response.status, text in await response.text()) == (400, True)
        assert not await reports_stopping(made)


async def test_a_member_that_starts_anew_has_another_token(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made, master(made):
        member = made.members[0]
        volume = read_settings(member.environment()).data_dir
        before = pod_token.read(volume)
        gone = leaving(member, 30)
        await eventually(lambda: reports_stopping(made), bool)
        await member.kill()
        assert (await asyncio.wait_for(gone, 5)).startswith("not announced: ")
        await member.start()
        await eventually(lambda: reports_stopping(made), lambda stopping: not stopping)
        assert pod_token.read(volume) not in ("", before)
        gone = leaving(member, 30)
        await eventually(lambda: reports_stopping(made), bool)
        made.may_stop.add(0)
        await asyncio.wait_for(gone, 5)


async def test_as_a_program_it_prints_one_line_and_never_fails_a_stop(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        for seconds, code, text in (
            ("0", 0, "stele-member: after 0.0 s: 16 rows name this member\n"),
            ("-1", 2, "argument --seconds: is -1; it must be 0 to 3600"),
        ):
            done = await asyncio.to_thread(program, member, seconds)
            assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done
        await member.kill()
        done = await asyncio.to_thread(program, member, "60")
        assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, ""), done
        assert done.stdout.startswith("stele-member: not announced: 127.0.")


def program(member: MemberProcess, seconds: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "stele.member", "leave", f"--seconds={seconds}"],
        env=member.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
