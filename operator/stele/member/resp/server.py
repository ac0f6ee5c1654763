"""The RESP server, through which any Redis client can read and write all data at any member.

A connection is an `asyncio.Protocol`. Single-key commands run in batches shared by all connections
(`batching`). Other commands run in a task of the connection, never concurrently with a batch of it. Requests
that arrive together run together: those of one partition in order, those of different partitions
concurrently. Replies are sent in the order of requests. A session command (SELECT, SCAN, ...) waits for all
earlier ones. Beyond its limit of waiting requests, a connection is not read until they are done.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import cast

from stele.core.kv.commands import Failure
from stele.errors import SteleError, Unavailable, Uncertain
from stele.member.resp.batching import BatchCollector, ConnectionBatch
from stele.member.resp.budget import ReplyBytes, TooManyRepliesError
from stele.member.resp.pipeline import WRITE_BYTES, PipelineRunner
from stele.member.resp.rate_limited_log import RateLimitedLog
from stele.member.resp.scan import Positions
from stele.member.resp.session_commands import ClientSession
from stele.member.turn_budget import TurnBudget
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import ARGUMENT_BYTES, Request, RequestReader, chunks, encode_all

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval of checks whether others need the room held by replies that a client does not read."""

LINGER_LOOK_SECONDS = 0.01
"""Interval of checks, while the member stops, whether clients have read their replies."""

DEFECT_SECONDS = 60.0
"""Unexpected errors are logged once per this interval; the others are counted."""


@dataclass(frozen=True, slots=True)
class RespServerLimits:
    """Limits of the RESP server. Each causes either back-pressure (no reads) or an error that names it."""

    clients_max: int = 10_000
    pipeline_commands_max: int = 4096
    pipeline_bytes_max: int = 16 * 1024 * 1024
    waiting_bytes_max: int = 512 * 1024 * 1024
    batch_commands_max: int = 512
    output_bytes_high: int = 256 * 1024
    stalled_seconds_max: float = 60.0
    stalled_seconds_max_scarce: float = 5.0
    linger_seconds: float = 0.2
    linger_seconds_max: float = 1.0
    backlog: int = 512


async def start_resp_server(
    store: KeyValueService,
    hosts: str | Sequence[str],
    port: int,
    limits: RespServerLimits | None = None,
    turn_budget: TurnBudget | None = None,
) -> "RespServer":
    """Listen for clients; port 0 picks a free one (see `port`). Raises OSError when it cannot listen."""
    server = RespServer(store, limits or RespServerLimits(), turn_budget)
    await server.listen(hosts, port)
    return server


class RespServer:
    """The listening socket and its connections. `waiting_bytes` is the sum over all connections.

    `port` and `cluster_port` are the ones in use, 0 for none.
    """

    def __init__(
        self, store: KeyValueService, limits: RespServerLimits, turn_budget: TurnBudget | None = None
    ) -> None:
        """`turn_budget` is the one that the store uses, if any."""
        self.store = store
        self.limits = limits
        self.positions = Positions()
        self.replies = ReplyBytes()
        self.turn_budget = turn_budget or TurnBudget(asyncio.get_running_loop().call_soon)
        self.collector = BatchCollector(store, _failure, self.turn_budget, self.replies)
        self.waiting_bytes = self.port = self.cluster_port = 0
        self._ids = count(1)
        self._open: set[_Connection] = set()
        self._unanswered: list[_Connection] = []
        self.stopping = False
        self._listeners: list[asyncio.Server] = []
        self._counts = {
            "total_connections_received": 0,
            "rejected_connections": 0,
            "total_commands_processed": 0,
        }

    async def listen(self, hosts: str | Sequence[str], port: int) -> None:
        """Start to accept clients of any member, whose requests are forwarded to owners."""
        self.port = await self._listen(hosts, port, cluster=False)

    async def listen_cluster(self, hosts: str | Sequence[str], port: int) -> None:
        """Start to accept clients that speak the Redis Cluster protocol."""
        self.cluster_port = await self._listen(hosts, port, cluster=True)

    async def _listen(self, hosts: str | Sequence[str], port: int, *, cluster: bool) -> int:
        loop = asyncio.get_running_loop()
        backlog = self.limits.backlog
        made = await loop.create_server(lambda: _Connection(self, cluster), hosts, port, backlog=backlog)
        self._listeners.append(made)
        return int(made.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Accept no connection and take no request from now on; those that were read are answered."""
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self._open):
            connection.stop()
        self._unanswered = list(self._open)

    def busy(self) -> bool:
        """Return whether a request from before `stop` has no reply."""
        self._unanswered = [connection for connection in self._unanswered if connection.busy]
        return bool(self._unanswered)

    async def close(self) -> None:
        """Close all connections, each when its client has all replies, within `linger_seconds_max`."""
        self.stop()
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.linger_seconds_max
        while self._open and loop.time() < until:
            for connection in list(self._open):
                connection.close_if_quiet(loop.time())
            await asyncio.sleep(LINGER_LOOK_SECONDS)
        if self._open:
            log.warning("%d connections are reset: their clients still send, or do not read", len(self._open))
        for connection in list(self._open):
            connection.abort()

    def sessions(self) -> Iterable[ClientSession]:
        """Return the sessions of all open connections."""
        return [connection.session for connection in self._open]

    def facts(self) -> dict[str, str | int]:
        """Return the fields of INFO."""
        return {
            "tcp_port": self.port,
            "connected_clients": len(self._open),
            "maxclients": self.limits.clients_max,
            "waiting_bytes": self.waiting_bytes,
            "reply_bytes": self.replies.held,
            **self._counts,
        }

    def admit(self, connection: "_Connection") -> bool:
        """Register a connection; False when there is no room."""
        self._counts["total_connections_received"] += 1
        if len(self._open) >= self.limits.clients_max:
            self._counts["rejected_connections"] += 1
            return False
        self._open.add(connection)
        return True

    def forget(self, connection: "_Connection") -> None:
        """Unregister a closed connection."""
        self._open.discard(connection)

    def next_id(self) -> int:
        """Return the number of the next connection."""
        return next(self._ids)

    def count(self, commands: int) -> None:
        """Count commands that are about to run."""
        self._counts["total_commands_processed"] += commands

    def gather(
        self,
        session: ClientSession,
        queue: list[Request],
        size: int,
        finish: Callable[[ConnectionBatch], None],
    ) -> ConnectionBatch | None:
        """Run the leading requests in the common batch; None when the first one cannot."""
        if session.transaction:
            return None
        batch = self.collector.gather(session.keyspace, queue, size, finish, only_here=session.cluster)
        if batch is not None:
            self.count(len(batch.replies))
        return batch

    def failure(self, error: BaseException) -> Failure:
        """Convert an error of the store to a reply. Anything but a SteleError is logged as a defect."""
        return _failure(error)


_defects = RateLimitedLog(DEFECT_SECONDS)


def _plain(error: SteleError) -> str:
    """Its text; with the code only when that says more than the type does."""
    return error.text if error.code == error.code_default else str(error)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, Unavailable) and error.code == "LOADING":
        return Failure("LOADING", error.text)
    if isinstance(error, Unavailable):
        return Failure("TRYAGAIN", _plain(error))
    if isinstance(error, Uncertain):
        return Failure("UNCERTAIN", _plain(error))
    if isinstance(error, SteleError):
        return Failure("ERR", str(error))
    if (suppressed := _defects.admit()) is not None:
        log.error(
            "a request failed with an unexpected error (%d more were not logged)", suppressed, exc_info=error
        )
    return Failure("ERR", f"internal error {type(error).__name__}; the member's log has the details")


class _Connection(asyncio.Protocol):
    """One connection: parses requests, batches them, writes replies."""

    def __init__(self, server: RespServer, cluster: bool) -> None:
        self._server = server
        self._cluster = cluster
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
        self._quiet_since = float("inf")
        self._gone = False
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.session = ClientSession(0, "")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        address = f"{peer[0]}:{peer[1]}"
        self.session = ClientSession(self._server.next_id(), address, cluster=self._cluster)
        self._transport.set_write_buffer_limits(high=self._limits.output_bytes_high)
        if not self._server.admit(self):
            self._transport.write(
                b"-ERR max number of clients reached: this member accepts %d\r\n" % self._limits.clients_max
            )
            self._transport.close()
            self._stopping = True
        elif self._server.stopping:
            self.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol. Running commands finish: their writes may be in flight elsewhere."""
        self._stopping = self._gone = True
        self._queue.clear()
        self._hold(0)
        self.resume_writing()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol. What arrives after the end of reading is dropped."""
        if self._stopping:
            self._linger()
            return
        reader = self._reader
        before = reader.arguments
        self._queue += reader.feed(data)
        self._hold(self._held_bytes + len(data) + ARGUMENT_BYTES * (reader.arguments - before))
        if self._server.waiting_bytes > self._limits.waiting_bytes_max:
            self._refuse_bytes()
            return
        if reader.error is not None or self._is_full():
            self._pause()
        if self.busy:
            return
        if self._queue or reader.error:
            self._go_on()
        else:
            self._hold_rest()

    @property
    def busy(self) -> bool:
        """Return whether requests are unanswered."""
        return self._in_batch or self._task is not None

    def _go_on(self) -> None:
        """Run queued requests: in the common batch where possible, else in a task."""
        while self._queue and self._writable.is_set():
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
        out: list[bytes] = []
        encode_all(batch.replies, out, self.session.resp3)
        self._transport.write(b"".join(out))

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
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._server.replies.add(self._unsent_bytes)

    def resume_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._writable.set()
        unsent, self._unsent_bytes = self._unsent_bytes, 0
        self._server.replies.add(-unsent)

    def stop(self) -> None:
        """Take no more requests; when those that were read are answered, end the stream of replies."""
        if self._stopping:
            return
        self._stopping = self._half_close = True
        if not self._reading:
            self._transport.resume_reading()
        if not self.busy:
            self._end()

    def _end(self) -> None:
        """Close, after all replies. A client that may still send gets only their end at first.

        To close while there are bytes that were not read makes the kernel reset the connection, which
        destroys replies on their way; so they are read and dropped, see `close_if_quiet`.
        """
        if self._half_close and not self.session.quitting and not self._transport.is_closing():
            self._transport.write_eof()
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        self._quiet_since = asyncio.get_running_loop().time()

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
        if not self._reading and not self._stopping and not self._transport.is_closing():
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
            while self._queue and not self._transport.is_closing():
                await self._batch(runner)
        except ConnectionResetError:
            pass  # The client disconnected; remaining requests are dropped.
        except TooManyRepliesError as error:
            # The commands ran, so their writes may have been applied.
            self._refuse(error, "UNCERTAIN")
        except Exception:
            log.exception("connection %s is closed after an unexpected error", self.session.address)
            self._transport.close()
        finally:
            self._task = None
        if self._reader.error is not None:
            self._transport.write(b"-ERR " + self._reader.error.encode() + b"\r\n")
            self._stopping = True
        if self._stopping or self.session.quitting:
            self._end()
        else:
            self._on_idle()

    async def _batch(self, runner: PipelineRunner) -> None:
        size = self._limits.batch_commands_max
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._server.count(len(batch))
        await runner.run(batch)
        if self.session.quitting:
            self._queue.clear()
        if not self._queue:
            self._hold_rest()
        if self._reader.error is None and not self._is_full():
            self._resume()

    async def _put(self, out: list[bytes]) -> None:
        """Write, waiting while the client reads more slowly.

        Raises ConnectionResetError when it disconnected.
        """
        for chunk in chunks(out, WRITE_BYTES):
            if self._transport.is_closing():
                raise ConnectionResetError
            self._transport.write(chunk)
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
