"""Each fault strikes a copy at one block of its stream; it ends in a commit, and nothing is lost or left."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.operator.copyfaults.stage import SMALL_DISK, FaultStage, Move, verified
from tests.operator.copyfaults.wire import Block
from tests.operator.test_operator import DEADLINE_SECONDS

pytestmark = [pytest.mark.control_plane, pytest.mark.asyncio(loop_scope="module")]

BAD_BYTE = 40
SLOW_SECONDS = 0.2
IMPATIENT = "import stele.core.control.rebalance.copy_scheduling as c; c.COPY_STALL_SECONDS = 3.0"
BALLAST, NEARLY_FULL_BYTES = "ballast", 100 << 20


def staged_files(stage: FaultStage, member: str, pattern: str) -> list[Path]:
    return sorted((stage.directory / member / "staging").glob(f"*/{pattern}"))


async def test_a_quiet_move_is_copied_by_the_executor(stage: FaultStage) -> None:
    move = await stage.plan(tablets=2)
    stage.wire.arm(None, move.partitions)
    status = await move.done()
    assert status["engine"] == "Spark", status
    assert len(stage.wire.passed) >= 3 * len(move.partitions)


async def kill_executor(stage: FaultStage, move: Move, block: Block) -> bytes:
    os.kill(stage.kubelet.the("executor", move.destination), signal.SIGKILL)
    return block.data


async def kill_copier(stage: FaultStage, move: Move, block: Block) -> bytes:
    await stage.kubelet.kill_copier()
    await stage.kubelet.start_copier()
    return block.data


async def kill_source(stage: FaultStage, move: Move, block: Block) -> bytes:
    await stage.kill_member(block.source)
    return block.data


async def kill_transfer_of_source(stage: FaultStage, move: Move, block: Block) -> None:
    await stage.kubelet.kill(block.source, 0.0, container="transfer")


async def kill_destination(stage: FaultStage, move: Move, block: Block) -> bytes:
    await stage.kill_member(move.destination)
    return block.data


async def kill_master(stage: FaultStage, move: Move, block: Block) -> bytes:
    await stage.operator.end(signal.SIGKILL)
    await stage.start_operator()
    return block.data


async def corrupt(stage: FaultStage, move: Move, block: Block) -> bytes:
    wrong = bytearray(block.data)
    wrong[BAD_BYTE] ^= 1
    return bytes(wrong)


async def repeat(stage: FaultStage, move: Move, block: Block) -> bytes:
    return block.data + block.data


@pytest.mark.parametrize(
    ("strike", "engine"),
    [
        *((strike, "Spark") for strike in (kill_executor, kill_copier)),
        *((strike, None) for strike in (kill_source, kill_transfer_of_source, kill_destination)),
        *((strike, None) for strike in (corrupt, repeat, kill_master)),
    ],
)
async def test_a_copy_that_is_struck_mid_fragment_is_committed(
    stage: FaultStage,
    strike: Callable[[FaultStage, Move, Block], Awaitable[bytes | None]],
    engine: str | None,
) -> None:
    move = await stage.plan()
    await move.survives(partial(strike, stage, move), engine)


async def test_a_driver_killed_mid_fragment_lets_the_destination_copy_itself(stage: FaultStage) -> None:
    move = await stage.plan()

    async def kill(block: Block) -> bytes:
        os.kill(stage.kubelet.the("driver", move.destination), signal.SIGKILL)
        return block.data

    await move.survives(kill)
    assert any(reason == "SparkFailed" and "DRIVER" in text for reason, text in await stage.events())


async def test_a_zombie_task_that_writes_after_the_commit_does_no_harm(stage: FaultStage) -> None:
    """Its driver is gone, another copied what it was to copy; only then it goes on."""
    move = await stage.plan()
    zombies: list[int] = []

    async def freeze(block: Block) -> bytes:
        zombies.append(stage.kubelet.the("executor", move.destination))
        os.kill(zombies[0], signal.SIGSTOP)
        os.kill(stage.kubelet.the("driver", move.destination), signal.SIGKILL)
        return block.data

    await move.survives(freeze)
    os.kill(zombies[0], signal.SIGCONT)

    async def ended() -> bool:
        return zombies[0] not in stage.kubelet.alive("executor", move.destination)

    await stage.until("the end of the zombie", ended)


async def test_a_source_whose_transfer_process_stands_still_is_asked_again(stage: FaultStage) -> None:
    """The executor bears no silence of 30 s here, but of one."""
    move = await stage.plan()
    impatient = stage.kubelet.spark_folder / "impatient"

    async def asked_again() -> bool:
        return stage.wire.requests > before

    async def freeze(block: Block) -> bytes:
        nonlocal before
        before = stage.wire.requests
        pid = stage.kubelet.pids()[f"{block.source}/transfer"]
        os.kill(pid, signal.SIGSTOP)
        try:
            await stage.until("another request for the fragment", asked_again)
        finally:
            os.kill(pid, signal.SIGCONT)
        return block.data

    before, struck = 0, move.at(2, freeze)
    impatient.touch()
    try:
        status = await move.done()
    finally:
        impatient.unlink()
    assert struck.is_set()
    assert status["engine"] == "Spark", status
    assert sum(each["retries"] for each in status["destinations"]) > 0, status


@pytest.mark.parametrize("role", ["driver", "executor"])
async def test_a_driver_or_executor_that_stands_still_is_given_up(stage: FaultStage, role: str) -> None:
    """After 180 s without news; the master of this test is less patient."""
    before = await stage.events()
    move = await stage.plan()
    frozen: list[int] = []

    async def freeze(block: Block) -> bytes:
        frozen.append(stage.kubelet.the(role, move.destination))
        os.kill(frozen[0], signal.SIGSTOP)
        return block.data

    async def driver_ended() -> bool:
        return driver not in stage.kubelet.alive("driver", move.destination)

    await stage.restart_operator(IMPATIENT)
    struck = move.at(2, freeze)
    try:
        await move.start()
        await asyncio.wait_for(struck.wait(), DEADLINE_SECONDS)
        driver = stage.kubelet.the("driver", move.destination)
        await move.done()
        await stage.until("the end of the driver", driver_ended)
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        await stage.restart_operator()
    told = await stage.events() - before
    assert any(reason == "SparkFailed" and "STALLED" in text for reason, text in told), told


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip_a_bit(file: Path) -> None:
    """Its size stays as it was."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip_a_bit])
async def test_a_file_harmed_in_staging_is_not_taken_in(
    stage: FaultStage, harm: Callable[[Path], None]
) -> None:
    before = await stage.events()
    move = await stage.plan(tablets=2)
    struck = asyncio.Event()

    async def strike(block: Block) -> bytes:
        """When a block of the second tablet comes, the first one's file is complete."""
        whole = staged_files(stage, move.destination, "*.sst")
        if whole and staged_files(stage, move.destination, "*.json") and not struck.is_set():
            harm(whole[0])
            struck.set()
        return block.data

    stage.wire.arm(strike, move.partitions)
    await move.done()
    assert struck.is_set()
    told = await stage.events() - before
    assert any(reason == "CopySpoiled" and "which differs from its manifest" in text for reason, text in told)
    assert not any(reason == "SparkFailed" for reason, _ in told), told


def fill(disk: Path, free_bytes: int) -> None:
    """Leave so much of the disk."""
    now = os.statvfs(disk)
    with (disk / BALLAST).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, now.f_bavail * now.f_frsize - free_bytes)


async def told_of_no_space(stage: FaultStage, move: Move, struck: asyncio.Event) -> None:
    """By the move itself or by a new event, once its disk is full."""
    before = await stage.events()

    async def told() -> bool:
        new = await stage.events() - before
        return struck.is_set() and "NO_SPACE" in json.dumps([await move.status(), list(new)])

    await stage.until("NO_SPACE in the status or an event", told)


async def test_a_disk_that_gets_full_stops_the_copy_and_not_the_member(stage: FaultStage) -> None:
    if not stage.disk_is_small:
        pytest.skip("mounting a small file system needs root")
    disk, before = stage.directory / SMALL_DISK, stage.kubelet.pids()
    move = await stage.plan(destination=SMALL_DISK)

    async def nearly(block: Block) -> bytes:
        fill(disk, NEARLY_FULL_BYTES)
        return block.data

    struck = move.at(1, nearly)
    await move.start()
    try:
        await told_of_no_space(stage, move, struck)
    finally:
        (disk / BALLAST).unlink(missing_ok=True)
    await move.done()
    assert struck.is_set()
    assert stage.kubelet.pids() == before


async def test_a_disk_without_a_byte_left_loses_nothing(stage: FaultStage) -> None:
    """The member writes nothing, and goes on when there is space."""
    if not stage.disk_is_small:
        pytest.skip("mounting a small file system needs root")
    disk = stage.directory / SMALL_DISK
    move = await stage.plan(destination=SMALL_DISK)

    async def completely(block: Block) -> bytes:
        fill(disk, 0)
        return block.data

    struck, before = move.at(1, completely), stage.kubelet.pids()

    async def waits() -> bool:
        return struck.is_set() and "NO_SPACE" in json.dumps(await move.status())

    # Clients hear NO_SPACE and UNCERTAIN meanwhile, as from a member that is away.
    stage.member_died = True
    await move.start()
    try:
        await stage.until("NO_SPACE in the status of the move", waits)
    finally:
        (disk / BALLAST).unlink(missing_ok=True)
    await move.done()
    assert struck.is_set()
    assert stage.kubelet.pids() == before


async def test_an_executor_that_cannot_be_placed_is_told_and_done_without(stage: FaultStage) -> None:
    move = await stage.plan()
    no_room = stage.kubelet.spark_folder / "no-room"
    no_room.touch()
    try:
        stage.wire.arm(None, move.partitions)
        status = await move.done()
    finally:
        no_room.unlink()
    assert status["bytesBySpark"] == 0, status
    assert any(reason == "SparkFailed" and "NO_EXECUTORS" in text for reason, text in await stage.events())
    assert "NO_EXECUTORS" in json.dumps(status), status


async def test_a_slow_source_is_waited_for(stage: FaultStage) -> None:
    move = await stage.plan()

    async def slow(block: Block) -> bytes:
        await asyncio.sleep(SLOW_SECONDS)
        return block.data

    stage.wire.arm(slow, move.partitions)
    status = await move.done()
    assert status["engine"] == "Spark", status


async def test_a_session_whose_lease_is_lost_ends_and_another_copies(stage: FaultStage) -> None:
    move = await stage.plan()

    async def stand_still(block: Block) -> bytes:
        """The master sleeps until the source gave the session up."""
        stage.operator.send(signal.SIGSTOP)
        session = stage.directory / block.source / "checkpoints" / block.session
        assert session.exists()

        async def given_up() -> bool:
            return not session.exists()

        try:
            await stage.until("the end of the session", given_up)
        finally:
            stage.operator.send(signal.SIGCONT)
        return block.data

    await move.survives(stand_still)


async def test_a_copy_that_is_rolled_back_leaves_the_rows_as_they_were(stage: FaultStage) -> None:
    before = (await stage.rows()).rows
    move = await stage.plan()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold(block: Block) -> bytes:
        reached.set()
        await go_on.wait()
        return block.data

    move.at(2, hold)
    await move.start()
    await asyncio.wait_for(reached.wait(), DEADLINE_SECONDS)
    status = await move.cancel()
    go_on.set()
    assert status["phase"] == "Superseded", status
    assert (status.get("done") or {}).get("total", 0) == 0, status
    assert (await stage.rows()).rows == before


async def test_at_the_end_nothing_is_lost_left_behind_or_doubled(stage: FaultStage) -> None:
    stage.wire.arm(None)
    await stage.until_converged(3)
    await stage.nothing_left()
    clients, tally, violations = await verified(stage)
    assert clients["acknowledged"] > 100
    assert (clients["violations"], violations) == ([], [])
    assert not tally.faults, tally.differences
    assert tally.replicas == 2 * tally.partitions == 62
    await stage.until("tablets as the rows say", stage.nothing_doubled)
    assert min(stage.fewest.values()) == 2, stage.fewest
