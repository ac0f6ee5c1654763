"""Collects the requests of all connections in one turn of the event loop, by partition.

Single-key commands that arrive in the same turn become one request per partition, which makes pipelined
commands cheap: they share the cost of a request. Reads are sent separately from writes, so that they do not
wait for a disk. A batch of one connection with both stays together, since its commands run in order.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat, takewhile

from stele.core.kv.commands import ARGUMENTS_MAX, ARITIES, WRITES, Failure, Reply
from stele.core.kv.keyslot import partitions_of
from stele.core.kv.local_cache import Misses
from stele.core.kv.seen import SeenOperations
from stele.core.kv.written import OpId, WrittenOperations
from stele.member import limits
from stele.member.resp.budget import ReplyBytes
from stele.member.resp.failures import for_cluster
from stele.member.resp.multi_key import LATER, first_room
from stele.member.turn_budget import TurnBudget
from stele.native import compiled
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import Request

BATCH_COMMANDS_MAX = 256
GATHERED_COMMANDS_MAX = 2048
"""Commands that are collected and have not run: per connection, and in total."""

_GET = {b"GET"}
_SHAPES = {
    (spelt, length): name
    for name, arity in ARITIES.items()
    for length in (range(arity, arity + 1) if arity > 0 else range(-arity, ARGUMENTS_MAX + 1))
    for spelt in (name, name.lower())
}
"""Maps the spelling and the number of arguments of valid single-key commands to their names."""


class ConnectionBatch:
    """Commands of one connection that run together; `finish` is called when no reply is `missing`.

    `later` means that some did not run for lack of room, and have LATER as their reply. `bytes` counts those
    of the replies. `cluster` says that the connection speaks the Redis Cluster protocol; `written` is what it
    remembers of an Async keyspace.
    """

    __slots__ = ("bytes", "cluster", "finish", "later", "missing", "replies", "requests", "written")

    def __init__(
        self,
        requests: list[Request],
        replies: list[Reply],
        missing: int,
        finish: Callable[["ConnectionBatch"], None],
        *,
        cluster: bool = False,
        written: WrittenOperations | None = None,
    ) -> None:
        self.requests = requests
        self.cluster = cluster
        self.written = written
        self.later = False
        self.bytes = 0
        self.replies = replies
        self.missing = missing
        self.finish = finish


class PartitionBatch:
    """The commands of one partition: the outcome of one request, passed on to the batches.

    `written`: their connections remember what is answered before it is committed.
    """

    __slots__ = ("commands", "failure", "finished", "held", "places", "written")

    def __init__(self, failure: Callable[[BaseException], Failure], held: ReplyBytes) -> None:
        self.held = held
        self.commands: list[Request] = []
        self.places: list[tuple[ConnectionBatch, int]] = []
        self.failure = failure
        self.finished = False
        self.written = False

    def done(self) -> bool:
        return self.finished

    def set_result(self, result: Sequence[Reply]) -> None:
        self.finished = True
        if len(result) < len(self.places):
            for batch, _ in self.places[len(result) :]:
                batch.later = True
            result = [*result, *repeat(LATER, len(self.places) - len(result))]
        size = 0
        finished: list[ConnectionBatch] = []
        for (batch, slot), reply in zip(self.places, result, strict=True):
            batch.replies[slot] = reply
            if type(reply) is bytes:
                batch.bytes += len(reply)
                size += len(reply)
            batch.missing -= 1
            if not batch.missing:
                finished.append(batch)
        self.held.add(size)
        for batch in finished:
            batch.finish(batch)

    def wrote(self, partition: int, operation: OpId | None) -> None:
        """Have the connections remember the last operation."""
        for written in {batch.written for batch, _ in self.places if batch.written is not None}:
            written.add(partition, operation)

    def set_exception(self, exception: BaseException) -> None:
        failure = self.failure(exception)
        self.set_result([for_cluster(failure) if batch.cluster else failure for batch, _ in self.places])


class BatchCollector:
    """Collects commands, and runs them at the end of the turn. `failure` converts an error to a reply."""

    def __init__(
        self,
        store: KeyValueService,
        failure: Callable[[BaseException], Failure],
        turn_budget: TurnBudget,
        held: ReplyBytes,
    ) -> None:
        self._store = store
        self._failure = failure
        self._turn_budget = turn_budget
        self._held = held
        self._reads: dict[tuple[bytes, int], PartitionBatch] = {}
        self._writes: dict[tuple[bytes, int], PartitionBatch] = {}
        self._full: list[tuple[tuple[bytes, int], PartitionBatch]] = []
        self._ready: deque[tuple[tuple[bytes, int], PartitionBatch, int]] = deque()
        self._commands = 0
        self._bytes = 0
        self._scheduled = False

    def gather(
        self,
        keyspace: bytes,
        requests: list[Request],
        size: int,
        finish: Callable[[ConnectionBatch], None],
        *,
        cluster: bool = False,
        written: WrittenOperations | None = None,
    ) -> ConnectionBatch | None:
        """Return a batch of the leading single-key requests of about `size` bytes, None if there are none.

        Of a `cluster` connection, a request of which another member is the home is not among them.

        An empty batch means: wait for the next turn. Nothing is missing when it is answered already;
        otherwise `finish` is called later.
        """
        if self._commands >= GATHERED_COMMANDS_MAX or not self._turn_budget.fits(1):
            return ConnectionBatch([], [], 0, finish)
        group = self._store.group(keyspace)
        if size > limits.REQUEST_BYTES:
            requests, size = fitting(requests, limits.REQUEST_BYTES)
        if (replies := self._read_at_once(keyspace, requests, group, cluster)) is not None:
            return ConnectionBatch(requests, replies, 0, finish)
        taken, names = leading(requests) if group else ([], set())
        if not taken:
            return None
        keys = [args[1] for args in taken]
        partitions = partitions_of(keys, group)
        if cluster and (elsewhere := self._first_elsewhere(partitions)) is not None:
            if not elsewhere:
                return None
            taken, keys, partitions = taken[:elsewhere], keys[:elsewhere], partitions[:elsewhere]
        if names == _GET and (found := self._store.read_now(keyspace, partitions, keys)) is not None:
            return ConnectionBatch(taken, found, 0, finish)
        missing = len(taken)
        batch = ConnectionBatch(taken, [None] * missing, missing, finish, cluster=cluster, written=written)
        self._add(batch, self._reads if WRITES.isdisjoint(names) else self._writes, keyspace, partitions)
        self._gathered(missing, size)
        return batch

    def _add(
        self,
        batch: ConnectionBatch,
        partition_batches: dict[tuple[bytes, int], PartitionBatch],
        keyspace: bytes,
        partitions: Sequence[int],
    ) -> None:
        """Add the commands of a batch to the requests of their partitions."""
        if self._commands + len(partitions) > limits.REQUEST_COMMANDS_MAX:
            self._close_long(partition_batches, keyspace, partitions)
        for slot, partition in enumerate(partitions):
            key = (keyspace, partition)
            partition_batch = partition_batches.get(key)
            if partition_batch is None:
                partition_batch = partition_batches[key] = PartitionBatch(self._failure, self._held)
            partition_batch.commands.append(batch.requests[slot])
            partition_batch.places.append((batch, slot))
        if batch.written is not None and partition_batches is self._writes:
            for partition in partitions:
                partition_batches[keyspace, partition].written = True

    def _read_at_once(
        self, keyspace: bytes, requests: list[Request], group: range, cluster: bool
    ) -> list[Reply] | None:
        """Return replies to the leading requests, if all are a GET that may be answered now; a shortcut of
        compiled code."""
        if compiled is None or not group:
            return None
        found = compiled.gets(requests, BATCH_COMMANDS_MAX, group.start, len(group))
        if found is None or (cluster and self._first_elsewhere(found[1]) is not None):
            return None
        return self._store.read_now(keyspace, found[1], found[0])

    def read_one(self, keyspace: bytes, data: bytes, *, cluster: bool) -> list[Reply] | None:
        """Return the reply to `data`, if that is one GET that may be answered now; a shortcut of compiled
        code."""
        group = self._store.group(keyspace)
        if compiled is None or not group or not self._turn_budget.fits(1):
            return None
        found = compiled.one_get(data, group.start, len(group))
        if found is None:
            return None
        key, partition = found
        if cluster and self._store.home(partition) is not None:
            return None
        return self._store.read_now(keyspace, [partition], [key])

    def read_here(
        self,
        keyspace: bytes,
        requests: list[Request],
        finish: Callable[[ConnectionBatch], None],
        seen: SeenOperations,
    ) -> ConnectionBatch | None:
        """Return the leading reads, answered; None when the first request is none that can be at once."""
        if not self._turn_budget.fits(1):
            return ConnectionBatch([], [], 0, finish)
        group = self._store.group(keyspace)
        taken = leading(requests)[0] if group else []
        partitions = partitions_of([args[1] for args in taken], group)
        replies = self._store.read_here(seen, keyspace, partitions, taken) if taken else []
        return ConnectionBatch(taken[: len(replies)], replies, 0, finish) if replies else None

    def read_local(
        self,
        keyspace: bytes,
        requests: list[Request],
        finish: Callable[[ConnectionBatch], None],
        misses: Misses,
    ) -> ConnectionBatch | None:
        """Return the leading reads, answered from this member's entries; None when the first request is no
        read of one key."""
        if not self._turn_budget.fits(1):
            return ConnectionBatch([], [], 0, finish)
        taken = leading(requests)[0]
        replies = self._store.local.read(keyspace, taken, misses) if taken else []
        self._turn_budget.spend(len(replies), sum(len(each) for each in replies if type(each) is bytes))
        return ConnectionBatch(taken[: len(replies)], replies, 0, finish) if replies else None

    def _first_elsewhere(self, partitions: Sequence[int]) -> int | None:
        """Return the index of the first partition whose home is another member."""
        home = self._store.home
        return next((index for index, partition in enumerate(partitions) if home(partition)), None)

    def _close_long(
        self,
        partition_batches: dict[tuple[bytes, int], PartitionBatch],
        keyspace: bytes,
        partitions: Sequence[int],
    ) -> None:
        """Close requests that would become too long.

        A batch's commands of one partition stay together: of two requests the second could run before the
        rest of the first.
        """
        for partition, count in Counter(partitions).items():
            key = (keyspace, partition)
            partition_batch = partition_batches.get(key)
            if (
                partition_batch is not None
                and len(partition_batch.commands) + count > limits.REQUEST_COMMANDS_MAX
            ):
                self._full.append((key, partition_batches.pop(key)))

    def _gathered(self, commands: int, size: int) -> None:
        self._commands += commands
        self._bytes += size
        if self._bytes >= limits.REQUEST_BYTES:
            self._close_batches()
        if not self._scheduled:
            self._scheduled = True
            self._turn_budget.later(1, self._run)

    def _close_batches(self) -> None:
        """Close all requests. Reads go first: they need not see writes of the same turn."""
        partition_batches = [*self._full, *self._reads.items(), *self._writes.items()]
        room = first_room(len(partition_batches))
        self._ready.extend((key, partition_batch, room) for key, partition_batch in partition_batches)
        self._full, self._reads, self._writes = [], {}, {}
        self._bytes = 0

    def _run(self) -> None:
        """Start the collected requests, as many as fit into a turn."""
        self._scheduled = False
        self._close_batches()
        while self._ready:
            (keyspace, partition), partition_batch, room = self._ready[0]
            if not self._turn_budget.fits(len(partition_batch.commands)):
                self._scheduled = True
                self._turn_budget.later(len(partition_batch.commands), self._run)
                return
            self._ready.popleft()
            self._commands -= len(partition_batch.commands)
            saw = partial(partition_batch.wrote, partition) if partition_batch.written else None
            try:
                self._store.start(
                    partition, keyspace, partition_batch.commands, partition_batch, room, saw=saw
                )
            except Exception as error:  # noqa: BLE001  every request gets an answer
                partition_batch.set_exception(error)


def fitting(requests: list[Request], most: int) -> tuple[list[Request], int]:
    """Return the leading requests with at most `most` bytes, and their size."""
    size = 0
    for index, args in enumerate(requests):
        request_bytes = sum(map(len, args))
        if size + request_bytes > most:
            return requests[:index], size
        size += request_bytes
    return requests, size


def leading(requests: list[Request]) -> tuple[list[Request], set[bytes]]:
    """Return the leading valid single-key commands, and their names."""
    taken = requests[:BATCH_COMMANDS_MAX]
    shapes = {(args[0], len(args)) for args in taken}
    if not shapes <= _SHAPES.keys():
        taken = list(takewhile(lambda args: (args[0], len(args)) in _SHAPES, taken))
        shapes = {(args[0], len(args)) for args in taken}
    return taken, {_SHAPES[shape] for shape in shapes}
