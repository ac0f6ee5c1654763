"""Logs that are broken on purpose: the checks of the other tests find each of them."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stele.adapters.segments import files
from stele.adapters.segments import log as module
from stele.adapters.segments.files import Segment
from stele.adapters.segments.log import SegmentedLog
from stele.errors import Corrupt
from stele.wire.storage.segment import CHECKSUM_BYTES, WRITTEN, encode_frame, encode_oldest
from tests.adapters.segments.crashes import crashed, fails
from tests.adapters.segments.workload import Workload

SEEDS = range(4)


def found_by_the_model(folder: Path, made: type[SegmentedLog]) -> bool:
    """Return whether the checks of test_log find something."""
    for seed in SEEDS:
        SegmentedLog.copy([], folder.with_name(f"log{seed}"))
        work = Workload(folder.with_name(f"log{seed}"), random.Random(seed), made)
        try:
            run(work)
        except (AssertionError, Corrupt):
            return True
    return False


def run(work: Workload) -> None:
    for _ in range(250):
        work.step()
        work.check()


def found_by_crashes(root: Path, made: type[SegmentedLog]) -> bool:
    """Return whether the checks of test_crash find something."""
    for seed in SEEDS:
        moments, states = crashed(root / f"root{seed}", seed, 110, made)
        if fails(moments, states, root / "aside", seed):
            return True
    return False


class DeletesBeforeTheSync(SegmentedLog):
    """Deletes segments before what was moved out of them, or its deletion, is on disk."""

    def sync(self) -> None:
        for segment in self._unused():
            self._append_frame(encode_oldest(segment.number + 1))
            files.remove(self._folder, segment)
            self._segments = self._segments[1:]
        super().sync()


class DeletesInTheMiddle(SegmentedLog):
    """Deletes each segment that has no operations, also behind one that has."""

    def _unused(self) -> list[Segment]:
        return [each for each in self._segments[:-1] if not self._positions.operations.get(each.number)]


class DeletesOneTooMany(SegmentedLog):
    """Deletes a segment that still has operations."""

    def _unused(self) -> list[Segment]:
        return self._segments[:1] if len(self._segments) > 3 else []


class SyncsNothing(SegmentedLog):
    """Leaves it to the operating system when data gets to disk."""

    def _sync_segment(self, segment: Segment) -> None:
        pass


def drops_unwritten(patch: pytest.MonkeyPatch) -> None:
    """Note deletions in memory only."""

    def encode(
        puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[bytes, int]:
        return encode_frame(puts)

    patch.setattr(module, "encode_frame", encode)


def moves_as_writes(patch: pytest.MonkeyPatch) -> None:
    """Write what is moved like what is new."""

    def encode(entries: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, int]:
        return encode_frame([(key, entry[CHECKSUM_BYTES:]) for key, entry in entries])

    patch.setattr(module, "encode_moved", encode)


def unmoved(patch: pytest.MonkeyPatch) -> None:
    """Note what is moved in memory only."""
    append = SegmentedLog._append_frame

    def append_frame(log: SegmentedLog, frame: bytes) -> int:
        return append(log, frame) if frame[0] == WRITTEN else log._segments[-1].number << 32

    patch.setattr(SegmentedLog, "_append_frame", append_frame)


def partial_frames(patch: pytest.MonkeyPatch) -> None:
    """Leave a frame that is not whole at the end of the newest segment as it is."""
    patch.setattr(os, "ftruncate", lambda handle, size: None)


@pytest.mark.parametrize("breaks", [drops_unwritten, moves_as_writes, unmoved])
def test_the_model_finds_what_is_not_written_as_it_is_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    breaks(monkeypatch)
    assert found_by_the_model(folder, SegmentedLog)


def test_losses_of_power_find_frames_that_are_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial_frames(monkeypatch)
    assert found_by_crashes(tmp_path, SegmentedLog)


def test_losses_of_power_find_a_segment_that_is_begun_before_the_last_one_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is synced but the newest segment, at the next sync."""

    class BeginsAnother(SegmentedLog):
        beginning = False

        def _begin_segment(self, newest: Segment) -> None:
            self.beginning = True
            super()._begin_segment(newest)
            self.beginning = False

        def _sync_segment(self, segment: Segment) -> None:
            if not self.beginning:
                super()._sync_segment(segment)

        def write(self, puts: module.Puts, drops: module.Drops = ()) -> None:
            super().write(puts, drops)
            newest = self._segments[-1]
            if newest.size >= module.SEGMENT_BYTES:
                self._begin_segment(newest)

    assert found_by_crashes(tmp_path, BeginsAnother)


@pytest.mark.parametrize("made", [DeletesInTheMiddle, DeletesOneTooMany])
def test_the_model_finds_segments_that_are_deleted_too_early(folder: Path, made: type[SegmentedLog]) -> None:
    assert found_by_the_model(folder, made)


@pytest.mark.parametrize("made", [DeletesBeforeTheSync, SyncsNothing])
def test_losses_of_power_find_what_is_not_synced(tmp_path: Path, made: type[SegmentedLog]) -> None:
    assert found_by_crashes(tmp_path, made)
