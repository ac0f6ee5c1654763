"""A random workload on a watched disk, and checks of what crashes and losses of power leave of it."""

import random
from pathlib import Path

import pytest

from stele.adapters.segments.log import SegmentedLog
from stele.errors import Corrupt
from stele.wire.storage.keys import log_key
from tests.adapters.segments.disk import Disk, Files, Moment, restore
from tests.adapters.segments.workload import (
    State,
    Workload,
    content,
    keys_from,
    small_limits,
    without_waiting,
)


def crashed(
    root: Path, seed: int, steps: int, made: type[SegmentedLog] = SegmentedLog
) -> tuple[list[Moment], list[State]]:
    """Run a workload; return all moments of its disk, and what there was after each write."""
    with pytest.MonkeyPatch.context() as patch:
        without_waiting(patch)
        small_limits(patch)
        SegmentedLog.copy([], root / "log")
        disk = Disk(root, patch)
        work = Workload(root / "log", random.Random(seed), made)
        disk.progress = work.progress
        for _ in range(steps):
            work.step()
        work.log.close()
    return disk.moments, work.states


def opened(files: Files, aside: Path) -> State:
    """Return what a log with these files has, also after another write and another start."""
    folder = restore(files, aside)
    log = SegmentedLog(folder)
    found = content(log)
    log.write([(log_key(5, 1 << 40), b"begins again")], [keys_from(5)])
    log.close()
    log = SegmentedLog(folder)
    again = content(log)
    log.close()
    kept = {key: record for key, record in found.items() if not keys_from(5)[0] <= key}
    assert again == {**kept, log_key(5, 1 << 40): b"begins again"}
    return found


def check_killed(moments: list[Moment], states: list[State], aside: Path) -> None:
    """Check that a killed process leaves what was there before or after the call under way."""
    with pytest.MonkeyPatch.context() as patch:
        without_waiting(patch)
        for moment in moments:
            _, done, begun = moment.progress
            assert opened(moment.files, aside) in states[done : begun + 1]


def check_power_lost(moments: list[Moment], states: list[State], aside: Path, seed: int) -> None:
    """Check that a loss of power leaves what was synced, and of the rest the first writes."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        without_waiting(patch)
        for moment in moments:
            synced, _, begun = moment.progress
            assert opened(moment.after_power_loss(chance), aside) in states[synced : begun + 1]


def fails(moments: list[Moment], states: list[State], aside: Path, seed: int) -> bool:
    """Return whether a check finds something."""
    try:
        check_killed(moments, states, aside)
        check_power_lost(moments, states, aside, seed)
    except (AssertionError, Corrupt):
        return True
    return False
