"""Connections to an HTTP port: how many there are, and how long one may wait for its client.

Those whose client has shown a certificate, and those from inside the pod, are counted apart, so that nobody
else can take their place.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import cast

from aiohttp import web

from stele.adapters.rate_limited_log import RateLimitedLog

log = logging.getLogger("stele.http")

CONNECTIONS_MAX = 1000
"""Of those with a certificate, and as many from inside the pod, and of others. Beyond it one is closed of the
address that has most: of those that wait for a request the oldest, otherwise the oldest one, but the new one
where its address has as many, unless requests are short."""

KINDS = CERTIFIED, LOCAL, OTHER = "certified", "local", "other"
LOOPBACK = ("127.0.0.1", "::1")

HEADERS_SECONDS_MAX = 10.0
"""From the beginning of a connection, or the first byte of a later request, to the end of its headers."""

IDLE_SECONDS_MAX = 75.0
"""Between two requests: clients of ours close theirs after 30 s at the latest, and Prometheus often asks each
minute."""

STALLED_SECONDS_MAX = 300.0
STALLED_LOOK_SECONDS = 10.0
"""Without a byte more of a request that has begun, or of its answer; the interval of looks."""

LOGGED_SECONDS = 10.0

CLOSING = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.UPGRADE_REQUIRED})
"""Answers after which the connection is closed."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Make = Callable[[], asyncio.Protocol]


class Connections:
    """Those of one application; `watch` is for its middlewares, `accept` for what listens.

    Where all requests are short, one that is under way for long is nobody's loss.
    """

    def __init__(self, *, short_requests: bool) -> None:
        self._short_requests = short_requests
        self._all: dict[str, dict[_Connection, None]] = {kind: {} for kind in KINDS}
        self._idle: dict[str, dict[_Connection, None]] = {kind: {} for kind in KINDS}
        self._closed = RateLimitedLog(LOGGED_SECONDS)

    def accept(self, make: Make) -> asyncio.Protocol:
        """Return the protocol of a new connection; `make` returns the one of HTTP."""
        return _Connection(self, make())

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Implement a middleware of aiohttp: time the request, and close after a refusal."""
        connection = None if request.transport is None else request.transport.get_protocol()
        task = asyncio.current_task()
        if isinstance(connection, _Connection) and task is not None:
            connection.begin(request)
            # Each request is a task, which ends when the answer is written, or given up.
            task.add_done_callback(partial(connection.end, request))
        try:
            answer = await handler(request)
        except web.HTTPException as refusal:
            if refusal.status in CLOSING:
                refusal.force_close()
            raise
        if answer.status in CLOSING:
            answer.force_close()
        return answer

    def add(self, connection: "_Connection") -> bool:
        """Return whether there is room for it, which may be made."""
        present, idle = self._all[connection.kind], self._idle[connection.kind]
        if len(present) >= CONNECTIONS_MAX:
            oldest = self._least_needed(connection)
            if oldest is None:
                self.note(connection, f"{CONNECTIONS_MAX} others have requests under way")
                return False
            oldest.abort(f"there are {CONNECTIONS_MAX} others")
        present[connection] = idle[connection] = None
        return True

    def _least_needed(self, new: "_Connection") -> "_Connection | None":
        """Return the connection in whose place a new one comes.

        An address that opens many gives way to others, as long as they are from fewer addresses: requests
        that are begun and sent byte by byte keep nobody else out.
        """
        present, idle = self._all[new.kind], self._idle[new.kind]
        among = idle or present
        counts = Counter(each.address for each in among)
        crowd, most = counts.most_common(1)[0]
        if idle or self._short_requests or most > counts[new.address] + 1:
            return next(each for each in among if each.address == crowd)
        return None

    def remove(self, connection: "_Connection") -> None:
        """Forget one that has ended."""
        self._all[connection.kind].pop(connection, None)
        self._idle[connection.kind].pop(connection, None)

    def set_idle(self, connection: "_Connection", *, idle: bool) -> None:
        """Note that one waits for a request from now on, or no longer."""
        idles = self._idle[connection.kind]
        idles.pop(connection, None)
        if idle:
            idles[connection] = None

    def note(self, connection: "_Connection", why: str) -> None:
        """Log that one is closed."""
        if (suppressed := self._closed.admit()) is not None:
            text = "connection of %s is closed: %s (%d more were not logged)"
            log.warning(text, connection.address, why, suppressed)


CONNECTIONS = web.AppKey("connections", Connections)


class _Connection(asyncio.Protocol):
    """Between a transport and the protocol of HTTP."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections, self._inner = connections, inner
        self._transport = cast(asyncio.Transport, None)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._request: web.Request | None = None
        self._open = self._headers_begun = False
        self._heard = self._taken = 0.0
        self._paused, self._unsent = False, 0
        self.kind, self.address = OTHER, "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = str((transport.get_extra_info("peername") or "?")[0])
        if transport.get_extra_info("peercert"):
            self.kind = CERTIFIED
        elif self.address in LOOPBACK:
            self.kind = LOCAL
        self._open = self._connections.add(self)
        if not self._open:
            self._transport.write(_full())
            self._transport.close()
            return
        self._expect_headers()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        if not self._open:
            return
        self._heard = self._loop.time()
        if self._request is None and not self._headers_begun:
            self._expect_headers()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Implement asyncio.Protocol."""
        return self._inner.eof_received() if self._open else None

    def pause_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._paused, self._unsent = True, -1
        if self._open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._paused = False
        if self._open:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        self._cancel()
        self._connections.remove(self)
        if self._open:
            self._open = False
            self._inner.connection_lost(exc)

    def begin(self, request: web.Request) -> None:
        """The headers of a request are complete."""
        self._request, self._headers_begun = request, False
        self._taken = self._loop.time()
        self._connections.set_idle(self, idle=False)
        self._after(STALLED_LOOK_SECONDS, self._look)

    def end(self, request: web.Request, _task: object) -> None:
        """Its answer is written, or given up; the next one may have begun."""
        if self._request is not request:
            return
        self._request = None
        if self._open:
            self._connections.set_idle(self, idle=True)
            self._after(IDLE_SECONDS_MAX, self.abort)

    def abort(self, why: str = "") -> None:
        """Close it, whatever has not been sent; why is logged, unless it was just not used."""
        self._cancel()
        self._connections.remove(self)
        if why:
            self._connections.note(self, why)
        self._transport.abort()

    def _expect_headers(self) -> None:
        self._headers_begun = True
        seconds = HEADERS_SECONDS_MAX
        self._after(seconds, lambda: self.abort(f"its request is not complete after {seconds:g} s"))

    def _look(self) -> None:
        """Abort a connection whose client neither sends the rest of its request nor takes the answer."""
        assert self._request is not None
        now, limit = self._loop.time(), STALLED_SECONDS_MAX
        unsent = self._transport.get_write_buffer_size()
        if not self._paused or unsent != self._unsent:
            self._unsent, self._taken = unsent, now
        # What is not read is not the client's fault.
        sends = self._request.content.is_eof() or not self._transport.is_reading()
        if not sends and now - self._heard >= limit:
            self.abort(f"it has sent nothing of its request for {limit:g} s")
        elif now - self._taken >= limit:
            self.abort(f"it has taken nothing of its answer for {limit:g} s")
        else:
            self._after(STALLED_LOOK_SECONDS, self._look)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._cancel()
        self._timer = self._loop.call_later(seconds, call)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _full() -> bytes:
    text = f"{CONNECTIONS_MAX} connections have requests under way at this port; retry later\n"
    head = f"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
    return (head + text).encode()
