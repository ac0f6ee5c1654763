"""What connections receive besides the replies to their requests: messages of channels, invalidations.

A message is written only while no request of its connection is under way. So it is never in the middle of a
reply, and never overtakes the reply to a request that began before it. Messages wait in a queue meanwhile,
and while the client does not read; a connection that holds too much is closed. Connections without messages
have no queue.

They wait encoded in the protocol of the connection. So they are written before a command that may change it,
or that ends a subscription: a client of RESP2 takes what comes later for a reply.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from stele.adapters.rate_limited_log import RateLimitedLog
from stele.member import limits
from stele.member.turn_budget import TurnBudget

log = logging.getLogger(__name__)

MESSAGE_BYTES = 64
"""Bytes of memory that Python uses per message that waits, beyond its content."""

WRITE_BYTES = 64 * 1024
"""Messages that are written to one connection in one turn, or a single longer one."""

CLOSED_SECONDS = 60.0
"""Connections that are closed because they do not read are logged once per this interval."""

_closed = RateLimitedLog(CLOSED_SECONDS)


class Output(Protocol):
    """The connection that a queue belongs to."""

    def push(self) -> None:
        """Write messages of the queue, if no request is under way and the client reads."""
        ...

    def abort(self) -> None: ...


class PushQueue:
    """Messages that wait for one connection, in order.

    `bytes` are those that wait here, and `unsent_bytes` those that were written and that the client has not
    read. Each of `on_close` is called once, when the connection has ended.
    """

    __slots__ = (
        "_by_source",
        "_messages",
        "_output",
        "_pushes",
        "bytes",
        "closed",
        "on_close",
        "unsent_bytes",
    )

    def __init__(self, pushes: "Pushes", output: Output) -> None:
        self._pushes = pushes
        self._output = output
        self._messages: deque[tuple[bytes, str]] = deque()
        self._by_source: dict[str, int] = {}
        self.bytes = self.unsent_bytes = 0
        self.closed = False
        self.on_close: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def held_bytes(self) -> int:
        return self.bytes + self.unsent_bytes

    def send(self, message: bytes, source: str = "") -> None:
        """Queue an encoded message. `source` names the feature that sends it, for `replace`."""
        if self.closed:
            return
        self._messages.append((message, source))
        if source:
            self._by_source[source] = self.bytes_of(source) + len(message)
        self._hold(len(message) + MESSAGE_BYTES)
        self._pushes.check(self)
        self.wake()

    def bytes_of(self, source: str) -> int:
        """Return the bytes of its messages that wait."""
        return self._by_source.get(source, 0)

    def replace(self, message: bytes, source: str) -> None:
        """Queue a message in place of all messages of its source that wait."""
        kept = deque(each for each in self._messages if each[1] != source)
        self._hold(sum(len(each) + MESSAGE_BYTES for each, _ in kept) - self.bytes)
        self._messages = kept
        self._by_source.pop(source, None)
        self.send(message, source)

    def take(self, most: float = WRITE_BYTES) -> bytes:
        """Remove and return messages of at most this size, or a single longer one."""
        parts: list[bytes] = []
        size = 0
        while self._messages and (not parts or size + len(self._messages[0][0]) <= most):
            message, source = self._messages.popleft()
            if source:
                self._by_source[source] -= len(message)
            parts.append(message)
            size += len(message)
        self._hold(-size - MESSAGE_BYTES * len(parts))
        return b"".join(parts)

    def unsent(self, size: int) -> None:
        """Note how many written bytes the client has not read."""
        self._pushes.held += size - self.unsent_bytes
        self.unsent_bytes = size
        self._pushes.check(self)

    def wake(self) -> None:
        """Have messages written in a turn with room for it."""
        if self._messages:
            self._pushes.wake(self)

    def write(self) -> None:
        """Let the connection write."""
        self._output.push()

    def abort(self) -> None:
        """Close the connection, which holds too much."""
        self.close()
        self._output.abort()

    def close(self) -> None:
        """Drop everything; the connection has ended."""
        if self.closed:
            return
        self.closed = True
        self._messages.clear()
        self._pushes.forget(self)
        self.bytes = self.unsent_bytes = 0
        for ended in self.on_close:
            ended()

    def _hold(self, size: int) -> None:
        self.bytes += size
        self._pushes.held += size


class Pushes:
    """The queues of all connections of a member.

    `held` is the sum of their bytes; `closed` counts connections that were closed because they did not read.
    """

    def __init__(self, turn_budget: TurnBudget) -> None:
        self._turn_budget = turn_budget
        self._queues: dict[PushQueue, None] = {}
        self._due: dict[PushQueue, None] = {}
        self.held = self.closed = 0

    def open(self, output: Output) -> PushQueue:
        """Return the queue of a connection, which must `close` it at its end."""
        queue = PushQueue(self, output)
        self._queues[queue] = None
        return queue

    def forget(self, queue: PushQueue) -> None:
        self.held -= queue.held_bytes
        self._queues.pop(queue, None)
        self._due.pop(queue, None)

    def wake(self, queue: PushQueue) -> None:
        if not self._due:
            self._turn_budget.later(1, self._write)
        self._due[queue] = None

    def _write(self) -> None:
        """Write to connections with messages, as many as fit into this turn."""
        while self._due and self._turn_budget.fits(1):
            queue = next(iter(self._due))
            del self._due[queue]
            before = queue.bytes
            queue.write()
            self._turn_budget.spend(1, before - queue.bytes)
        if self._due:
            self._turn_budget.later(1, self._write)

    def check(self, queue: PushQueue) -> None:
        """Close the connection when it holds too much, and those that hold most while all hold too much."""
        if queue.held_bytes > limits.PUSH_BYTES_MAX:
            self._abort(queue, f"more than {limits.PUSH_BYTES_MAX} bytes of messages")
        while self.held > limits.PUSHES_BYTES_MAX:
            largest = max(self._queues, key=_held_bytes)
            text = f"{largest.held_bytes} bytes, the most of {self.held} that all clients have not read"
            self._abort(largest, text)

    def _abort(self, queue: PushQueue, reason: str) -> None:
        self.closed += 1
        if (suppressed := _closed.admit()) is not None:
            log.warning(
                "a client that reads too slowly is closed: it holds %s (%d more not logged)",
                reason,
                suppressed,
            )
        queue.abort()

    def facts(self) -> dict[str, str | int]:
        """Return the fields of INFO."""
        return {"push_bytes": self.held, "push_clients_closed": self.closed}


def _held_bytes(queue: PushQueue) -> int:
    return queue.held_bytes
