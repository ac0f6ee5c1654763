"""Frames between members: length (4), crc32c of the body (4), both big-endian, then the body."""

import struct
from collections.abc import Iterator

from crc32c import crc32c

FRAME_BYTES_MAX = 16 * 1024 * 1024
GREETING_BYTES_MAX = 4 * 1024
"""Longest frame of a peer that has not been identified yet."""
_HEAD = struct.Struct(">II")
HEAD_BYTES = _HEAD.size


class FrameError(ValueError):
    """The bytes are not a frame; the connection is unusable from here on."""


def encode_frame(body: bytes) -> bytes:
    """Frame a body. Raises FrameError when it exceeds FRAME_BYTES_MAX."""
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"frame of {len(body)} bytes; at most {FRAME_BYTES_MAX} are allowed")
    return _HEAD.pack(len(body), crc32c(body)) + body


class FrameDecoder:
    """Splits a byte stream into bodies of at most `bytes_max`. Unusable after a FrameError."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._buffer = bytearray()
        self._broken = False

    def allow(self, bytes_max: int) -> None:
        """Accept bodies of at most so many bytes from the next one on."""
        self.bytes_max = bytes_max

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes, and iterate over the bodies that are complete now.

        Each is looked at when it is asked for, so that `allow` holds for what follows in the same bytes.
        Those that are not asked for come with the next call. Raises FrameError for an invalid length or
        checksum.
        """
        if self._broken:
            raise FrameError("the stream is unusable after an earlier frame error")
        whole = None if self._buffer else self._whole(data)
        if whole is not None:
            return iter((whole,))
        self._buffer += data
        return self._bodies()

    def _whole(self, data: bytes) -> bytes | None:
        """Return the body of what is exactly one valid frame, as most are; None for anything else."""
        if len(data) < HEAD_BYTES:
            return None
        length, checksum = _HEAD.unpack_from(data)
        if length != len(data) - HEAD_BYTES or length > self.bytes_max:
            return None
        body = data[HEAD_BYTES:]
        return body if crc32c(body) == checksum else None

    def _bodies(self) -> Iterator[bytes]:
        begin = 0
        try:
            while (body := self._body(begin)) is not None:
                begin += HEAD_BYTES + len(body)
                yield body
        finally:
            del self._buffer[:begin]

    def _body(self, begin: int) -> bytes | None:
        """Return the body of the frame that begins there, None while it is not complete."""
        buffer = self._buffer
        if len(buffer) - begin < HEAD_BYTES:
            return None
        length, checksum = _HEAD.unpack_from(buffer, begin)
        if length > self.bytes_max:
            self._fail(f"frame of {length} bytes; at most {self.bytes_max} are allowed")
        end = begin + HEAD_BYTES + length
        if end > len(buffer):
            return None
        body = bytes(memoryview(buffer)[begin + HEAD_BYTES : end])
        if crc32c(body) != checksum:
            self._fail(f"frame of {length} bytes has a wrong checksum")
        return body

    def _fail(self, text: str) -> None:
        self._broken = True
        self._buffer.clear()
        raise FrameError(text)
