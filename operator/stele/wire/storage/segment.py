"""Bytes of a segment, a file of a member's log of operations.

A segment begins with MAGIC (8 bytes), the size of the segment before it (8), 0 for the first, and the
checksum of both (4). Frames follow; each is one write to the logs. A frame, big-endian:

    kind (1), bytes of the body (4), ranges (4), operations (4), checksum of the index (4)
    checksum of these (4)
    body:  index:    of each deleted range: partition (2), from index (8), to index (8), which stays
                     of each operation: its key, partition (2) and index (8), and bytes of its record (4)
           records:  of each operation: checksum (4), record

Checksums are CRC-32C. Ranges are deleted before operations are put. MOVED operations were in an older segment
before, and are in the log only where they are not in a range that was deleted since. A frame OLDEST has one
range, whose first index is the number of the oldest segment that is needed.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from stele.errors import Corrupt
from stele.wire.storage.keys import split_log_key

MAGIC: Final = b"stele L1"
WRITTEN: Final = 0
MOVED: Final = 1
OLDEST: Final = 2
CHECKSUM_BYTES: Final = 4

Operation = tuple[int, int, int]
"""Partition, index, bytes of the record."""
Range = tuple[int, int, int]
"""Partition, first index, first index after it."""

_SIZE = struct.Struct(">Q")
_CHECKSUM = struct.Struct(">I")
_FIELDS = struct.Struct(">BIIII")
_RANGE = struct.Struct(">HQQ")
_OPERATION = struct.Struct(">HQI")
_checksum = _CHECKSUM.pack
HEADER_BYTES: Final = len(MAGIC) + _SIZE.size + _CHECKSUM.size
HEAD_BYTES: Final = _FIELDS.size + _CHECKSUM.size

OPERATION_BYTES: Final = HEAD_BYTES + _OPERATION.size + CHECKSUM_BYTES
"""Bytes of a frame that has one operation, besides its record."""


class Frame(NamedTuple):
    """One frame as it is in a segment; `records_at` and `end` are places in the segment."""

    kind: int
    ranges: list[Range]
    operations: list[Operation]
    records_at: int
    end: int


def encode_header(size_before: int) -> bytes:
    """Return the first bytes of a segment that follows one of this size."""
    header = MAGIC + _SIZE.pack(size_before)
    return header + _checksum(crc32c(header))


def decode_header(header: bytes) -> int:
    """Return the size of the segment before. Raises Corrupt."""
    fields = header[:-CHECKSUM_BYTES]
    if len(header) != HEADER_BYTES or header[-CHECKSUM_BYTES:] != _checksum(crc32c(fields)):
        raise Corrupt(f"it begins with {header.hex()}: checksum mismatch")
    if not header.startswith(MAGIC):
        raise Corrupt(f"it begins with {header[:8]!r}; {MAGIC!r} was expected", code="UNKNOWN_FORMAT")
    return int(_SIZE.unpack_from(header, len(MAGIC))[0])


def encode_frame(
    puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[bytes, int]:
    """Return a frame, and where in it the first operation's checksum and record are.

    Operations are (key, record), ranges (first key, first key after it) of one partition each.
    """
    index = b"".join([key + _checksum(len(record)) for key, record in puts])
    if drops:
        ranges = [_RANGE.pack(*split_log_key(begin), split_log_key(end)[1]) for begin, end in drops]
        index = b"".join(ranges) + index
    parts = [index]
    for _, record in puts:
        parts += (_checksum(crc32c(record)), record)
    return _frame(WRITTEN, len(drops), len(puts), parts)


def encode_moved(entries: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, int]:
    """Return a frame of operations that are moved, like `encode_frame`.

    They are (key, checksum and record as they were written): a damaged one stays one.
    """
    index = b"".join([key + _checksum(len(entry) - CHECKSUM_BYTES) for key, entry in entries])
    return _frame(MOVED, 0, len(entries), [index, *[entry for _, entry in entries]])


def encode_oldest(number: int) -> bytes:
    """Return a frame that says that no segment before this one is needed."""
    return _frame(OLDEST, 1, 0, [_RANGE.pack(0, number, 0)])[0]


def _frame(kind: int, ranges: int, operations: int, parts: Sequence[bytes]) -> tuple[bytes, int]:
    """Return a frame of an index and what follows it, and where that begins."""
    index, body = parts[0], b"".join(parts)
    fields = _FIELDS.pack(kind, len(body), ranges, operations, crc32c(index))
    return fields + _checksum(crc32c(fields)) + body, HEAD_BYTES + len(index)


def decode_frame(segment: memoryview, at: int) -> Frame | None:
    """Return the frame at `at`, whose records are not checked; None when it is not whole.

    It is not whole when the segment ends before it does; zeros until the end count as the end. Raises
    Corrupt for a checksum of its head or index that differs.
    """
    records_at = at + HEAD_BYTES
    if records_at > len(segment):
        return None
    fields = segment[at : at + _FIELDS.size]
    if segment[at + _FIELDS.size : records_at] != _checksum(crc32c(fields)):
        if not any(segment[at:]):
            return None
        raise Corrupt(f"the frame at {at}: checksum mismatch")
    kind, body_bytes, ranges, operations, checksum = _FIELDS.unpack(fields)
    end = records_at + body_bytes
    if end > len(segment):
        return None
    index = segment[records_at : records_at + ranges * _RANGE.size + operations * _OPERATION.size]
    if crc32c(index) != checksum or kind not in (WRITTEN, MOVED, OLDEST):
        raise Corrupt(f"the index of the frame at {at}: checksum mismatch")
    split = ranges * _RANGE.size
    return Frame(
        kind,
        list(_RANGE.iter_unpack(index[:split])),
        list(_OPERATION.iter_unpack(index[split:])),
        records_at + len(index),
        end,
    )


def check_records(segment: memoryview, frame: Frame) -> None:
    """Check all records of a frame. Raises Corrupt."""
    at = frame.records_at
    for partition, index, size in frame.operations:
        check_record(segment[at : at + CHECKSUM_BYTES + size], partition, index)
        at += CHECKSUM_BYTES + size
    if at != frame.end:
        raise Corrupt(f"a frame ends at {frame.end}, its records at {at}")


def check_record(entry: bytes | memoryview, partition: int, index: int) -> None:
    """Check a record that follows its checksum. Raises Corrupt."""
    if entry[:CHECKSUM_BYTES] != _checksum(crc32c(entry[CHECKSUM_BYTES:])):
        raise Corrupt(f"operation {index} of partition {partition}: checksum mismatch")
