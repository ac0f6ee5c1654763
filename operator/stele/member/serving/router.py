"""Routes requests to their partition's owner, here or at another member: a member's `KeyValueService`.

While the owner is unknown, moving or unreachable, requests of a partition wait in one queue in order of
arrival. Commands of one request run in order. Two concurrent requests may run in any order, so the RESP
server sends the next one only after the reply.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stele.core.formats import CLEARS, TRACKING
from stele.core.kv.announce import POD_ADDRESSES, Announce
from stele.core.kv.cluster_map import ClusterMap, ClusterNode, cluster_map, owner_node
from stele.core.kv.commands import REPLY_BYTES_MAX, Failure, Reply
from stele.core.kv.keyspaces import Settings, elsewhere_text, homeless_text
from stele.core.kv.seen import SeenOperations
from stele.core.kv.written import HELD, OpId, WrittenOperations
from stele.core.table.table import Partition
from stele.errors import BadInput, Corrupt, Refused, Stale, SteleError, Unavailable
from stele.member import limits
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.links import Link
from stele.member.replication.replica import Replica
from stele.member.replication.request import Request, RequestKind
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.backup_reads import BackupReads
from stele.member.serving.executor import CommandExecutor
from stele.member.serving.forwarding import CLEAR_COMMANDS, error_of, message_of, result_of
from stele.member.serving.outcomes import done, first
from stele.member.serving.waiting import WaitingRequests
from stele.member.tracking.local_caches import LocalCaches
from stele.member.tracking.near_values import NearValues
from stele.ports.key_value_service import Outcome
from stele.ports.near_caches import NearCaches, Track
from stele.ports.transactions import NoTransactions, Transactions
from stele.wire import peer
from stele.wire.two_phase import TX, takes_locks

STOPPING = "this member is stopping; connect to another"
LOCKED = "a transaction across partitions has the key locked"
RETRY = "nothing was done: retry"


@dataclass(eq=False)
class RequestRouter:
    """See the module, and ports.KeyValueService.

    `_adopt_row` takes a published row that an owner knows and this member may not.
    """

    _tablets: TabletStore
    _links: Mapping[int, Link]
    _executor: CommandExecutor
    _delayed_replies: DelayedReplies
    _backup_reads: BackupReads
    _adopt_row: Callable[[int, Partition], None]
    near_caches: NearCaches
    _near_values: NearValues
    local: LocalCaches
    _announce: Callable[[], Announce] = lambda: POD_ADDRESSES

    def __post_init__(self) -> None:
        self._table = self._tablets.table
        self._keyspaces = self._table.keyspaces
        self._counters = self._delayed_replies.counters
        self._turn_budget = self._executor.turn_budget
        self._waiting = WaitingRequests()
        self._queues = self._waiting.queues
        self._blocked = self._waiting.blocked
        self._due: set[int] = set()
        self._order = 0
        self._maps: dict[range, ClusterMap] = {}
        self._maps_key = (0, 0, POD_ADDRESSES)
        self._next_id = 0
        self._loop = asyncio.get_running_loop()
        self.transactions: Transactions = NoTransactions()
        self.available, self.only = self._keyspaces.available, self._keyspaces.only
        self.aside = self._keyspaces.aside
        self.asynchronous = self._keyspaces.asynchronous
        self.group, self._homeless = self._table.routes.group, self._table.routes.homeless
        self.read_here = self._backup_reads.read
        self.available_since = self._backup_reads.available_since
        self.stopping = False
        self._unanswered: list[Replica] = []

    # -- the end

    def stop(self) -> None:
        """Reject new requests, from clients and members, and fail those that wait for an owner."""
        self.stopping = True
        self.local.stop()
        self._unanswered = [each for each in self._tablets.replicas.values() if _owes(each)]
        for request in self._waiting.take_all():
            self._give_up(request, STOPPING)

    def abandon(self) -> None:
        """Answer all pending requests: not done, or uncertain."""
        for replica in self._tablets.replicas.values():
            self.send_again(self._delayed_replies.give_up(replica, follows=False))
        for link in self._links.values():
            self.lost(link.take_requests())
        self.local.abandon()

    def busy(self) -> bool:
        """Return whether a request from before `stop` is unanswered; new requests cannot be pending."""
        self._unanswered = [each for each in self._unanswered if _owes(each)]
        forwarded = any(link.requests for link in self._links.values())
        return bool(self._unanswered) or forwarded or self.local.busy

    # -- ports.KeyValueService

    def groups(self) -> Sequence[range]:
        return self._table.routes.groups

    def cluster_map(self, group: range) -> ClusterMap:
        announce, table = self._announce(), self._table
        key = table.stamp, table.member_list_version, announce
        if self._maps_key != key:
            self._maps, self._maps_key = {}, key
        if group not in self._maps:
            rows = table.rows[group.start : group.stop]
            versions = sum(row.version for row in table.rows)
            made = cluster_map(rows, table.members, table.me, epoch=versions, announce=announce)
            self._maps[group] = made
        return self._maps[group]

    def home(self, partition: int) -> ClusterNode | None:
        if partition in self._queues:
            return None
        owner = self._table.rows[partition].owner
        if owner is None or owner == self._table.me or self._accepted(partition):
            return None
        link, member = self._links.get(owner), self._table.members.get(owner)
        if link is None or not link.ready or member is None:
            return None
        return owner_node(member, self._announce())

    def _accepted(self, partition: int) -> bool:
        """Return whether this member has accepted a row that makes it the owner, and is not published here.

        The owner before may know that row already, and send clients here.
        """
        replica = self._tablets.replicas.get(partition)
        accepted = None if replica is None else replica.meta.accepted
        if accepted is None or accepted.version <= self._table.rows[partition].version:
            return False
        return accepted.replicas[0] == self._table.me

    def backups_min(self, group: range) -> int:
        rows = self._table.rows[group.start : group.stop]
        held = (sum(member is not None for member in row.replicas) for row in rows)
        return max(0, min(held, default=0) - 1)

    def backs_up(self, partition: int) -> bool:
        row, me = self._table.rows[partition], self._table.me
        return me in row.replicas and row.owner != me

    def settings_of(self, keyspace: bytes) -> Settings:
        return self._table.keyspaces.settings_of(keyspace)

    def execute(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        room: int = REPLY_BYTES_MAX,
        seen: SeenOperations | None = None,
        *,
        track: Track | None = None,
        written: WrittenOperations | None = None,
    ) -> Awaitable[list[Reply]]:
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        if seen is not None and track is None:
            replies = self._backup_reads.read(seen, keyspace, [partition] * len(commands), commands)
            if replies:
                future.set_result(replies)
                return future
        request = self._request(RequestKind.EXECUTE, partition, keyspace, future)
        request.commands, request.room, request.track = commands, room, track
        if written is not None and not request.may_write:
            written = None
        if seen is not None or written is not None:
            request.saw = partial(self._saw, partition, seen, written)
        self.submit(request)
        return future

    def _saw(
        self,
        partition: int,
        seen: SeenOperations | None,
        written: WrittenOperations | None,
        operation: OpId | None,
    ) -> None:
        if seen is not None:
            seen.saw(partition, operation, self._loop.time())
        if written is not None:
            written.add(partition, operation)

    def start(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        outcome: Outcome,
        room: int = REPLY_BYTES_MAX,
        *,
        track: Track | None = None,
        saw: Callable[[OpId | None], None] | None = None,
    ) -> None:
        request = self._request(RequestKind.EXECUTE, partition, keyspace, outcome)
        request.commands, request.room, request.track, request.saw = commands, room, track, saw
        self.submit(request)

    def read_now(self, keyspace: bytes, partitions: list[int], keys: list[bytes]) -> list[Reply] | None:
        """Return None also when another member owns a key, or requests wait for an owner, to keep their
        order."""
        if self._queues or self.stopping or keyspace in self._homeless:
            return None
        return self._executor.read_now(self._tablets.replicas, keyspace, partitions, keys)

    def scan(
        self, partition: int, keyspace: bytes, after: bytes, limit: int
    ) -> Awaitable[tuple[list[bytes], bytes | None]]:
        future: asyncio.Future[list[tuple[list[bytes], bytes | None]]] = self._loop.create_future()
        request = self._request(RequestKind.SCAN, partition, keyspace, future)
        request.after, request.limit = after, limit
        self.submit(request)
        return first(future)

    def count(self, partition: int, keyspace: bytes) -> Awaitable[int]:
        future: asyncio.Future[list[int]] = self._loop.create_future()
        self.submit(self._request(RequestKind.COUNT, partition, keyspace, future))
        return first(future)

    def clear(self, partition: int, keyspace: bytes, catalog: int = 0) -> Awaitable[None]:
        if self._table.features < CLEARS:
            raise Refused("clearing takes members that all know how: upgrade the cluster first")
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        request = self._request(RequestKind.CLEAR, partition, keyspace, future)
        request.catalog, request.commands = catalog, CLEAR_COMMANDS
        self.submit(request)
        return done(future)

    def info(self) -> dict[str, str | int]:
        counters = self._counters
        return {
            "reads": counters.reads,
            "writes": counters.writes,
            "backup_reads": counters.backup_reads,
            "forwarded": counters.forwarded,
            "errors": counters.errors,
            "waiting_requests": self._waiting.requests,
            "waiting_requests_bytes": self._waiting.bytes,
            "turn_entries_max": self._turn_budget.entries_max,
            "turn_bytes_max": self._turn_budget.bytes_max,
            **self.local.info(),
        }

    def _request(self, kind: RequestKind, partition: int, keyspace: bytes, outcome: Any) -> Request:
        if self.stopping:
            raise Unavailable(STOPPING)
        partitions = len(self._table.rows)
        if not self._table.routes.groups:
            raise Unavailable(
                "this member has not received a partition table from the master yet; retry", code="LOADING"
            )
        if keyspace in self._homeless:
            raise Unavailable(homeless_text(keyspace))
        if not 0 <= partition < partitions:
            raise BadInput(f"partition is {partition}; it must be 0 to {partitions - 1}")
        request = Request(kind, partition, keyspace, outcome)
        request.deadline = self._loop.time() + limits.WAIT_SECONDS_MAX
        return request

    # -- waiting

    def submit(self, request: Request) -> None:
        self._order += 1
        request.order = self._order
        if request.partition in self._queues or not self._dispatch(request):
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        """Queue a request in order of arrival."""
        if self.stopping:
            self._give_up(request, STOPPING)
        elif not self._waiting.add(request):
            text = f"{self._waiting.requests} requests of {self._waiting.bytes} bytes wait here; retry later"
            self._give_up(request, f"partition {request.partition}: {text}")

    def drain(self, partition: int) -> None:
        """Dispatch the partition's queued requests as far as possible, after a change."""
        if partition in self._queues:
            self._waiting.drain(partition, self._dispatch)

    def _drain_after(self, partition: int, _: object) -> None:
        self.drain(partition)

    def _drain_later(self, request: Request) -> None:
        """Drain the partition in a turn with room for the request."""
        partition = request.partition
        if partition not in self._due:
            self._due.add(partition)
            self._turn_budget.later(request.entries, partial(self._drain_due, partition))

    def _drain_due(self, partition: int) -> None:
        self._due.discard(partition)
        self.drain(partition)

    def drain_all(self) -> None:
        if self._blocked:
            self._unblock_all()
        for partition in list(self._queues):
            self.drain(partition)

    def _dispatch(self, request: Request) -> bool:
        """Run a request here or send it to its owner; False when it has to wait."""
        row = self._table.row_of(request.partition)
        owner = row.owner
        if owner is None or request.version > row.version:
            return False
        if owner == self._table.me:
            return self._run_here(request)
        if request.version:
            # The member that sent it must know of the row before a client there sees what the new owner did.
            request.failed(Stale(f"partition {request.partition} has another owner now"))
            return True
        link = self._links.get(owner)
        if link is None or not link.takes_requests:
            return False
        self._send(link, request, row.version)
        return True

    def _run_here(self, request: Request) -> bool:
        replica = self._tablets.replicas.get(request.partition)
        owner = None if replica is None else replica.owner
        if replica is None or owner is None or not owner.serving or not self._delayed_replies.has_room:
            return False
        if not self._table.routes.has(request.partition, request.keyspace) and _uses_keys(request):
            # Its sender has an older catalog, or it waited here while the catalog changed.
            is_homeless = request.keyspace in self._homeless
            text = (homeless_text if is_homeless else elsewhere_text)(request.keyspace)
            self._refused(request, Unavailable(text))
            return True
        if not self._turn_budget.fits(request.entries):
            self._drain_later(request)
            return False
        if replica.clearing or (replica.loads and replica.loading):
            return False
        if replica.locks is not None and self._wait_for_lock(replica, request):
            return True
        try:
            if self._keyspaces.available and self._backup_reads.answer(replica, request):
                return True
            self._executor.run(replica, request)
            if replica.clearing:
                request.future.add_done_callback(partial(self._drain_after, request.partition))
            if replica.unlocked:
                replica.unlocked = False
                self._loop.call_soon(self._unblock, request.partition)
        except Corrupt as error:
            request.failed(error)
            self._tablets.break_off(replica, error)
        return True

    # -- locks

    def _wait_for_lock(self, replica: Replica, request: Request) -> bool:
        """Keep the request while transactions across partitions have locked its keys."""
        if not (self._is_behind_clear(request) or self._executor.waits_for_lock(replica, request)):
            return False
        if not self._waiting.block(request):
            self._give_up(request, f"partition {request.partition}: {LOCKED}; {RETRY}")
        return True

    def _is_behind_clear(self, request: Request) -> bool:
        """Return whether it would take a lock that the clearing of a keyspace waits for."""
        if not (self._blocked and request.commands and takes_locks(request.commands[0])):
            return False
        return self._waiting.clears(request.partition)

    def _unblock(self, partition: int) -> None:
        """Try again what waits for locks of the partition."""
        for request in self._waiting.unblock(partition):
            if request.partition in self._queues or not self._dispatch(request):
                self._enqueue(request)

    def _unblock_all(self) -> None:
        """The same wherever the locks are gone, perhaps because another member is the owner now."""
        for partition in list(self._blocked):
            replica = self._tablets.replicas.get(partition)
            if replica is None or replica.locks is None:
                self._unblock(partition)

    # -- forwarding

    def _send(self, link: Link, request: Request, version: int) -> None:
        near = self._near_values.answer(request)
        if near is not None:
            if request.saw is not None:
                request.saw(None)
            request.done(near)
            return
        self._next_id += 1
        link.requests[self._next_id] = request
        self._counters.forwarded += 1
        self._turn_budget.spend(len(request.commands), 0)
        if request.track is not None and link.format < TRACKING:
            request.track.lose()
        link.send(message_of(self._next_id, version, request))

    def answered(self, link: Link, message: peer.Forwarded) -> None:
        """Handle the owner's answer to a forwarded request."""
        request = link.requests.pop(message.id, None)
        if request is None:
            return
        if message.code == "STALE_VERSION":
            # Another owner gets it at once; otherwise it is retried at the next tick.
            self._enqueue(request)
            if message.row is not None:
                self._adopt_row(request.partition, Partition(*message.row))
            if self._table.rows[request.partition].owner != link.member:
                self.drain(request.partition)
            return
        if message.code:
            self._refused(request, error_of(message))
        else:
            if request.saw is not None:
                request.saw(message.op)
            try:
                request.done(result_of(request, message.body))
            except Corrupt as error:
                request.failed(error)
        self.drain(request.partition)

    def _refused(self, request: Request, error: SteleError) -> None:
        """Fail a request as its owner did, which does not know what an owner before did."""
        if request.maybe_done and isinstance(error, Unavailable):
            self._delayed_replies.uncertain(request)
        else:
            request.failed(error)

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

    # -- time

    def expire(self, now: float) -> None:
        """Fail requests that have waited past their deadline."""
        for request in self._waiting.take_expired(now):
            self._expired(request)
        for request in self._waiting.take_expired_blocked(now):
            self._expired_blocked(request)
        for link in self._links.values():
            late = [id for id, request in link.requests.items() if request.deadline + 1 <= now]
            for id in late:
                request = link.requests.pop(id)
                if request.may_write:
                    self._delayed_replies.uncertain(request)
                else:
                    self._expired(request)

    def _expired_blocked(self, request: Request) -> None:
        text = f"{LOCKED} for {limits.WAIT_SECONDS_MAX:g} s; {RETRY}"
        if request.may_repeat and request.may_write:
            # An owner before may have done it, which only the member knows that sent it.
            self._give_up(request, text)
            return
        self._counters.add_unavailable(request)
        request.done([Failure("TRYAGAIN", text)])

    def _expired(self, request: Request) -> None:
        row = self._table.row_of(request.partition)
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


def _uses_keys(request: Request) -> bool:
    """Return whether a request reads or changes keys; what ends a transaction was promised before."""
    internal = request.commands and request.commands[0][:1]
    if not internal or internal[0] not in (HELD, TX):
        return True
    return takes_locks(request.commands[0])


def _owes(replica: Replica) -> bool:
    """Return whether requests wait for the tablet, or what was answered for its replicas."""
    return replica.owes or bool(replica.acknowledged)
