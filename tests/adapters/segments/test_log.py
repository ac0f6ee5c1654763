"""A log in segments has what a model of it has, and needs no more space than it says."""

import random
from pathlib import Path

import pytest

from stele.adapters.segments.log import SegmentedLog
from stele.errors import Corrupt
from stele.wire.storage.keys import log_key
from tests.adapters.segments.workload import INDEX_MAX, Workload, keys_from

STEPS = 250


@pytest.mark.parametrize("seed", range(12))
def test_it_has_what_the_model_has_after_each_call(folder: Path, seed: int) -> None:
    work = Workload(folder, random.Random(seed))
    for _ in range(STEPS):
        work.step()
        work.check()
    work.reopen()
    work.check()
    work.log.close()


@pytest.mark.parametrize("seed", range(5))
def test_files_have_at_most_twice_what_is_of_use_and_a_little_more(folder: Path, seed: int) -> None:
    work = Workload(folder, random.Random(seed))
    for _ in range(3 * STEPS):
        work.step()
        work.sync()
        assert work.bytes_on_disk() <= work.most_bytes()
    assert min(path.name for path in folder.iterdir()) > "0000000010.seg", "segments are deleted"
    work.log.close()


def test_what_is_seldom_written_to_is_moved_and_keeps_no_segment(folder: Path) -> None:
    work = Workload(folder, random.Random(1))
    work.write([(log_key(5, 7), b"seldom"), (log_key(5, 8), b"written")])
    for index in range(300):
        work.write([(log_key(0, index), bytes(40))], [keys_from(0, 0, index)])
        work.sync()
    work.check()
    assert len(list(folder.iterdir())) < 10
    work.reopen()
    work.check()
    work.log.close()


def test_a_whole_log_is_there_after_a_start_with_other_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workload(folder, random.Random(3))
    for _ in range(STEPS):
        work.step()
    monkeypatch.undo()
    work.reopen()
    work.check()
    work.log.close()


def test_operations_beyond_a_page_are_scanned_in_order(folder: Path) -> None:
    work = Workload(folder, random.Random(0))
    work.write([(log_key(1, n), b"%d" % n * 40) for n in range(1, 50)])
    assert [key for key, _ in work.log.scan(*keys_from(1, 5, 40), 1 << 30)] == [
        log_key(1, n) for n in range(5, 40)
    ]
    work.check()
    work.log.close()


def test_the_end_names_the_newest_segment_and_its_size(folder: Path) -> None:
    log = SegmentedLog(folder)
    for index in range(40):
        log.write([(log_key(1, index), bytes(50))])
        log.sync()
        newest = max(folder.iterdir())
        assert log.end == (newest.name, newest.stat().st_size)
    log.close()


def moved_log(folder: Path) -> Workload:
    """Return a log whose operations 1 to 5 of partition 5 were moved, and are in no other segment."""
    work = Workload(folder, random.Random(0))
    work.write([(log_key(5, index), b"first %d" % index) for index in range(1, 6)])
    index = 0
    while (folder / "0000000000.seg").exists():
        work.write([(log_key(0, index), bytes(40))], [keys_from(0, 0, index)])
        work.sync()
        index += 1
    return work


def test_moved_operations_come_back_and_their_cut_stays(folder: Path) -> None:
    work = moved_log(folder)
    work.write([(log_key(5, 4), b"other")], [keys_from(5, 4)])
    work.write([], [keys_from(5, 0, 2)])
    work.reopen()
    work.check()
    assert [work.log.get(log_key(5, n)) for n in (1, 2, 4, 5)] == [None, b"first 2", b"other", None]
    work.log.close()


FOLLOWS: dict[str, tuple[list[int], list[tuple[int, int]]]] = {
    "put again": ([3], []),
    "after a gap": ([7], []),
    "before all": ([0], []),
    "after a gap of its own": ([6, 8], []),
    "after a cut": ([5], [(4, INDEX_MAX)]),
    "after a front": ([5], [(0, 3)]),
    "a cut of nothing": ([5], [(6, INDEX_MAX)]),
    "a hole": ([6], [(2, 4)]),
}
"""Indexes that are put and ranges that are dropped of a log of 1 to 5, which is against the port's rules."""


@pytest.mark.parametrize("wrong", FOLLOWS)
def test_what_does_not_follow_is_refused_and_nothing_of_it_is_written(folder: Path, wrong: str) -> None:
    work = moved_log(folder)
    puts, drops = FOLLOWS[wrong]
    before = work.bytes_on_disk()
    with pytest.raises(Corrupt, match="log of partition 5"):
        work.log.write([(log_key(5, n), b"new") for n in puts], [keys_from(5, *each) for each in drops])
    assert work.bytes_on_disk() == before
    work.check()
    work.write([(log_key(5, 6), b"sixth")], [keys_from(5, 0, 3)])
    work.write([(log_key(5, 9), b"another")], [keys_from(5, 0, 4), keys_from(5, 4)])
    work.reopen()
    work.check()
    work.log.close()
