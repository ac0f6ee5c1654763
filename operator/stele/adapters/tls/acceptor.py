"""Which connections to a port speak TLS, told by their first byte, and how many handshakes are under way."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from stele.adapters.tls.identity import Contexts, TlsIdentity
from stele.adapters.tls.layer import TlsLayer
from stele.core.control.member_settings import ClientTls

HANDSHAKE_BYTE = 0x16
"""What every TLS connection begins with, and no request of RESP."""

HELLO_BYTES_MAX = 16 * 1024 + 5
"""The first message of a client: one record of TLS, and it can send no more before the answer."""

PLAIN_REFUSED = b"-ERR this port takes only TLS connections: use TLS (redis-cli --tls --cacert FILE)\r\n"
NO_CERTIFICATE = b"-ERR this port takes only TLS connections, and this member has no usable certificate\r\n"


@dataclass(frozen=True, slots=True)
class TlsLimits:
    """Limits of connections whose handshake is not done.

    `waiting_max` have sent nothing yet, or wait for their turn: in one turn of the event loop
    `handshakes_per_turn_max` are begun, as each takes up to a millisecond. `handshakes_max` are begun and not
    done. Beyond either the oldest one is closed. A client has `handshake_seconds_max` to begin, and again to
    end.
    """

    waiting_max: int = 10_000
    handshakes_max: int = 1000
    handshakes_per_turn_max: int = 8
    handshake_seconds_max: float = 5.0


class TlsAcceptor:
    """Decides for each new connection of a server, by `demand` at that moment, what it speaks.

    One that sends nothing counts as plain where `silent_is_plain`: its client may wait for the server.

    `done` and `failed` count handshakes, `refused` plain connections where TLS is required. `verify` says
    whether clients have to show a certificate. `on_failure` is told where a connection came from and why it
    ended.
    """

    silent_is_plain = True

    def __init__(
        self, identity: TlsIdentity, on_failure: Callable[[str, str], None], limits: TlsLimits | None = None
    ) -> None:
        self._identity, self._on_failure = identity, on_failure
        self.limits = limits or TlsLimits()
        self.demand, self.verify = ClientTls.OFF, ssl.CERT_NONE
        self.done = self.failed = self.refused = 0
        self._on_change: Callable[[], None] = lambda: None
        self._waiting: dict[_Arrival, None] = {}
        self._begun: dict[_Arrival, None] = {}
        self._queue: deque[_Arrival] = deque()

    def require(self, demand: ClientTls, verify: ssl.VerifyMode) -> None:
        """Apply to connections from now on, and tell who is connected."""
        self.demand, self.verify = demand, verify
        self._on_change()

    def connect(self, on_change: Callable[[], None]) -> None:
        """Call this after each change."""
        self._on_change = on_change

    def accept(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Return the protocol of a new connection; `make` returns the one of its content."""
        return make() if self.demand is ClientTls.OFF else _Arrival(self, make)

    @property
    def pending(self) -> int:
        """Connections that have sent nothing, or whose handshake is not done."""
        return len(self._waiting) + len(self._begun)

    @property
    def contexts(self) -> Contexts | None:
        """What connections can be made with; None while there is no usable certificate."""
        return self._identity.contexts

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a new connection is made with."""
        contexts = self.contexts
        return None if contexts is None else contexts.servers[self.verify]

    def close(self) -> None:
        """Close the connections whose handshake is not done."""
        for arrival in [*self._waiting, *self._begun]:
            arrival.abort("this member stops")

    def add(self, arrival: "_Arrival") -> None:
        """Add a new connection, in place of the oldest one when there are too many."""
        if len(self._waiting) >= self.limits.waiting_max:
            next(iter(self._waiting)).abort(f"{self.limits.waiting_max} newer connections wait")
        self._waiting[arrival] = None

    def remove(self, arrival: "_Arrival") -> None:
        """Forget a connection that is plain, has ended, or whose handshake is done."""
        self._waiting.pop(arrival, None)
        self._begun.pop(arrival, None)

    def queue(self, arrival: "_Arrival") -> None:
        """Begin the handshake, in one of the next turns."""
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._begin)
        self._queue.append(arrival)

    def _begin(self) -> None:
        for _ in range(min(len(self._queue), self.limits.handshakes_per_turn_max)):
            arrival = self._queue.popleft()
            if self._waiting.pop(arrival, self) is not self:
                if len(self._begun) >= self.limits.handshakes_max:
                    next(iter(self._begun)).abort(f"{self.limits.handshakes_max} newer handshakes are begun")
                self._begun[arrival] = None
                arrival.begin()
        if self._queue:
            asyncio.get_running_loop().call_soon(self._begin)

    def count(self, address: str, failure: str) -> None:
        """Count a handshake that is done, or failed."""
        if failure:
            self.failed += 1
            self._on_failure(address, failure)
        else:
            self.done += 1

    def refuse(self, address: str) -> bytes:
        """Count a plain connection that is not taken; return the reply to it."""
        self.refused += 1
        self._on_failure(address, "it does not use TLS, which is required")
        return NO_CERTIFICATE if self.contexts is None else PLAIN_REFUSED


class _Arrival(asyncio.Protocol):
    """A connection from its beginning until it is known to be plain, or until its handshake is done."""

    def __init__(self, acceptor: TlsAcceptor, make: Callable[[], asyncio.Protocol]) -> None:
        self._acceptor, self._make = acceptor, make
        self._layer: TlsLayer | None = None
        self._data = b""
        self._transport = cast(asyncio.Transport, None)
        self._timer = cast(asyncio.TimerHandle, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._start_timer(self._on_silence)
        self._acceptor.add(self)

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        if self._transport.is_closing():
            return
        if data[0] != HANDSHAKE_BYTE:
            self._plain(data)
        elif len(data) > HELLO_BYTES_MAX:
            self.abort(f"it begins with {len(data)} bytes; at most {HELLO_BYTES_MAX} are allowed")
        else:
            self._timer.cancel()
            self._data = data
            self._transport.pause_reading()
            self._acceptor.queue(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        self._leave()

    def begin(self) -> None:
        """Begin the handshake with what the client has sent."""
        context = self._acceptor.context
        if context is None:
            self.abort("this member has no usable certificate")
            return
        seconds = self._acceptor.limits.handshake_seconds_max
        self._start_timer(lambda: self.abort(f"the handshake is not done after {seconds:g} s"))
        data, self._data = self._data, b""
        self._layer = TlsLayer(context, self._make, self._end, server_side=True)
        self._transport.set_protocol(self._layer)
        self._layer.connection_made(self._transport)
        self._transport.resume_reading()
        self._layer.data_received(data)

    def abort(self, reason: str) -> None:
        """End the connection, whose handshake is not done."""
        if self._layer is not None:
            self._layer.fail(reason)
        else:
            self._end(reason)
        self._transport.abort()

    def _on_silence(self) -> None:
        """Take a client that waits for the server as plain, where that is allowed: in TLS it begins."""
        if not self._acceptor.silent_is_plain:
            self.abort(f"it has sent nothing for {self._acceptor.limits.handshake_seconds_max:g} s")
        elif not self._transport.is_closing():
            self._plain(b"")

    def _plain(self, data: bytes) -> None:
        self._leave()
        if self._acceptor.demand is ClientTls.REQUIRED:
            self._transport.write(self._acceptor.refuse(self._address))
            self._transport.close()
            return
        protocol = self._make()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if data:
            protocol.data_received(data)

    def _end(self, failure: str) -> None:
        self._leave()
        self._acceptor.count(self._address, failure)

    def _start_timer(self, call: Callable[[], None]) -> None:
        seconds = self._acceptor.limits.handshake_seconds_max
        self._timer = asyncio.get_running_loop().call_later(seconds, call)

    def _leave(self) -> None:
        self._timer.cancel()
        self._acceptor.remove(self)

    @property
    def _address(self) -> str:
        host, port, *_ = self._transport.get_extra_info("peername") or ("?", 0)
        return f"{host}:{port}"
