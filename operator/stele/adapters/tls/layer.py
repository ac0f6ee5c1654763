"""TLS between a transport and a protocol, by an `ssl.SSLObject` in memory.

It is there instead of the event loop's own TLS, which differs between asyncio and uvloop where a server
depends on it: this one can end the stream of replies (`write_eof`), shows all unsent bytes in
`get_write_buffer_size`, respects the answer of `eof_received`, and takes a context for each connection.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from stele.adapters.tls.identity import verified_chain

log = logging.getLogger("stele.tls")

READ_BYTES = 16 * 1024
"""Largest piece that is decrypted at once: that of one record."""
WRITE_BYTES = 1024 * 1024
"""Largest piece that is encrypted before its bytes are given to the socket."""

Ended = Callable[[str], None]


class TlsLayer(asyncio.Protocol):
    """The protocol of a connection whose content another protocol reads and writes.

    That one is made when the handshake is done. `ended` is called once at the end of the handshake, with an
    empty text or why it failed.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        ended: Ended,
        *,
        server_side: bool,
    ) -> None:
        self._make = make
        self._inner = cast(asyncio.Protocol, None)
        self._ended: Ended | None = ended
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._open = self._told_end = self._said_end = False
        self.raw = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol. A client begins the handshake."""
        self.raw = cast(asyncio.Transport, transport)
        if not self.tls.server_side:
            self._shake()

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        if self.raw.is_closing():
            return
        self._incoming.write(data)
        if self._open or self._shake():
            self._read()

    def _shake(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        failure = ""
        try:
            self.tls.do_handshake()
            failure = self._fault()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            failure = _explained(error)
        self._flush()
        if failure:
            self.fail(failure)
            return False
        self._finish("")
        self._open, self._inner = True, self._make()
        self._inner.connection_made(TlsTransport(self))
        return True

    def _fault(self) -> str:
        """Return what is wrong with the certificate of the other side that the handshake does not see, or
        nothing: texts that cannot be read, and the end, where a session of TLS 1.2 is resumed.

        The same context has verified its chain before, with the same CAs: only time has passed.
        """
        try:
            certificate = self.tls.getpeercert()
        except ValueError as error:
            return f"the certificate cannot be read: {error}"
        resumed = certificate if self.tls.session_reused else None
        if resumed and ssl.cert_time_to_seconds(str(resumed["notAfter"])) < time.time():
            return "the certificate of the resumed session has expired"
        return ""

    def fail(self, reason: str) -> None:
        """End the connection before its handshake is done."""
        self._finish(reason)
        self.raw.close()

    def _finish(self, reason: str) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(reason)

    def _read(self) -> None:
        """Give the inner protocol what has arrived, at once; then the other side's end."""
        pieces, is_end = [], False
        try:
            while piece := self.tls.read(READ_BYTES):
                pieces.append(piece)
                if not (self._incoming.pending or self.tls.pending()):
                    break  # Another read would raise, which costs as much as the decryption.
            else:
                is_end = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_end = True
        except ssl.SSLError as error:
            log.info("connection is closed: %s", _explained(error))
            self._flush()
            self.raw.close()
            return
        self._flush()
        if pieces:
            self._inner.data_received(b"".join(pieces))
        if is_end:
            self._on_end()

    def _on_end(self) -> None:
        """Handle the end of what the other side sends; it may still read."""
        if not self._told_end and not self.raw.is_closing():
            self._told_end = True
            if not self._inner.eof_received():
                self.close()

    def eof_received(self) -> bool:
        """Implement asyncio.Protocol."""
        if self._open:
            self._on_end()
        return self._open and not self.raw.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        self._finish(str(exc) if exc else "the other side closed the connection")
        if self._open:
            self._inner.connection_lost(exc)
            # It refers to this: without a cycle, both are gone at once.
            self._open, self._inner = False, cast(asyncio.Protocol, None)

    def pause_writing(self) -> None:
        """Implement asyncio.Protocol."""
        if self._open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Implement asyncio.Protocol."""
        if self._open:
            self._inner.resume_writing()

    # -- what the transport does

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send; nothing after `end`."""
        if self._said_end or self.raw.is_closing():
            return
        rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[self.tls.write(rest) :]
                if self._outgoing.pending >= WRITE_BYTES:
                    self._flush()
        except ssl.SSLError as error:
            log.info("connection is reset: %s", _explained(error))
            self.raw.abort()
            return
        self._flush()

    def end(self) -> None:
        """Tell the other side that nothing else comes."""
        if self._said_end:
            return
        self._said_end = True
        # It wants the answer of the other side, which nothing here waits for.
        with suppress(ssl.SSLError, OSError):
            self.tls.unwrap()
        self._flush()

    def close(self) -> None:
        """Close after all that was written."""
        if not self.raw.is_closing():
            self.end()
            self.raw.close()

    @property
    def inner(self) -> asyncio.Protocol:
        """The protocol that reads and writes the content."""
        return self._inner

    @inner.setter
    def inner(self, protocol: asyncio.Protocol) -> None:
        self._inner = protocol

    def _flush(self) -> None:
        if self._outgoing.pending and not self.raw.is_closing():
            self.raw.write(self._outgoing.read())


def _explained(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()


class TlsTransport(asyncio.Transport):
    """What the inner protocol writes to: sizes and limits are those of the socket's transport."""

    def __init__(self, layer: TlsLayer) -> None:
        super().__init__()
        self._layer, self._raw = layer, layer.raw

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return also `ssl_object`, `peercert`, the verified certificate of the other side or None, and
        `peerchain`, see `verified_chain`."""
        if name == "ssl_object":
            return self._layer.tls
        if name == "peercert":
            return self._layer.tls.getpeercert() or default
        if name == "peerchain":
            return verified_chain(self._layer.tls)
        return self._raw.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._layer.write(data)

    def write_eof(self) -> None:
        self._layer.end()
        if not self._raw.is_closing():
            self._raw.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._layer.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._raw.get_write_buffer_limits()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._layer.inner = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._layer.inner
