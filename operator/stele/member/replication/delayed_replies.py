"""Replies of owned tablets that wait: for a commit of what they saw, then for a lease to answer reads.

Those of Async keyspaces wait for this member's own log only, while it has leases and as far as there is room
for operations that are answered and not committed. Until they are answered, the bytes logged and those of the
replies are counted, so that they have a limit. Replies to the master are in `member.control.report`.
"""

import logging
from collections.abc import Callable

from stele.core.tablet.leases import LeaseHolder
from stele.core.tablet.log import OpId
from stele.core.tablet.owner import Phase
from stele.errors import Unavailable, Uncertain
from stele.member import limits
from stele.member.replication.counters import Counters
from stele.member.replication.latency import Histogram
from stele.member.replication.replica import Replica
from stele.member.replication.request import Request

log = logging.getLogger("stele.replication")


def _nothing(*_: object) -> None:
    return


class DelayedReplies:
    """Replies in the order of each tablet's log. `now` is the clock of requests' deadlines.

    `acknowledged` is called before a write is answered that is not applied yet.
    """

    def __init__(
        self,
        lease_holder: LeaseHolder,
        now: Callable[[], float],
        acknowledged: Callable[[Replica, Request], None] = _nothing,
    ) -> None:
        self._lease_holder = lease_holder
        self._now = now
        self._acknowledged = acknowledged
        self._waiting_for_lease: dict[int, Replica] = {}
        self._owing: dict[int, Replica] = {}
        self.pending_bytes = 0
        self.held_bytes = 0
        self.acknowledged_bytes = 0
        self.counters = Counters()
        self.latencies = {"read": Histogram(), "write": Histogram()}

    @property
    def has_room(self) -> bool:
        """Whether there is room for more uncommitted operations, and for replies waiting for commits or
        leases."""
        few = self.pending_bytes < limits.PENDING_BYTES_MAX
        return few and self.held_bytes < limits.HELD_REPLIES_BYTES_MAX

    def wait(self, replica: Replica, request: Request) -> None:
        """Answer the request once its operation is applied, or held here if it may be answered early."""
        self.held_bytes += request.reply_bytes
        self.pending_bytes += request.bytes
        self._owing[replica.partition] = replica
        if request.early:
            replica.early.append(request)
            self.held(replica)
        else:
            replica.waiters.append(request)

    def held(self, replica: Replica) -> None:
        """Answer, in order, the early requests whose operations this member's own log holds.

        Without a lease of every replica another owner may have been stored, which never gets them: then they
        wait for the commit.
        """
        early, owner = replica.early, replica.owner
        while early and owner is not None and early[0].index <= owner.synced:
            if not self.may_read(replica):
                self._waiting_for_lease[replica.partition] = replica
                return
            if early[0].wrote and not self._has_room_for(replica, early[0]):
                return
            self._acknowledge(replica, early.popleft())

    def may_have_answered(self, replica: Replica, index: int, size: int) -> None:
        """Count an operation that the process before this one may have answered before its commit."""
        size += limits.ASYNC_OPERATION_BYTES
        replica.acknowledged.add(index, 1, size)
        self.acknowledged_bytes += size

    def _has_room_for(self, replica: Replica, request: Request) -> bool:
        size = _memory(request)
        fits = replica.acknowledged.bytes + size <= limits.ASYNC_PARTITION_BYTES_MAX
        return fits and self.acknowledged_bytes + size <= limits.ASYNC_BYTES_MAX

    def _acknowledge(self, replica: Replica, request: Request) -> None:
        if request.wrote:
            size = _memory(request)
            replica.acknowledged.add(request.index, request.writes, size)
            self.acknowledged_bytes += size
            self._acknowledged(replica, request)
        self._release(request)
        term = replica.tablet.log.term_at(request.index)
        assert term is not None
        self.done(replica, request, (term, request.index))

    def applied(self, replica: Replica) -> None:
        """Answer, in order, the requests whose operations are applied now."""
        waiters, applied = replica.waiters, replica.tablet.log.applied[1]
        while waiters and waiters[0].index <= applied:
            request = waiters.popleft()
            self._release(request)
            self.answer(replica, request)
        if replica.acknowledged:
            self.acknowledged_bytes -= replica.acknowledged.committed(applied)
        if replica.early:
            self._applied_early(replica, applied)

    def _applied_early(self, replica: Replica, applied: int) -> None:
        early = replica.early
        while early and early[0].index <= applied:
            request = early.popleft()
            self._release(request)
            self.answer(replica, request)
        self.held(replica)

    def answer(self, replica: Replica, request: Request) -> None:
        """Answer now, or hold a read that no lease allows yet."""
        # A committed write proves that this member was the owner after the request came: it needs no lease.
        if request.reads and not request.wrote and not self.may_read(replica):
            self.held_bytes += request.reply_bytes
            replica.waiting_for_lease.append(request)
            self._waiting_for_lease[replica.partition] = replica
            self._owing[replica.partition] = replica
            return
        self.done(replica, request)

    def done(self, replica: Replica, request: Request, at: OpId | None = None) -> None:
        """Answer with the replies that the request has. They depend on operation `at`, None for the applied
        ones."""
        self._count(request)
        if request.saw is not None:
            request.saw(at or replica.tablet.log.applied)
        request.done(request.replies)

    def _count(self, request: Request) -> None:
        """Count the commands of a request, all with the duration of the request."""
        seconds = self._now() - request.deadline + limits.WAIT_SECONDS_MAX
        writes, counters = request.writes, self.counters
        reads = len(request.replies) - writes
        if writes:
            counters.writes += writes
            self.latencies["write"].add(seconds, writes)
        if reads > 0:
            counters.reads += reads
            self.latencies["read"].add(seconds, reads)

    def may_read(self, replica: Replica) -> bool:
        """Return whether the applied state includes every acknowledged write.

        That takes a lease of every replica, and of a learner that writes wait for: a row that names it may
        have been stored, and another owner with it.
        """
        owner = replica.owner
        # A frozen partition answers what it took before: it is handed over only when nothing waits any more.
        if owner is None or owner.phase is not Phase.SERVING:
            return False
        return self._lease_holder.may_read(replica.partition, owner.term, owner.waited_for, self._now())

    def leases_changed(self) -> None:
        """Answer what only waited for a lease."""
        replicas, self._waiting_for_lease = self._waiting_for_lease, {}
        for replica in replicas.values():
            waiting = replica.waiting_for_lease.copy()
            replica.waiting_for_lease.clear()
            for request in waiting:
                self._release(request)
                self.answer(replica, request)
            self.held(replica)

    def _release(self, request: Request) -> None:
        self.held_bytes -= request.reply_bytes
        if request.wrote:
            self.pending_bytes -= request.bytes
            request.bytes = 0

    def give_up(self, replica: Replica, *, follows: bool) -> list[Request]:
        """Stop serving the tablet, and return the requests that can be sent elsewhere.

        Logged writes are still answered if this member `follows` the new owner and that one commits them.
        """
        logged = sorted((*replica.waiters, *replica.early), key=lambda request: request.index)
        waiting = (*logged, *replica.waiting_for_lease)
        replica.waiters.clear()
        replica.early.clear()
        replica.waiting_for_lease.clear()
        replica.forget_ahead()
        again: list[Request] = []
        for request in waiting:
            if not request.wrote:
                self._release(request)
                request.reset()
                again.append(request)
            elif follows:
                replica.waiters.append(request)
            else:
                self._release(request)
                self.uncertain(request)
        return again

    def cut(self, replica: Replica, index: int) -> None:
        """Fail the writes after `index`, which were truncated from the log, as uncertain.

        Those that were answered already are lost.
        """
        for waiting in (replica.waiters, replica.early):
            kept = [request for request in waiting if request.index <= index]
            for request in waiting:
                if request.index > index:
                    self._release(request)
                    self.uncertain(request)
            waiting.clear()
            waiting.extend(kept)
        lost, size = replica.acknowledged.cut(index)
        self.acknowledged_bytes -= size
        if lost:
            self.counters.async_lost += lost
            text = "partition %d: %d acknowledged operations of Async keyspaces are lost with its owner"
            log.warning(text, replica.partition, lost)

    def expire(self, now: float) -> None:
        """Fail requests that have waited past their deadline; a client may send the next one at once."""
        self._owing = {partition: each for partition, each in self._owing.items() if each.owes}
        for replica in list(self._owing.values()):
            self._expire(replica, now)

    def _expire(self, replica: Replica, now: float) -> None:
        for waiting in (replica.waiters, replica.early):
            while waiting and waiting[0].deadline <= now:
                request = waiting.popleft()
                self._release(request)
                self.uncertain(request)
        late = [request for request in replica.waiting_for_lease if request.deadline <= now]
        if late:
            replica.waiting_for_lease[:] = [
                request for request in replica.waiting_for_lease if request.deadline > now
            ]
            for request in late:
                self._release(request)
                self.fail(request)

    def fail(self, request: Request) -> None:
        """Fail a request that got no lease in time."""
        if request.wrote:
            self.uncertain(request)
            return
        self.counters.add_unavailable(request)
        request.failed(
            Unavailable(
                f"partition {request.partition}: its owner had no lease of every replica for "
                f"{limits.WAIT_SECONDS_MAX:g} s; a replica is not reachable"
            )
        )

    def uncertain(self, request: Request) -> None:
        self.counters.uncertain += len(request.commands) or 1
        request.failed(
            Uncertain(
                f"partition {request.partition}: the replicas did not acknowledge within "
                f"{limits.WAIT_SECONDS_MAX:g} s, or its owner changed; the write may or may not be done"
            )
        )


def _memory(request: Request) -> int:
    """Return the bytes of memory that a request's operations take until they are committed."""
    return request.bytes + request.writes * limits.ASYNC_OPERATION_BYTES
