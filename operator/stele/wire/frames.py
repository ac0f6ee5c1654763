"""Frames between members: length (4), crc32c of the body (4), both big-endian, then the body."""

import struct

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
        """Accept bodies of at most so many bytes from now on."""
        self.bytes_max = bytes_max

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that are complete now. Raises FrameError for an invalid length or checksum."""
        if self._broken:
            raise FrameError("the stream is unusable after an earlier frame error")
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        begin, size = 0, len(buffer)
        while size - begin >= HEAD_BYTES:
            length, checksum = _HEAD.unpack_from(buffer, begin)
            if length > self.bytes_max:
                self._fail(f"frame of {length} bytes; at most {self.bytes_max} are allowed")
            end = begin + HEAD_BYTES + length
            if end > size:
                break
            body = bytes(memoryview(buffer)[begin + HEAD_BYTES : end])
            if crc32c(body) != checksum:
                self._fail(f"frame of {length} bytes has a wrong checksum")
            bodies.append(body)
            begin = end
        if begin:
            del buffer[:begin]
        return bodies

    def _fail(self, text: str) -> None:
        self._broken = True
        self._buffer.clear()
        raise FrameError(text)
