"""Routes requests to their partition's owner, here or at another member: a member's `KeyValueService`.

While the owner is unknown, moving or unreachable, requests of a partition wait in one queue in order of
arrival. Commands of one request run in order. Two concurrent requests may run in any order, so the RESP
server sends the next one only after the reply.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from stele.core.kv.cluster_map import ClusterMap, cluster_map
from stele.core.kv.commands import REPLY_BYTES_MAX, Reply
from stele.core.table.table import Partition
from stele.errors import BadInput, Corrupt, Refused, Stale, SteleError, Unavailable, Uncertain
from stele.member import limits
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.links import Inbound, Link
from stele.member.replication.replica import Replica
from stele.member.replication.request import Request, RequestKind
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.executor import CommandExecutor
from stele.ports.key_value_service import Outcome
from stele.wire import peer
from stele.wire.replies import BadRepliesError, decode_replies, encode_replies
from stele.wire.resp import ARGUMENT_BYTES

_ERRORS: dict[str, type[SteleError]] = {
    kind.__name__: kind for kind in (BadInput, Corrupt, Refused, Stale, Unavailable, Uncertain)
}
STOPPING = "this member is stopping; connect to another"
_encode = msgspec.msgpack.Encoder().encode
_page = msgspec.msgpack.Decoder(tuple[list[bytes], bytes | None])
_number = msgspec.msgpack.Decoder(int)


@dataclass(eq=False)
class RequestRouter:
    """See the module, and ports.KeyValueService.

    `_adopt_row` takes a published row that an owner knows and this member may not.
    """

    _tablets: TabletStore
    _links: Mapping[int, Link]
    _executor: CommandExecutor
    _delayed_replies: DelayedReplies
    _adopt_row: Callable[[int, Partition], None]

    def __post_init__(self) -> None:
        self._table = self._tablets.table
        self._counters = self._delayed_replies.counters
        self._turn_budget = self._executor.turn_budget
        self._waiting: dict[int, deque[Request]] = {}
        self._queued = 0
        self._queued_bytes = 0
        self._due: set[int] = set()
        self._order = 0
        self._map: ClusterMap | None = None
        self._map_key = (0, 0)
        self._next_id = 0
        self._loop = asyncio.get_running_loop()
        self.stopping = False
        self._unanswered: list[Replica] = []

    # -- the end

    def stop(self) -> None:
        """Reject new requests, from clients and members, and fail those that wait for an owner."""
        self.stopping = True
        self._unanswered = [each for each in self._tablets.replicas.values() if _owes(each)]
        waiting, self._waiting = self._waiting, {}
        for request in (request for queue in waiting.values() for request in queue):
            self._left(request)
            self._give_up(request, STOPPING)

    def abandon(self) -> None:
        """Answer all pending requests: not done, or uncertain."""
        for replica in self._tablets.replicas.values():
            self.send_again(self._delayed_replies.give_up(replica, follows=False))
        for link in self._links.values():
            self.lost(link.take_requests())

    def busy(self) -> bool:
        """Return whether a request from before `stop` is unanswered; new requests cannot be pending."""
        self._unanswered = [each for each in self._unanswered if _owes(each)]
        return bool(self._unanswered) or any(link.requests for link in self._links.values())

    # -- ports.KeyValueService

    @property
    def partitions(self) -> int:
        return len(self._table.rows)

    def cluster_map(self) -> ClusterMap:
        key = self._table.stamp, self._table.member_list_version
        if self._map is None or self._map_key != key:
            table = self._table
            versions = sum(row.version for row in table.rows)
            self._map = cluster_map(table.rows, table.members, table.me, epoch=versions)
            self._map_key = key
        return self._map

    def home(self, partition: int) -> str:
        if partition in self._waiting:
            return ""
        owner = self._table.rows[partition].owner
        if owner is None or owner == self._table.me:
            return ""
        link = self._links.get(owner)
        return link.host if link is not None and link.ready else ""

    async def execute(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        room: int = REPLY_BYTES_MAX,
    ) -> list[Reply]:
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        self.start(partition, keyspace, commands, future, room)
        return await future

    def start(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        outcome: Outcome,
        room: int = REPLY_BYTES_MAX,
    ) -> None:
        request = self._request(RequestKind.EXECUTE, partition, keyspace, outcome)
        request.commands, request.room = commands, room
        self.submit(request)

    def read_now(
        self, keyspace: bytes, partitions: Sequence[int], keys: Sequence[bytes]
    ) -> list[Reply] | None:
        """Return None also when another member owns a key, or requests wait for an owner, to keep their
        order."""
        if self._waiting or self.stopping:
            return None
        return self._executor.read_now(self._tablets.replicas, keyspace, partitions, keys)

    async def scan(
        self, partition: int, keyspace: bytes, after: bytes, limit: int
    ) -> tuple[list[bytes], bytes | None]:
        future = self._loop.create_future()
        request = self._request(RequestKind.SCAN, partition, keyspace, future)
        request.after, request.limit = after, limit
        self.submit(request)
        page: tuple[list[bytes], bytes | None] = (await future)[0]
        return page

    async def count(self, partition: int, keyspace: bytes) -> int:
        future = self._loop.create_future()
        request = self._request(RequestKind.COUNT, partition, keyspace, future)
        self.submit(request)
        number: int = (await future)[0]
        return number

    def info(self) -> dict[str, str | int]:
        counters = self._counters
        return {
            "reads": counters.reads,
            "writes": counters.writes,
            "forwarded": counters.forwarded,
            "errors": counters.errors,
            "waiting_requests": self._queued,
            "waiting_requests_bytes": self._queued_bytes,
            "turn_entries_max": self._turn_budget.entries_max,
            "turn_bytes_max": self._turn_budget.bytes_max,
        }

    def _request(self, kind: RequestKind, partition: int, keyspace: bytes, outcome: Any) -> Request:
        if self.stopping:
            raise Unavailable(STOPPING)
        partitions = self.partitions
        if not partitions:
            raise Unavailable(
                "this member has not received a partition table from the master yet; retry", code="LOADING"
            )
        if not 0 <= partition < partitions:
            raise BadInput(f"partition is {partition}; it must be 0 to {partitions - 1}")
        request = Request(kind, partition, keyspace, outcome)
        request.deadline = self._loop.time() + limits.WAIT_SECONDS_MAX
        return request

    # -- waiting

    def submit(self, request: Request) -> None:
        self._order += 1
        request.order = self._order
        if request.partition in self._waiting or not self._dispatch(request):
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        """Queue a request in order of arrival."""
        if self.stopping:
            self._give_up(request, STOPPING)
            return
        size = _bytes(request.commands)
        full = self._queued >= limits.QUEUE_REQUESTS_MAX or self._queued_bytes + size > limits.QUEUE_BYTES_MAX
        if full:
            text = f"{self._queued} requests of {self._queued_bytes} bytes wait here; retry later"
            self._give_up(request, f"partition {request.partition}: {text}")
            return
        self._queued += 1
        self._queued_bytes += size
        request.queued_bytes = size
        queue = self._waiting.setdefault(request.partition, deque())
        queue.append(request)
        if len(queue) > 1 and queue[-2].order > request.order:
            ordered = sorted(queue, key=lambda waiting: waiting.order)
            queue.clear()
            queue.extend(ordered)

    def drain(self, partition: int) -> None:
        """Dispatch the partition's queued requests as far as possible, after a change."""
        while queue := self._waiting.get(partition):
            # Dequeue first: running a request may put others at the front of the queue.
            request = queue.popleft()
            if not request.future.done() and not self._dispatch(request):
                self._waiting.setdefault(partition, queue).appendleft(request)
                return
            self._left(request)
        self._waiting.pop(partition, None)

    def _drain_later(self, request: Request) -> None:
        """Drain the partition in a turn with room for the request."""
        partition = request.partition
        if partition not in self._due:
            self._due.add(partition)
            self._turn_budget.later(request.entries, partial(self._drain_due, partition))

    def _drain_due(self, partition: int) -> None:
        self._due.discard(partition)
        self.drain(partition)

    def _left(self, request: Request) -> None:
        self._queued -= 1
        self._queued_bytes -= request.queued_bytes

    def drain_all(self) -> None:
        for partition in list(self._waiting):
            self.drain(partition)

    def _dispatch(self, request: Request) -> bool:
        """Run a request here or send it to its owner; False when it has to wait."""
        row = self._table.rows[request.partition]
        owner = row.owner
        if owner is None or request.version > row.version:
            return False
        if owner == self._table.me:
            return self._run_here(request)
        link = self._links.get(owner)
        if link is None or not link.ready:
            return False
        self._send(link, request, row.version)
        return True

    def _run_here(self, request: Request) -> bool:
        replica = self._tablets.replicas.get(request.partition)
        owner = None if replica is None else replica.owner
        if replica is None or owner is None or not owner.serving or not self._delayed_replies.has_room:
            return False
        if not self._turn_budget.fits(request.entries):
            self._drain_later(request)
            return False
        if replica.loads and replica.loading:
            return False
        try:
            self._executor.run(replica, request)
        except Corrupt as error:
            request.failed(error)
            self._tablets.break_off(replica, error)
        return True

    # -- forwarding

    def _send(self, link: Link, request: Request, version: int) -> None:
        self._next_id += 1
        link.requests[self._next_id] = request
        self._counters.forwarded += 1
        self._turn_budget.spend(len(request.commands), 0)
        link.send(_message(self._next_id, version, request))

    def answered(self, link: Link, message: peer.Forwarded) -> None:
        """Handle the owner's answer to a forwarded request."""
        request = link.requests.pop(message.id, None)
        if request is None:
            return
        if message.code == "STALE_VERSION":
            # A newer row redirects it at once; without one it is retried at the next tick.
            self._enqueue(request)
            if message.row is not None:
                self._adopt_row(request.partition, Partition(*message.row))
            return
        if message.code:
            request.failed(_ERRORS.get(message.code, Unavailable)(message.text))
        else:
            self._deliver(request, message.body)
        self.drain(request.partition)

    @staticmethod
    def _deliver(request: Request, body: bytes) -> None:
        try:
            if request.kind is RequestKind.EXECUTE:
                request.done(_at_most(decode_replies(body), len(request.commands)))
            elif request.kind is RequestKind.SCAN:
                request.done([_page.decode(body)])
            else:
                request.done([_number.decode(body)])
        except (BadRepliesError, msgspec.MsgspecError) as error:
            request.failed(Corrupt(f"invalid answer of the owner: {error}"))

    def lost(self, requests: list[Request]) -> None:
        """Handle requests whose link was lost; those that may be repeated are sent once more."""
        for request in requests:
            request.losses += 1
            if not request.may_repeat:
                self._delayed_replies.uncertain(request)
                continue
            request.maybe_done = request.may_write
            if request.losses < limits.LOSSES_MAX:
                self._enqueue(request)
            else:
                text = f"{request.losses} owners were lost during this request; it is not sent again"
                self._give_up(request, f"partition {request.partition}: {text}")

    def send_again(self, requests: list[Request]) -> None:
        """Requeue requests that logged nothing here, after this member gave up the tablet."""
        for request in requests:
            self._enqueue(request)

    # -- requests of other members

    def on_forward(self, sender: Inbound, message: Any) -> None:
        """Run a forwarded request, or answer that the sender's row is outdated.

        A stopping member runs nothing more: STALE_VERSION without a row makes the sender retry.
        """
        if self.stopping:
            sender.send(peer.Forwarded(message.id, "STALE_VERSION", "", b""))
            return
        rows = self._table.rows
        if not 0 <= message.partition < len(rows):
            text = f"partition {message.partition} is not in this member's table"
            sender.send(peer.Forwarded(message.id, "Unavailable", text, b""))
            return
        if self._is_stale(message):
            row = rows[message.partition]
            value = (row.version, row.replicas)
            sender.send(peer.Forwarded(message.id, "STALE_VERSION", "", b"", value))
            return
        future = self._loop.create_future()
        request = Request(_KINDS[type(message)], message.partition, message.keyspace, future)
        _fill(request, message)
        request.deadline = self._loop.time() + limits.WAIT_SECONDS_MAX
        future.add_done_callback(lambda future: _answer_back(sender, message.id, request, future))
        self.submit(request)

    def _is_stale(self, message: Any) -> bool:
        """Return whether the sender's row, by which it chose this member, is outdated."""
        row = self._table.rows[message.partition]
        if message.version > row.version:
            return False
        if row.owner != self._table.me:
            return True
        replica = self._tablets.replicas.get(message.partition)
        return replica is None or bool(message.version < replica.owner_since)

    # -- time

    def expire(self, now: float) -> None:
        """Fail requests that have waited past their deadline."""
        for partition, queue in list(self._waiting.items()):
            while queue and queue[0].deadline <= now:
                self._left(queue[0])
                self._expired(queue.popleft())
            if not queue:
                self._waiting.pop(partition, None)
        for link in self._links.values():
            late = [id for id, request in link.requests.items() if request.deadline + 1 <= now]
            for id in late:
                request = link.requests.pop(id)
                if request.may_write:
                    self._delayed_replies.uncertain(request)
                else:
                    self._expired(request)

    def _expired(self, request: Request) -> None:
        row = self._table.rows[request.partition]
        self._give_up(
            request,
            f"partition {request.partition} had no serving owner for "
            f"{limits.WAIT_SECONDS_MAX:g} s (row {list(row.replicas)}, version {row.version}); "
            "nothing was done; retry",
        )

    def _give_up(self, request: Request, text: str) -> None:
        """Fail a request that did not run here, as uncertain if it may have run at another member."""
        if request.maybe_done:
            self._delayed_replies.uncertain(request)
            return
        self._counters.add_unavailable(request)
        request.failed(Unavailable(text))


def _owes(replica: Replica) -> bool:
    """Return whether requests wait for the tablet."""
    return bool(replica.waiters or replica.waiting_for_lease)


def _bytes(commands: Sequence[Sequence[bytes]]) -> int:
    """Return the memory that a waiting request with these commands takes."""
    size = limits.REQUEST_OVERHEAD_BYTES
    for args in commands:
        size += sum(map(len, args)) + ARGUMENT_BYTES * (len(args) + 1)
    return size


_KINDS: dict[Any, RequestKind] = {
    peer.Forward: RequestKind.EXECUTE,
    peer.ForwardScan: RequestKind.SCAN,
    peer.ForwardCount: RequestKind.COUNT,
}


def _message(id: int, version: int, request: Request) -> peer.Message:
    partition, keyspace = request.partition, request.keyspace
    if request.kind is RequestKind.EXECUTE:
        commands = [list(args) for args in request.commands]
        return peer.Forward(id, version, partition, keyspace, commands, request.room)
    if request.kind is RequestKind.SCAN:
        return peer.ForwardScan(id, version, partition, keyspace, request.after, request.limit)
    return peer.ForwardCount(id, version, partition, keyspace)


def _fill(request: Request, message: Any) -> None:
    request.version = message.version
    if isinstance(message, peer.Forward):
        request.commands, request.room = message.commands, message.room
    elif isinstance(message, peer.ForwardScan):
        request.after, request.limit = message.after, message.limit


def _at_most(replies: list[Reply], commands: int) -> list[Reply]:
    if len(replies) > commands:
        raise BadRepliesError(f"{len(replies)} replies to {commands} commands")
    return replies


def _answer_back(sender: Inbound, id: int, request: Request, future: "asyncio.Future[Any]") -> None:
    if future.cancelled():
        return
    error = future.exception()
    if isinstance(error, SteleError):
        kind = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "Unavailable")
        sender.send(peer.Forwarded(id, kind, error.text, b""))
        return
    if error is not None:
        raise error
    replies = future.result()
    body = encode_replies(replies) if request.kind is RequestKind.EXECUTE else _encode(replies[0])
    sender.send(peer.Forwarded(id, "", "", body))
