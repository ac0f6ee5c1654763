"""Requests that wait for a serving owner of their partition, or there for the lock of a key."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from stele.member import limits
from stele.member.replication.request import Request, RequestKind
from stele.wire.resp import ARGUMENT_BYTES


class WaitingRequests:
    """One queue per partition, in order of arrival; together they have QUEUE_REQUESTS_MAX and
    QUEUE_BYTES_MAX.

    `queues` has the partitions for which requests wait, and no others. `blocked` has, by partition, those
    that wait for a lock: they keep no other request of their partition from running.
    """

    def __init__(self) -> None:
        self.queues: dict[int, deque[Request]] = {}
        self.blocked: dict[int, deque[Request]] = {}
        self.requests = 0
        self.bytes = 0

    def add(self, request: Request) -> bool:
        """Queue a request in order of arrival. Returns False when there is no room for it."""
        if not self._has_room(request):
            return False
        queue = self.queues.setdefault(request.partition, deque())
        queue.append(request)
        if len(queue) > 1 and queue[-2].order > request.order:
            ordered = sorted(queue, key=lambda waiting: waiting.order)
            queue.clear()
            queue.extend(ordered)
        return True

    def block(self, request: Request) -> bool:
        """Keep a request until a lock of its partition is released. Returns False when there is no room."""
        if not self._has_room(request):
            return False
        self.blocked.setdefault(request.partition, deque()).append(request)
        return True

    def unblock(self, partition: int) -> list[Request]:
        """Take out the requests that wait for a lock of the partition, in order of arrival."""
        blocked = self.blocked.pop(partition, ())
        for request in blocked:
            self._left(request)
        return [request for request in blocked if not request.future.done()]

    def clears(self, partition: int) -> bool:
        """Return whether the clearing of a keyspace waits for locks of the partition."""
        return any(each.kind is RequestKind.CLEAR for each in self.blocked.get(partition, ()))

    def _has_room(self, request: Request) -> bool:
        """Count the request, unless there is no room for it."""
        size = _bytes(request.commands)
        if self.requests >= limits.QUEUE_REQUESTS_MAX or self.bytes + size > limits.QUEUE_BYTES_MAX:
            return False
        self.requests += 1
        self.bytes += size
        request.queued_bytes = size
        return True

    def drain(self, partition: int, dispatch: Callable[[Request], bool]) -> None:
        """Dispatch the partition's requests in order, until `dispatch` returns that one has to wait."""
        while queue := self.queues.get(partition):
            # Dequeue first: running a request may put others at the front of the queue.
            request = queue.popleft()
            if not request.future.done() and not dispatch(request):
                self.queues.setdefault(partition, queue).appendleft(request)
                return
            self._left(request)
        self.queues.pop(partition, None)

    def take_all(self) -> Iterator[Request]:
        """Take each request out, to fail it before the next one is taken."""
        for waiting in (self.queues, self.blocked):
            for request in [each for partition in list(waiting) for each in waiting.pop(partition)]:
                self._left(request)
                yield request

    def take_expired(self, now: float) -> Iterator[Request]:
        """Take out each request that has waited past its deadline, to fail it before the next one is
        taken."""
        for partition, queue in list(self.queues.items()):
            while queue and queue[0].deadline <= now:
                self._left(queue[0])
                yield queue.popleft()
            if not queue:
                self.queues.pop(partition, None)

    def take_expired_blocked(self, now: float) -> Iterator[Request]:
        """Take out each request that has waited for a lock past its deadline."""
        for partition, blocked in list(self.blocked.items()):
            late = [request for request in blocked if request.deadline <= now]
            if late:
                kept = deque(request for request in blocked if request.deadline > now)
                self.blocked[partition] = kept
                if not kept:
                    del self.blocked[partition]
            for request in late:
                self._left(request)
                yield request

    def _left(self, request: Request) -> None:
        self.requests -= 1
        self.bytes -= request.queued_bytes


def _bytes(commands: Sequence[Sequence[bytes]]) -> int:
    """Return the memory that a waiting request with these commands takes."""
    size = limits.REQUEST_OVERHEAD_BYTES
    for args in commands:
        size += sum(map(len, args)) + ARGUMENT_BYTES * (len(args) + 1)
    return size
