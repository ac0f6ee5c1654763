"""A TCP connection for frames of msgpack messages; asyncio streams would cost twice as much."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, cast

from stele.wire.frames import FRAME_BYTES_MAX, GREETING_BYTES_MAX, FrameDecoder, FrameError, encode_frame
from stele.wire.peer import Message, MessageError, decode_greeting, decode_message, encode_message

WRITE_BUFFER_BYTES = 4 * 1024 * 1024
"""Above this many buffered bytes the connection is full, until half of them are sent."""


class Handler(Protocol):
    """Callbacks of a connection. None is called after `closed`."""

    def opened(self, connection: "Connection") -> None: ...

    def received(self, connection: "Connection", message: Message) -> None: ...

    def drained(self, connection: "Connection") -> None:
        """The connection, which was full, has room again."""
        ...

    def closed(self, connection: "Connection", reason: str) -> None: ...


class Connection(asyncio.Protocol):
    """A connection. Invalid bytes close it, with the reason, and have no other effect.

    Until `greeted` only short greetings are accepted, since anyone can connect. `certificate` is the verified
    one of the other side, None without TLS, and `chain` what it was verified by.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._frames = FrameDecoder(GREETING_BYTES_MAX)
        self._decode = decode_greeting
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._reason = ""
        self._closed = False
        self.full = False
        self.invalid = False
        self.peer = "?"
        self.certificate: Mapping[str, Any] | None = None
        self.chain: frozenset[bytes] = frozenset()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES, WRITE_BUFFER_BYTES // 2)
        self.peer = str(transport.get_extra_info("peername"))
        self.certificate = transport.get_extra_info("peercert")
        self.chain = transport.get_extra_info("peerchain", frozenset())
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                if self._closed:
                    return
                self._handler.received(self, self._decode(body))
        except (FrameError, MessageError) as error:
            self.close(f"invalid bytes from {self.peer}: {error}", invalid=True)

    def greeted(self) -> None:
        """Accept all messages from now on: the other side is identified."""
        self._frames.allow(FRAME_BYTES_MAX)
        self._decode = decode_message

    def send(self, message: Message, *, now: bool = False) -> None:
        """Queue a message; all messages of one turn of the loop go out in one write.

        `now` says that it is the last one of the turn: it is written with those before it. Dropped after
        `close`.
        """
        if self._closed or self._transport is None:
            return
        loop = asyncio.get_running_loop()
        if not (now or self._waiting):
            loop.call_soon(self._flush)
        try:
            self._waiting.append(encode_frame(encode_message(message)))
        except FrameError as error:
            # Deferred, so that the sender continues as if the connection ended a moment later.
            loop.call_soon(self.close, f"{type(message).__name__} to {self.peer} is too large: {error}")
        if now:
            self._flush()

    def _flush(self) -> None:
        frames, self._waiting = self._waiting, []
        if self._transport is not None and not self._transport.is_closing() and frames:
            self._transport.write(b"".join(frames))

    def close(self, reason: str, *, invalid: bool = False) -> None:
        """Send queued messages, then close. `invalid`: what the other side sent breaks the protocol."""
        if self._closed or self._transport is None:
            return
        self._reason, self.invalid = reason, invalid
        self._flush()
        self._transport.close()
        self._lost()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if not self._closed:
            self._handler.drained(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reason = self._reason or (str(exc) if exc else "closed by the other side")
        self._lost()

    def _lost(self) -> None:
        if not self._closed:
            self._closed = True
            self._handler.closed(self, self._reason)
