"""A member's log of operations in files of its own: segments, which are appended to and deleted as a whole.

A write is one frame in the newest segment. What operations there are, and where, is in memory; a start reads
all segments. Ranges are deleted by a frame that names them; a segment goes when none of its operations is
left. Only the oldest segment is deleted, so that no operation comes back whose deletion is in a later one.

Partitions that are seldom written to would keep old segments for a few operations. So operations of the
oldest segment are moved to the newest, a few with each write, while more than half of all bytes are of no
use; at most CLEAN_BYTES, and as many bytes as the operations have, are of no use after that.

Published source of the moves: Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured
File System, 1992.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from stele.adapters.segments import files
from stele.adapters.segments.files import Segment
from stele.adapters.segments.positions import NUMBER_SHIFT, OFFSET_MASK, VISIT_BYTES, Piece, Positions
from stele.errors import Corrupt, Unavailable
from stele.wire.storage.keys import log_key, split_log_key
from stele.wire.storage.segment import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    MOVED,
    OLDEST,
    OPERATION_BYTES,
    Frame,
    check_record,
    check_records,
    decode_frame,
    encode_frame,
    encode_moved,
    encode_oldest,
)

SEGMENT_BYTES = 16 * 1024 * 1024
"""Bytes after which the next sync begins another segment."""

CLEAN_BYTES = 64 * 1024 * 1024
"""Bytes of no use from which on operations of the oldest segment are moved."""

MOVE_BYTES = 64 * 1024
"""Bytes that are moved with a write at least, while operations are moved; twice its own if that is more."""

DELETED_MAX = 4
"""Segments that a sync deletes at most: writes may wait for it."""

INDEX_MAX = 2**64 - 1

PIECE_BYTES_MAX = 1024 * 1024
"""Bytes that are read at once, unless one record is larger."""

Puts = Sequence[tuple[bytes, bytes]]
Drops = Sequence[tuple[bytes, bytes]]


class SegmentedLog:
    """See the module. `sync` and `close` may run in other threads, all else in one.

    Raises Unavailable when a file cannot be written (NO_SPACE, nothing was written; DISK_ERROR) and after
    `close` (CLOSED), Corrupt when a record is not as it was written.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        """Read the log in a folder. Raises Corrupt, and Unavailable (DISK_ERROR).

        A frame that is not whole at the end of the newest segment was never synced, and is cut off.
        """
        self._folder, self._read_only = folder, read_only
        self._positions = Positions()
        # `_append` guards the end of the log and the list of segments, `_sync` lets one sync run at a time.
        self._append, self._sync = Lock(), Lock()
        self._closed = False
        self._failed: Unavailable | None = None
        # No segment with a lower number is needed, and any of the others may be.
        self._oldest = 0
        # Partitions of which operations are to be moved; of the last one, those from an index on.
        self._to_clean: list[int] = []
        self._cleaned_to = 0
        self._segments = files.find(folder)
        try:
            self._replay()
        except BaseException:
            self._segments[-1].close()
            raise

    @classmethod
    def copy(cls, pages: Iterable[Puts], folder: Path) -> None:
        """Slow. Make a log of these operations in a new folder, which is there when all are on disk."""
        aside = folder.with_name(folder.name + ".new")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            cls._make(pages, aside)
            with files.failing(folder):
                os.rename(aside, folder)
        except BaseException:
            # It may be what fills the volume.
            shutil.rmtree(aside, ignore_errors=True)
            raise
        files.sync_folder(folder.parent)

    @classmethod
    def _make(cls, pages: Iterable[Puts], folder: Path) -> None:
        with files.failing(folder):
            folder.mkdir(parents=True)
        first = files.create(folder, 0)
        try:
            files.begin(first, 0)
        finally:
            first.close()
        log = cls(folder)
        try:
            for page in pages:
                log.write(page)
                log.sync()
        finally:
            log.close()

    # -- the start

    def _replay(self) -> None:
        """Read all frames; delete empty files behind the newest segment, which a crash left."""
        begun = [segment for segment in self._segments if segment.size >= HEADER_BYTES]
        empty = self._segments[len(begun) :]
        if any(segment.size >= HEADER_BYTES for segment in empty):
            raise Corrupt(f"{empty[0].path} has {empty[0].size} bytes, at least {HEADER_BYTES} were written")
        if not self._read_only:
            begun[-1].open()
        for segment in begun:
            end = self._read(segment, newest=segment is begun[-1])
            if end != segment.size and segment is not begun[-1]:
                raise Corrupt(f"{segment.path} ends with a frame that is not whole")
            segment.end_at(end)
        self._positions.settle()
        if begun[0].number > self._oldest:
            raise Corrupt(f"{self._folder / files.name_of(self._oldest)} is missing")
        self._segments = begun
        self._bytes = sum(segment.size for segment in begun)
        for segment in reversed(empty) if not self._read_only else ():
            files.remove(self._folder, segment)

    def _read(self, segment: Segment, *, newest: bool) -> int:
        """Read the frames of a segment; return where the last whole one ends.

        Records of older segments, which were on disk before the newest began, are checked when they are read.
        """
        at, content = HEADER_BYTES, memoryview(segment.salvage(segment.size, 0))
        try:
            while at < len(content) and (frame := decode_frame(content, at)) is not None:
                if newest and frame.kind != MOVED:
                    check_records(content, frame)
                self._take_in(segment.number, frame)
                at = frame.end
        except Corrupt as error:
            raise Corrupt(f"{segment.path}: {error.text}", error.code) from error
        return at

    def _take_in(self, number: int, frame: Frame) -> None:
        place = number << NUMBER_SHIFT | frame.records_at
        if frame.kind == MOVED:
            self._positions.move(place, frame.operations)
        elif frame.kind == OLDEST:
            self._oldest = frame.ranges[0][1]
        else:
            self._positions.drop(frame.ranges)
            self._positions.put(place, frame.operations)

    # -- writing

    def write(self, puts: Puts, drops: Drops = ()) -> None:
        """Delete the ranges, then put the operations, as one."""
        with self._append:
            self._check_open()
            positions = self._positions
            ranges = [(*split_log_key(begin), split_log_key(end)[1]) for begin, end in drops]
            operations = [(*split_log_key(key), len(record)) for key, record in puts]
            positions.check(operations, ranges)
            frame, records_at = encode_frame(puts, drops)
            place = self._append_frame(frame) + records_at
            positions.drop(ranges)
            positions.put(place, operations)
            if self._much_is_unused:
                self._clean(max(MOVE_BYTES, 2 * len(frame)))

    def _append_frame(self, frame: bytes) -> int:
        """Return the place of the frame."""
        segment = self._segments[-1]
        place = segment.number << NUMBER_SHIFT | segment.size
        if segment.size + len(frame) > OFFSET_MASK:
            raise Unavailable(f"log: {segment.path} is full until the next sync", "NO_SPACE")
        try:
            segment.append(frame)
        except Unavailable as error:
            if error.code != "NO_SPACE":
                self._failed = error
            raise
        self._bytes += len(frame)
        return place

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable.closed()
        if self._failed is not None:
            raise self._failed

    @property
    def _much_is_unused(self) -> bool:
        used = self._positions.record_bytes + OPERATION_BYTES * self._positions.count
        return self._bytes - used > max(CLEAN_BYTES, used)

    # -- moving operations of the oldest segment

    def _clean(self, bytes_max: int) -> None:
        """Move operations of the oldest segment that has any, up to about so many bytes."""
        operations = self._positions.operations
        oldest = next((each.number for each in self._segments[:-1] if operations.get(each.number)), None)
        if oldest is None:
            return
        if not self._to_clean:
            self._to_clean = self._positions.partitions()
        # What is moved only saves space: without room for it nothing is lost.
        with suppress(Unavailable):
            while bytes_max > 0 and self._to_clean and operations.get(oldest):
                bytes_max -= self._clean_partition(self._to_clean[-1], oldest, bytes_max)

    def _clean_partition(self, partition: int, oldest: int, bytes_max: int) -> int:
        """Move operations of a partition, then go on to the next one; return the cost in bytes."""
        begin = self._cleaned_to
        indexes, go_on = self._positions.indexes_in(partition, oldest, begin, bytes_max)
        cost_bytes = OPERATION_BYTES + (VISIT_BYTES * (go_on - begin) if go_on else 0)
        if indexes:
            cost_bytes += self._move(partition, oldest, indexes[0], indexes[-1] + 1)
        if go_on is None:
            self._to_clean.pop()
        self._cleaned_to = go_on or 0
        return cost_bytes

    def _move(self, partition: int, oldest: int, first: int, after: int) -> int:
        """Move operations of a range that are in the oldest segment; return the bytes of the frame.

        Their records go as they are, with their checksums: one that is damaged is told when it is read.
        """
        entries: list[tuple[bytes, bytes]] = []
        for piece in self._positions.pieces(partition, first, after, PIECE_BYTES_MAX):
            if piece.place >> NUMBER_SHIFT == oldest:
                content = self._segment(oldest).salvage(piece.bytes, piece.place & OFFSET_MASK)
                entries += _entries(partition, piece, content)
        frame, records_at = encode_moved(entries)
        place = self._append_frame(frame) + records_at
        operations = [(*split_log_key(key), len(entry) - CHECKSUM_BYTES) for key, entry in entries]
        self._positions.move(place, operations)
        return len(frame)

    # -- reading

    def get(self, key: bytes) -> bytes | None:
        partition, index = split_log_key(key)
        with self._append:
            self._check_open()
            records = self._records(partition, index, index + 1, PIECE_BYTES_MAX)
            return next((record for _, record in records), None)

    def scan(self, begin: bytes, end: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Return operations of [begin, end) of a partition, up to the one that reaches `bytes_max`."""
        (partition, first), (_, after) = split_log_key(begin), split_log_key(end)
        found: list[tuple[bytes, bytes]] = []
        with self._append:
            self._check_open()
            for key, record in self._records(partition, first, after, min(bytes_max, PIECE_BYTES_MAX)):
                found.append((key, record))
                bytes_max -= len(record)
                if bytes_max <= 0:
                    break
        return found

    def bounds(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the first and last key in [begin, end) of a partition; None where there is none."""
        self._check_open()
        (partition, first), (_, after) = split_log_key(begin), split_log_key(end)
        found = self._positions.bounds(partition, first, after)
        return None if found is None else (log_key(partition, found[0]), log_key(partition, found[1]))

    def is_trimmed(self, key: bytes) -> bool:
        """Return whether a partition's operations begin after this one."""
        partition, index = split_log_key(key)
        found = self._positions.bounds(partition, 0, INDEX_MAX)
        return found is not None and index < found[0]

    def _records(
        self, partition: int, first: int, after: int, piece_bytes: int
    ) -> Iterator[tuple[bytes, bytes]]:
        for piece in self._positions.pieces(partition, first, after, piece_bytes):
            segment = self._segment(piece.place >> NUMBER_SHIFT)
            content = segment.read(piece.bytes, piece.place & OFFSET_MASK)
            for key, entry in _entries(partition, piece, content):
                check_record(entry, *split_log_key(key))
                yield key, entry[CHECKSUM_BYTES:]

    def _segment(self, number: int) -> Segment:
        return self._segments[number - self._segments[0].number]

    # -- on disk

    def sync(self) -> None:
        """Slow. What was written before the call is on disk on return; old segments are deleted."""
        with self._sync:
            with self._append:
                self._check_open()
                newest, end, unused = self._segments[-1], self._segments[-1].size, self._unused()
            if self._read_only:
                return
            self._sync_segment(newest)
            if end >= SEGMENT_BYTES:
                self._begin_segment(newest)
            if unused:
                self._delete(unused)

    def _sync_segment(self, segment: Segment) -> None:
        """Sync; after an error nobody knows what is on disk, so nothing may be written any more."""
        try:
            segment.sync()
        except Unavailable as error:
            self._failed = Unavailable(error.text, "DISK_ERROR")
            raise self._failed from error

    @property
    def end(self) -> tuple[str, int]:
        """The name of the newest segment's file, and its size."""
        newest = self._segments[-1]
        return newest.path.name, newest.size

    def before_checkpoint(self) -> None:
        """Do nothing: a checkpoint of the database has no operations in it."""

    def _unused(self) -> list[Segment]:
        """Return the oldest segments, as long as none of their operations is left."""
        unused = []
        for segment in self._segments[:-1][:DELETED_MAX]:
            if self._positions.operations.get(segment.number):
                break
            unused.append(segment)
        return unused

    def _begin_segment(self, newest: Segment) -> None:
        """Write to another segment from now on; all of the one before is on disk then.

        Without room for it, the newest one goes on.
        """
        try:
            made = files.create(self._folder, newest.number + 1)
        except Unavailable:
            return
        try:
            # Once more, so that writers wait for little while the rest is synced.
            synced = newest.size
            self._sync_segment(newest)
            with self._append, suppress(Unavailable):
                if newest.size != synced:
                    self._sync_segment(newest)
                files.begin(made, newest.size)
                self._segments = [*self._segments, made]
                self._bytes += made.size
        finally:
            (newest if self._segments[-1] is made else made).close()

    def _delete(self, unused: list[Segment]) -> None:
        """Delete segments, oldest first, once it is on disk that none before another is needed.

        What cannot be done now is done by a later sync.
        """
        with suppress(Unavailable):
            with self._append:
                self._check_open()
                self._append_frame(encode_oldest(unused[-1].number + 1))
                newest = self._segments[-1]
            self._sync_segment(newest)
            for segment in unused:
                files.remove(self._folder, segment)
                with self._append:
                    self._segments = self._segments[1:]
                    self._bytes -= segment.size
                    self._positions.forget(segment.number)

    def close(self) -> None:
        """Slow. Sync, and close the files; a second call does nothing."""
        with self._sync, self._append:
            if self._closed:
                return
            self._closed = True
            try:
                if not self._read_only:
                    self._segments[-1].sync()
            finally:
                self._segments[-1].close()


def _entries(partition: int, piece: Piece, content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate key, and checksum with record, of each operation in a piece."""
    at = 0
    for index, record_bytes in enumerate(piece.sizes, piece.first):
        end = at + CHECKSUM_BYTES + record_bytes
        yield log_key(partition, index), content[at:end]
        at = end
