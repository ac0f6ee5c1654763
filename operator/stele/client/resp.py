"""A small client of RESP for loads and measurements: one connection, one request at a time."""

import asyncio
import ssl

ANSWER_SECONDS_MAX = 5.0
"""Seconds after which a request without an answer counts as an error."""
LINE_BYTES_MAX = 64 * 1024

Place = tuple[str, int]
ERRORS = (OSError, EOFError, ValueError, TimeoutError)
"""What a connection meets that ends."""


class ReplyError(Exception):
    """The member answered with an error."""


class Connection:
    """RESP with one member, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, place: Place, tls: ssl.SSLContext | None = None) -> "Connection":
        """Raises OSError."""
        return cls(*await asyncio.open_connection(*place, limit=LINE_BYTES_MAX, ssl=tls))

    async def ask(self, *words: bytes) -> bytes | None:
        """Return the reply. Raises ReplyError, and one of ERRORS when the connection is of no more use."""
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            self._writer.write(b"*%d\r\n%s" % (len(words), parts))
            line = (await self._reader.readuntil(b"\r\n"))[:-2]
            if line.startswith(b"-"):
                raise ReplyError(line[1:].decode(errors="replace"))
            if not line.startswith(b"$"):
                return line[1:]
            size = int(line[1:])
            return None if size < 0 else (await self._reader.readexactly(size + 2))[:-2]

    def close(self) -> None:
        self._writer.close()
