"""`watch`: what it shows, and that it leaves a terminal as it was."""

import asyncio
import os
import pty
import select
import signal
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Screen

from stele.cli import live
from stele.cli.live_view import MEMBERS_SHOWN, Scene, Short, duration, picture
from stele.model import TabletCluster, TabletMember, TabletRebalance
from tests.cli.conftest import Run
from tests.cli.served_objects import cluster, listing, member, plan
from tests.cli.test_tablets import Shell

COPYING = {
    "phase": "Running",
    "planned": {"total": 90},
    "done": {"total": 24},
    "bytesPlanned": 3_400_000_000,
    "bytesCopied": 1_200_000_000,
    "throughputBytesPerSecond": 80_200_000,
    "etaSeconds": 87,
    "destinations": [
        {"member": "demo-1", "bytesPlanned": 10, "bytesCopied": 10},
        {"member": "demo-2", "engine": "Direct", "bytesPlanned": 100, "bytesCopied": 50, "failures": 1},
    ],
    "destinationsTotal": 2,
}
SHORT = {"partitions": {"total": 271, "safe": 268, "underReplicated": 3}, "members": {"ready": 2}}


def drawn(scene: Scene) -> list[str]:
    screen = Screen(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    screen.print(picture(scene))
    screen.file.close()
    return screen.export_text().splitlines()


def scene(members: list[dict[str, Any]], short: list[Short], *plans: dict[str, Any], **more: Any) -> Scene:
    return Scene(
        TabletCluster.model_validate(cluster(**(SHORT | more))),
        [TabletMember.model_validate(each) for each in members],
        [TabletRebalance.model_validate(each) for each in plans],
        short,
    )


def test_what_is_short_of_copies_comes_first_then_plans_then_members() -> None:
    members = [member(0, owned=12, backups=6), member(1, state="Joining", owned=6, backups=3)]
    lines = drawn(scene(members, [Short(4, 1, 2, "demo-0"), Short(9, 0, 2, "")], plan(**COPYING)))
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "2 of 2 members ready; 271 partitions: 268 with all copies, 3 with fewer, 0 lost" in text
    order = [
        "9: 0 of 2 copies, no owner",
        "4: 1 of 2 copies, owner demo-0",
        "24 of 90 migrations, 1.2 GB of 3.4 GB, 80.2 MB/s, 1 min 27 s left",
        "[############............] to demo-2: 50 B of 100 B, Direct, 1 copies failed",
        "[########################] to demo-1: 10 B of 10 B",
        "demo-1 Joining ########==== 6 3",
        "demo-0 Active ################======== 12 6",
    ]
    places = [text.find(each) for each in order]
    assert -1 not in places
    assert places == sorted(places)


def test_many_members_are_counted_and_text_cannot_control_the_terminal() -> None:
    members = [member(index) for index in range(MEMBERS_SHOWN + 5)]
    lines = drawn(scene(members, [], message="\x1b[2Jbad"))
    assert "and 5 more members: kubectl stele members CLUSTER" in lines
    assert "\\x1b[2Jbad" in lines[0]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (61, "1 min 1 s"), (7260, "2 h 1 min")])
def test_durations(seconds: int, text: str) -> None:
    assert duration(seconds) == text


async def test_without_a_terminal_lines_that_changed_are_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"tabletclusters": [cluster(phase="Rebalancing")], "tabletrebalances": [plan(**COPYING)]}
    moments = [before, before, {"tabletclusters": [cluster()]}, {"tabletclusters": []}]

    async def sleep(_: float) -> None:
        moments.pop(0)

    monkeypatch.setattr(live.asyncio, "sleep", sleep)
    async with listing(tmp_path, lambda: moments[0]) as path:
        ran = await Shell(run, path)("watch", "demo")
    assert (ran.code, 'there is no TabletCluster "demo"' in ran.err) == (1, True)
    assert [line.split("  ", 1)[1] for line in ran.out.splitlines()] == [
        "demo: Rebalancing, 0 of 2 members ready, 0 of 0 partitions with all copies, 0 with fewer, 0 lost",
        "demo-4-1: 24 of 90 migrations, 1.2 GB of 3.4 GB, 80.2 MB/s, 1 min 27 s left",
        "demo: Running, 0 of 2 members ready, 0 of 0 partitions with all copies, 0 with fewer, 0 lost",
    ]
    assert "\x1b" not in ran.out


async def test_a_server_that_falls_silent_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            monkeypatch.setattr(live, "read_scene", silent)
        elif looks == 2:
            raise KeyboardInterrupt

    async def silent(*_: Any) -> Scene:
        raise live.Unavailable("no answer from the API server")

    monkeypatch.setattr(live.asyncio, "sleep", sleep)
    async with listing(tmp_path, lambda: {"tabletclusters": [cluster()]}) as path:
        ran = await Shell(run, path)("watch", "demo")
    assert ran.code == 130
    assert "no newer state: no answer from the API server" in ran.out.splitlines()[1]


async def test_ctrl_c_leaves_a_terminal_as_it_was(tmp_path: Path) -> None:
    stored = {"tabletclusters": [cluster()], "tabletmembers": [member(0)]}
    async with listing(tmp_path, lambda: stored) as path:
        code, seen, same = await asyncio.to_thread(in_terminal, path)
    assert b"demo-0" in seen
    assert (code, same) == (130, True)
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l"), "the cursor is hidden"
    assert b"Traceback" not in seen


def in_terminal(kubeconfig: Path) -> tuple[int, bytes, bool]:
    """Exit code, all that it wrote, and whether the terminal's settings are those of before."""
    child, screen = pty.fork()
    if child == 0:
        # Tests that run in the background of a shell ignore it, and what they start does, too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        words = ["-m", "stele.cli", "watch", "demo", "--kubeconfig", str(kubeconfig)]
        os.execve(sys.executable, [sys.executable, *words], os.environ | {"TERM": "xterm", "COLUMNS": "100"})
    before, seen, end = termios.tcgetattr(screen), b"", time.monotonic() + 60
    try:
        while b"demo-0" not in seen and (piece := read(screen, end)):
            seen += piece
        after = before
        os.kill(child, signal.SIGINT)
        while piece := read(screen, end):
            seen += piece
            after = termios.tcgetattr(screen)
    finally:
        os.close(screen)
        code = ended(child, end)
    return code, seen, after == before


def ended(child: int, end: float) -> int:
    """Exit code of the child, which is killed if it runs at the moment `end`."""
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def read(screen: int, end: float) -> bytes:
    """What comes before the moment `end`; nothing when none does, or the other side is closed."""
    ready, _, _ = select.select([screen], [], [], max(0.0, end - time.monotonic()))
    try:
        return os.read(screen, 65536) if ready else b""
    except OSError:
        return b""
