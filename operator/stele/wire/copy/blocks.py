"""The stream of one fragment from a checkpoint to a copy: blocks, each with its own checksum.

A block is length (u32, big-endian), crc32c of the body (u32), body. A body is a kind (1 byte) and

- ENTRIES: count n (u32), n key lengths and n value lengths (u32 each), all keys, all values. The columnar
  layout lets Python pack and unpack a whole block in a few calls. Keys ascend strictly, across blocks too.
- END: msgpack of `End`, the totals. It is the last block; a stream without it is incomplete.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from crc32c import crc32c

from stele.core.control.commands import OpId
from stele.errors import Corrupt
from stele.wire.unreadable import UNREADABLE

BLOCK_BYTES = 1024 * 1024
BLOCK_BYTES_MAX = 16 * 1024 * 1024
BLOCK_ENTRIES_MAX = 64 * 1024
ENTRIES, END = 0, 1

Entry = tuple[bytes, bytes]

_HEAD = struct.Struct(">II")
_BODY = struct.Struct(">BI")


class End(msgspec.Struct, frozen=True, array_like=True):
    """Identity of a stream and its totals: number of entries, bytes of keys and values.

    `namespaces` maps each namespace to its version vector (`core.copy.fragments.versions`). `next` is where
    the tablet continues; in its last fragment `next` is empty and `applied` is set.
    """

    partition: int
    generation: int
    applied: OpId | None
    entries: int
    bytes: int
    namespaces: dict[str, tuple[int, ...]] = {}
    next: str = ""


_encode_end = msgspec.msgpack.Encoder().encode
_decode_end = msgspec.msgpack.Decoder(End).decode


def _sealed(parts: Iterable[bytes]) -> bytearray:
    """Build a block, copying the parts only once: at this rate a second copy would dominate the cost."""
    block = bytearray().join((bytes(_HEAD.size), *parts))
    _HEAD.pack_into(block, 0, len(block) - _HEAD.size, crc32c(memoryview(block)[_HEAD.size :]))
    return block


def encode_entries(keys: Sequence[bytes], values: Sequence[bytes]) -> bytearray:
    """Encode a block of at least one entry."""
    count = len(keys)
    lengths = struct.pack(f">{2 * count}I", *map(len, keys), *map(len, values))
    return _sealed((_BODY.pack(ENTRIES, count), lengths, *keys, *values))


def encode_end(end: End) -> bytearray:
    """Encode the last block."""
    return _sealed((bytes((END,)), _encode_end(end)))


def encode_stream(entries: Iterable[Entry], end: Callable[[int, int], End]) -> Iterator[bytearray]:
    """Encode all blocks of a fragment. `entries` must ascend; an entry is never split.

    `end` builds the last block from the number of entries and their bytes, when there are no more entries.
    """
    keys: list[bytes] = []
    values: list[bytes] = []
    size = count = total = 0
    for key, value in entries:
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size >= BLOCK_BYTES or len(keys) >= BLOCK_ENTRIES_MAX:
            yield encode_entries(keys, values)
            count, total, size, keys, values = count + len(keys), total + size, 0, [], []
    if keys:
        yield encode_entries(keys, values)
    yield encode_end(end(count + len(keys), total + size))


class BlockReader:
    """Reads a stream from `read(n)`, which returns n bytes, or fewer at the end of the data.

    Iterate over it for the entries of each block; afterwards `end` is set. Raises Corrupt for a wrong
    checksum, order, length or total, and for a stream that is truncated or continues after its end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.end: End | None = None
        self.entries = 0
        self.bytes = 0
        self._read = read
        self._last = b""

    def __iter__(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Iterate keys and values of each block."""
        while self.end is None:
            body = self._block()
            if body[0] == ENTRIES:
                yield self._columns(body)
            elif body[0] == END:
                self._finish(body)
            else:
                raise Corrupt(f"block of unknown kind {body[0]}")

    def _exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) != size:
            text = (
                f"the stream stops after {self.entries} entries: got {len(data)} of {size} bytes of a block"
            )
            raise Corrupt(text)
        return data

    def _block(self) -> bytes:
        size, crc = _HEAD.unpack(self._exactly(_HEAD.size))
        if not 1 <= size <= BLOCK_BYTES_MAX:
            raise Corrupt(f"block of {size} bytes, expected 1 to {BLOCK_BYTES_MAX}")
        body = self._exactly(size)
        if crc32c(body) != crc:
            raise Corrupt(f"block of {size} bytes after {self.entries} entries has a wrong crc32c")
        return body

    def _columns(self, body: bytes) -> tuple[list[bytes], list[bytes]]:
        count = _BODY.unpack_from(body)[1] if len(body) >= _BODY.size else 0
        begin = _BODY.size + 8 * count
        if not 1 <= count <= BLOCK_ENTRIES_MAX or begin > len(body):
            raise Corrupt(f"block of {len(body)} bytes claims {count} entries")
        lengths = struct.unpack_from(f">{2 * count}I", body, _BODY.size)
        if begin + sum(lengths) != len(body):
            raise Corrupt(f"lengths of {count} entries do not add up to a block of {len(body)} bytes")
        columns: list[bytes] = []
        for length in lengths:
            columns.append(body[begin : begin + length])
            begin += length
        keys, values = columns[:count], columns[count:]
        self._check_order(keys)
        self.entries += count
        self.bytes += sum(lengths)
        return keys, values

    def _check_order(self, keys: list[bytes]) -> None:
        # Sorting a sorted list is one pass in C, and a set detects equal neighbours.
        if (self.entries and keys[0] <= self._last) or sorted(keys) != keys or len(set(keys)) != len(keys):
            raise Corrupt(f"keys do not ascend after {self.entries} entries")
        self._last = keys[-1]

    def _finish(self, body: bytes) -> None:
        try:
            end = _decode_end(body[1:])
        except UNREADABLE as wrong:
            raise Corrupt(f"last block: {wrong}") from None
        if (end.entries, end.bytes) != (self.entries, self.bytes):
            received = f"received {self.entries} entries of {self.bytes} bytes"
            raise Corrupt(f"{received}, but {end.entries} entries of {end.bytes} bytes were sent")
        if self._read(1):
            raise Corrupt("the stream continues after its last block")
        self.end = end
