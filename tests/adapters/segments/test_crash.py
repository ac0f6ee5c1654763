"""Whenever a process is killed or power is lost, no synced write is lost and nothing dropped comes back."""

import random
from pathlib import Path

import pytest

from stele.adapters.segments.log import SegmentedLog
from stele.wire.storage.keys import log_key
from stele.wire.storage.segment import HEADER_BYTES, MOVED, decode_frame
from tests.adapters.segments.crashes import check_killed, check_power_lost, crashed
from tests.adapters.segments.disk import Disk, Files, restore
from tests.adapters.segments.workload import Pairs, content, small_limits

STEPS = 110


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_process_leaves_what_was_written(tmp_path: Path, seed: int) -> None:
    moments, states = crashed(tmp_path / "root", seed, STEPS)
    check_killed(moments, states, tmp_path / "aside")


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_of_power_leaves_what_was_synced_and_then_the_first_writes(tmp_path: Path, seed: int) -> None:
    moments, states = crashed(tmp_path / "root", seed, STEPS)
    check_power_lost(moments, states, tmp_path / "aside", seed)


def test_the_workload_begins_moves_and_deletes_segments(tmp_path: Path) -> None:
    """Otherwise the tests above would show little."""
    moments, _ = crashed(tmp_path / "root", 0, STEPS)
    assert any(moment.created for moment in moments)
    assert any(moment.deleted for moment in moments)
    assert any(has_moved(data) for data in moments[-1].files.values())
    assert any(moment.progress.done > moment.progress.synced for moment in moments)


def has_moved(segment: bytes) -> bool:
    """Return whether a segment has a frame of moved operations."""
    at = HEADER_BYTES
    while (frame := decode_frame(memoryview(segment), at)) is not None:
        if frame.kind == MOVED:
            return True
        at = frame.end
    return False


PAGES: list[Pairs] = [[(log_key(page, n), b"%d" % n * 9) for n in range(3, 20)] for page in range(4)]


def copied(root: Path) -> Disk:
    """Copy an old log; return the disk that was watched meanwhile."""
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        small_limits(patch)
        disk = Disk(root, patch)
        SegmentedLog.copy(PAGES, root / "log")
    return disk


def check_copy(files: Files, aside: Path) -> bool:
    """Check that a folder that is there has all, and that another copy works; return whether it is there."""
    there = any(name.startswith("log/") for name in files)
    folder = restore(files, aside)
    if not there:
        folder.rmdir()
        SegmentedLog.copy(PAGES, folder)
    log = SegmentedLog(folder)
    assert content(log) == dict(pair for page in PAGES for pair in page)
    log.close()
    return there


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_copy_is_there_once_all_of_it_is_on_disk(tmp_path: Path, power_lost: bool) -> None:
    chance = random.Random(1)
    there = []
    for moment in copied(tmp_path / "root").moments:
        files = moment.after_power_loss(chance) if power_lost else moment.files
        there.append(check_copy(files, tmp_path / "aside"))
    assert there == sorted(there), "first not there, then there"
    assert set(there) == {False, True}


def test_a_copy_that_fails_leaves_no_log(tmp_path: Path) -> None:
    def pages() -> "list[Pairs]":
        raise ValueError("the old log cannot be read")

    with pytest.raises(ValueError, match="old log"):
        SegmentedLog.copy((page for _ in range(1) for page in pages()), tmp_path / "log")
    assert not (tmp_path / "log").exists()
