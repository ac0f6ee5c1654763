"""One connection of a client: an `asyncio.Protocol` that parses requests and writes replies.

Single-key commands run in batches shared by all connections (`batching`). Other commands run in a task of
the connection, never concurrently with a batch of it. Requests that arrive together run together: those of
one partition in order, those of different partitions concurrently. Replies are sent in the order of requests.
A session command (SELECT, SCAN, ...) waits for all earlier ones. Beyond its limit of waiting requests, a
connection is not read until they are done.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from math import inf
from typing import Protocol, cast

from stele.adapters.tls.peer import client_names
from stele.member.resp.access import NOBODY, Access
from stele.member.resp.batching import ConnectionBatch
from stele.member.resp.budget import TooManyRepliesError
from stele.member.resp.limits import (
    CUT_SECONDS,
    GUEST_ARGUMENT_BYTES_MAX,
    GUEST_ARGUMENTS_MAX,
    GUEST_BEHIND_AUTH_BYTES_MAX,
    GUEST_HELD_BYTES_MAX,
    GUEST_OUTPUT_BYTES_MAX,
    RespServerLimits,
)
from stele.member.resp.pipeline import WRITE_BYTES, Host, PipelineRunner
from stele.member.resp.push import Pushes, PushQueue
from stele.member.resp.session import ClientSession
from stele.wire.resp import ARGUMENT_BYTES, Request, RequestReader, chunks, encode_all

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval of checks whether others need the room held by replies that a client does not read."""

_GET_HEAD = b"*2\r\n$3\r\n"
"""How a GET begins, so that other requests, above all writes, are not looked at twice."""

_DEFECT = "connection %s is closed after an unexpected error"


class ClientPort(Enum):
    """Ports for clients: any; of the Redis Cluster protocol; of that protocol, where backups answer reads."""

    ANY = 6379
    CLUSTER = 6380
    READ = 6381


class ConnectionHost(Host, Protocol):
    """The part of the RESP server that connections use. `waiting_bytes` is the sum over all of them."""

    limits: RespServerLimits
    pushes: Pushes
    access: Access
    waiting_bytes: int
    stopping: bool

    def new_session(
        self, address: str, kind: ClientPort, connection: "ClientConnection"
    ) -> ClientSession: ...

    def admit(self, connection: "ClientConnection") -> str: ...

    def forget(self, connection: "ClientConnection") -> None: ...

    def count(self, commands: int) -> None: ...

    def read_one(self, session: ClientSession, data: bytes) -> bytes | None: ...

    def gather(
        self,
        session: ClientSession,
        queue: list[Request],
        size: int,
        finish: Callable[[ConnectionBatch], None],
    ) -> ConnectionBatch | None: ...


class ClientConnection(asyncio.Protocol):
    """One connection: parses requests, batches them, writes replies, and pushes between them."""

    def __init__(self, server: ConnectionHost, kind: ClientPort) -> None:
        self._server = server
        self._kind = kind
        self._limits = server.limits
        self._reader = RequestReader()
        self._queue: list[Request] = []
        self._held_bytes = 0
        self._unsent_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._in_batch = False
        self._reading = True
        self._stopping = False
        self._half_close = False
        self._until_known: asyncio.TimerHandle | None = None
        self._slowed: asyncio.TimerHandle | None = None
        self._slow_until = 0.0
        self._last_words = ""
        self._quiet_since = float("inf")
        self._gone = False
        self._pushes: PushQueue | None = None
        self._pushing = False
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.session = ClientSession(0, "")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        address = f"{peer[0]}:{peer[1]}"
        self.session = self._server.new_session(address, self._kind, self)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.session.tls = tls.version()
            self.session.certificate = client_names(tls.getpeercert() or {})
        self._transport.set_write_buffer_limits(high=self._limits.output_bytes_high)
        failed = self._server.access.begin(self.session)
        if refused := self._server.admit(self):
            self._refuse(refused)
        elif failed is not None:
            self._refuse(failed.text, failed.code)
        else:
            self.update_access()
            if self._server.stopping:
                self.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol. Running commands finish: their writes may be in flight elsewhere."""
        self._stopping = self._gone = True
        self._queue.clear()
        self._hold(0)
        self._end_until_known()
        if self._slowed is not None:
            self._slowed.cancel()
        self.resume_writing()
        self.session.disconnected()
        if self._pushes is not None:
            self._pushes.close()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol. What arrives after the end of reading is dropped."""
        if self._stopping:
            self._linger()
            return
        if data.startswith(_GET_HEAD) and self._is_quiet():
            answer = self._server.read_one(self.session, data)
            if answer is not None:
                self._transport.write(answer)
                return
        reader = self._reader
        before = reader.arguments
        self._queue += reader.feed(data)
        self._hold(self._held_bytes + len(data) + ARGUMENT_BYTES * (reader.arguments - before))
        if self._server.waiting_bytes > self._limits.waiting_bytes_max:
            self._refuse_bytes()
            return
        if self._holds_too_much():
            return
        self._spend(len(data))
        if reader.error is not None or reader.stopped or self._is_full():
            self._pause()
        if self.busy:
            return
        if self._queue or reader.error:
            self._go_on()
        else:
            self._hold_rest()

    def _is_quiet(self) -> bool:
        """Return whether a reply may be written at once: nothing is under way that comes before it."""
        under_way = self._held_bytes or self.busy or self._pushes or self._slowed
        return not under_way and self._writable.is_set()

    def _holds_too_much(self) -> bool:
        """Close, and return True, when a client sends too much before it has authenticated."""
        most = GUEST_BEHIND_AUTH_BYTES_MAX if self._reader.stopped else GUEST_HELD_BYTES_MAX
        if self._until_known is None or self._held_bytes <= most:
            return False
        self._refuse(f"requests of more than {most} bytes before AUTH", "NOAUTH")
        self._queue.clear()
        return True

    def _read_on(self) -> bool:
        """Read what was sent together with an AUTH that has run; return whether there are requests."""
        if self._reader.stopped and not (self._stopping or self.session.quitting):
            before = self._reader.arguments
            self._queue += self._reader.go_on()
            self._hold(self._held_bytes + ARGUMENT_BYTES * (self._reader.arguments - before))
            return not self._holds_too_much() and bool(self._queue)
        return False

    @property
    def busy(self) -> bool:
        """Return whether requests are unanswered."""
        return self._in_batch or self._task is not None

    def _go_on(self) -> None:
        """Run queued requests: in the common batch where possible, else in a task."""
        while self._queue and self._writable.is_set() and self._slowed is None:
            batch = self._server.gather(self.session, self._queue, self._held_bytes, self._finish)
            if batch is None:
                break
            del self._queue[: len(batch.replies)]
            if not batch.replies:
                self._server.turn_budget.later(1, self._continue)
            if batch.missing or not batch.replies:
                self._in_batch = True
                return
            self._answer(batch)
        if self._queue or self._reader.error is not None or not self._writable.is_set():
            self._task = asyncio.get_running_loop().create_task(self._work())
        else:
            self._on_idle()

    def _continue(self) -> None:
        """Continue in a new turn."""
        self._in_batch = False
        if not self._transport.is_closing():
            self._go_on()

    def _finish(self, batch: ConnectionBatch) -> None:
        """Handle a batch whose commands all have replies."""
        self._in_batch = False
        if not self._transport.is_closing():
            if batch.later:
                self._task = asyncio.get_running_loop().create_task(self._work(batch))
            elif self._server.replies.is_full:
                self._refuse(TooManyRepliesError(), "UNCERTAIN")
            else:
                self._answer(batch)
                self._go_on()
        self._server.replies.add(-batch.bytes)

    def _answer(self, batch: ConnectionBatch) -> None:
        self._write(encode_all(batch.replies, self.session.resp3))
        if self._pushes is not None:
            self._write_pushes(self._pushes)

    def _on_idle(self) -> None:
        """Handle the end of all requests."""
        self._hold_rest()
        if self._stopping:
            self._end()
        elif not self._reading and not self._is_full():
            self._resume()

    def eof_received(self) -> bool:
        """Implement asyncio.Protocol. Pending requests are answered before the connection closes."""
        self._stopping = True
        return self.busy

    def pause_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._writable.clear()
        unsent = self._transport.get_write_buffer_size()
        if self._pushing and self._pushes is not None:
            self._pushes.unsent(unsent)
        else:
            self._unsent_bytes = unsent
            self._server.replies.add(unsent)

    def resume_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._writable.set()
        unsent, self._unsent_bytes = self._unsent_bytes, 0
        self._server.replies.add(-unsent)
        if self._pushes is not None:
            self._pushes.unsent(0)
            self._pushes.wake()

    # -- what is no reply

    @property
    def pushes(self) -> PushQueue:
        """The queue of messages to this client besides replies, which ends with the connection."""
        if self._pushes is None:
            self._pushes = self._server.pushes.open(self)
        return self._pushes

    def take_pushes(self) -> bytes:
        """Remove and return all messages that wait, to be written before the next reply."""
        return self._pushes.take(inf) if self._pushes else b""

    def push(self) -> None:
        """Write messages while no request is under way; else they are written after its reply."""
        if self._pushes is not None and not self.busy:
            self._write_pushes(self._pushes)

    def _write_pushes(self, pushes: PushQueue) -> None:
        """Write messages; every request that has begun is answered."""
        if not pushes or self._stopping or not self._writable.is_set() or self._transport.is_closing():
            return
        self._pushing = True
        self._write(pushes.take())
        self._pushing = False
        if self._writable.is_set():
            pushes.wake()

    def stop(self) -> None:
        """Take no more requests; when those that were read are answered, end the stream of replies."""
        if self._stopping:
            return
        self._stopping = self._half_close = True
        if not self._reading:
            self._transport.resume_reading()
        if not self.busy:
            self._end()

    def turn_away(self, reason: str) -> None:
        """Take no more requests; when those that were read are answered, say why and close."""
        if not self._stopping:
            self._stopping, self._last_words = True, reason
            if not self.busy:
                self._end()

    def _end(self) -> None:
        """Close, after all replies. A client that may still send gets only their end at first.

        To close while there are bytes that were not read makes the kernel reset the connection, which
        destroys replies on their way; so they are read and dropped, see `close_if_quiet`.
        """
        if self._last_words:
            self._transport.write(f"-ERR {self._last_words}\r\n".encode())
        if self._half_close and not self.session.quitting and not self._transport.is_closing():
            try:
                self._transport.write_eof()
            except OSError:  # The client has reset the connection, and asyncio does not know it yet.
                self._transport.abort()
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        self._quiet_since = asyncio.get_running_loop().time()

    # -- rights

    def update_access(self) -> None:
        """Hold a client to the limits of those who have not authenticated, while it is one of them."""
        guest = self.session.guard is NOBODY and not (self._gone or self._transport.is_closing())
        if guest is (self._until_known is not None):
            return
        high = self._limits.output_bytes_high
        if guest:
            self._server.access.guests[self] = None
            seconds = self._limits.guest_seconds_max
            self._until_known = asyncio.get_running_loop().call_later(seconds, self._expire)
            self._reader.limit(GUEST_ARGUMENTS_MAX, GUEST_ARGUMENT_BYTES_MAX)
            high = min(high, GUEST_OUTPUT_BYTES_MAX)
        else:
            self._end_until_known()
            self._reader.limit()
        self._transport.set_write_buffer_limits(high=high)

    def _end_until_known(self) -> None:
        if self._until_known is not None:
            self._until_known.cancel()
            self._until_known = None
            self._server.access.guests.pop(self, None)

    def _expire(self) -> None:
        """Close, since nobody has authenticated in time."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        elif not self._transport.is_closing():
            self._refuse(f"no AUTH within {self._limits.guest_seconds_max:g} seconds", "NOAUTH")
            self._queue.clear()

    def give_way(self) -> None:
        """Close, since the place is needed for a client that has just connected."""
        most = f"{self._limits.guests_max} without AUTH (guests_max), {self._limits.clients_max} in all"
        text = f"another client needs this place (a member takes {most}): send AUTH at once after connecting"
        self._refuse(text, "NOAUTH")
        self._end_until_known()

    def cut(self) -> None:
        """Run nothing more and close, since the client's rights have ended."""
        self._stopping = True
        self._queue.clear()
        if not self.busy:
            self._transport.close()
        asyncio.get_running_loop().call_later(CUT_SECONDS, self._abort_if_open)

    def _abort_if_open(self) -> None:
        if not self._gone:
            self._transport.abort()

    def close_if_quiet(self, now: float) -> None:
        """Close when all replies were sent and the client has sent nothing for `linger_seconds`."""
        quiet_seconds = now - self._quiet_since
        unsent = self._transport.get_write_buffer_size()
        if not self.busy and not unsent and quiet_seconds >= self._limits.linger_seconds:
            self._transport.close()

    def abort(self) -> None:
        """Close immediately."""
        self._transport.abort()

    def _is_full(self) -> bool:
        many = len(self._queue) >= self._limits.pipeline_commands_max
        return many or (bool(self._queue) and self._held_bytes >= self._limits.pipeline_bytes_max)

    def _hold(self, held_bytes: int) -> None:
        held_bytes = 0 if self._gone else held_bytes
        self._server.waiting_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes

    def _hold_rest(self) -> None:
        """Hold what is there besides complete requests: a part of one, and a transaction."""
        self._hold(self._reader.buffered_bytes + self.session.transaction.held_bytes)

    def _pause(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        held = self._stopping or self._slowed is not None
        if not self._reading and not held and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def _refuse_bytes(self) -> None:
        limit = self._limits.waiting_bytes_max
        self._refuse(f"requests of more than {limit} bytes wait at this member: reconnect later")

    def _refuse(self, reason: object, code: str = "ERR") -> None:
        """Close this connection, which exceeded a limit; others are unaffected."""
        self._transport.write(f"-{code} {reason}\r\n".encode())
        self._transport.close()
        self._stopping = True

    async def _work(self, begun: ConnectionBatch | None = None) -> None:
        """Run queued requests until there are none; later data starts a new task."""
        runner = PipelineRunner(self._server, self.session, self._put)
        try:
            if not self._writable.is_set():
                await self._until_written()
            if begun is not None:
                await runner.complete(begun.requests, begun.replies)
            while (self._queue or self._read_on()) and not self._transport.is_closing():
                await self._until_allowed()
                await self._batch(runner)
        except ConnectionResetError:
            pass  # The client disconnected; remaining requests are dropped.
        except TooManyRepliesError as error:
            # The commands ran, so their writes may have been applied.
            self._refuse(error, "UNCERTAIN")
        except Exception:
            log.exception(_DEFECT, self.session.address)
            self._transport.close()
        finally:
            self._task = None
        if self._reader.error is not None:
            self._transport.write(b"-ERR " + self._reader.error.encode() + b"\r\n")
            self._stopping = True
        if self._stopping or self.session.quitting:
            self._end()
        else:
            self.push()
            self._on_idle()

    # -- how fast its user may be

    def _write(self, data: bytes) -> None:
        self._transport.write(data)
        self._spend(len(data))

    def _spend(self, size: int) -> None:
        """Count bytes of the user. One that has used its share is not read for a while."""
        account = self.session.account
        if account is None or account.rate is None:
            return
        loop = asyncio.get_running_loop()
        wait = account.rate.take(size, loop.time())
        if wait > 0 and self._slowed is None and not self._gone:
            self._pause()
            self._slow_until = loop.time() + wait
            self._slowed = loop.call_later(wait, self._speed_up)

    async def _until_allowed(self) -> None:
        loop = asyncio.get_running_loop()
        while self._slowed is not None and not self._stopping:  # noqa: ASYNC110  no event for both
            await asyncio.sleep(min(LOOK_SECONDS, max(0.0, self._slow_until - loop.time())))

    def _speed_up(self) -> None:
        self._slowed = None
        self._spend(0)
        if self._slowed is None and not (self.busy or self._reader.stopped or self._is_full()):
            self._resume()

    async def _batch(self, runner: PipelineRunner) -> None:
        size = self._limits.batch_commands_max
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._server.count(len(batch))
        await runner.run(batch)
        if self._pushes is not None:
            self._write_pushes(self._pushes)
        if self.session.quitting:
            self._queue.clear()
        if not self._queue:
            self._hold_rest()
        if self._reader.error is None and not self._reader.stopped and not self._is_full():
            self._resume()

    async def _put(self, out: list[bytes]) -> None:
        """Write, waiting while the client reads more slowly.

        Raises ConnectionResetError when it disconnected.
        """
        for chunk in chunks(out, WRITE_BYTES):
            if self._transport.is_closing():
                raise ConnectionResetError
            self._write(chunk)
            if not self._writable.is_set():
                await self._until_written()

    async def _until_written(self) -> None:
        """Wait for a client that sends faster than it reads; disconnect one that does not read at all."""
        loop = asyncio.get_running_loop()
        begin, limit_seconds = loop.time(), self._limits.stalled_seconds_max
        while not self._writable.is_set():
            if self._server.replies.scarce:
                limit_seconds = min(limit_seconds, self._limits.stalled_seconds_max_scarce)
            left = begin + limit_seconds - loop.time()
            if left <= 0:
                address = self.session.address
                log.warning(
                    "connection %s is closed: it read no reply for %s seconds", address, limit_seconds
                )
                self._transport.abort()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_SECONDS)):
                    await self._writable.wait()
