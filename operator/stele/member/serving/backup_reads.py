"""Reads that are answered from what is applied here: at backups, and at owners of keyspaces with
`reads: Available`, whose leases ended a short time ago (docs/reference/protocol.md, "Reads from backups").
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stele.core.formats import BACKUP_READS
from stele.core.kv.commands import READS, Reply, evaluate
from stele.core.kv.seen import SeenOperations
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.owner import Owner
from stele.core.tablet.read_index import ASKS_PER_LEASE, ReadIndexes, is_recent
from stele.errors import Corrupt
from stele.member import limits
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.links import Inbound, Link
from stele.member.replication.replica import Replica
from stele.member.replication.request import Request, RequestKind
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.executor import CommandExecutor
from stele.wire import peer
from stele.wire.storage.keys import unpack_value


@dataclass(eq=False)
class BackupReads:
    """Asks owners for their commit indexes while clients read here, and answers reads by them."""

    _tablets: TabletStore
    _links: Mapping[int, Link]
    _executor: CommandExecutor
    _delayed_replies: DelayedReplies
    _leases: tuple[LeaseGrantor, LeaseHolder]
    _now: Callable[[], float]
    _wall: Callable[[], float]

    def __post_init__(self) -> None:
        self._grantor, self._holder = self._leases
        self._indexes = ReadIndexes()
        self._keyspaces = self._tablets.table.keyspaces
        self._homeless = self._tablets.table.routes.homeless
        self._since: dict[bytes, tuple[int, float]] = {}
        self._loop = asyncio.get_running_loop()
        self._new: list[int] = []
        self._ask_at = 0.0

    # -- clients' reads

    def available_since(self, keyspace: bytes) -> float | None:
        """Return a time from which on all connections remember what they see in an `Available` keyspace.

        None for any other keyspace. A changed catalog is a new time: it may have been another one meanwhile.
        """
        if keyspace not in self._keyspaces.available:
            return None
        version, known = self._keyspaces.catalog.version, self._since.get(keyspace)
        if known is None or known[0] != version:
            known = self._since[keyspace] = version, self._now()
        return known[1]

    def read(
        self,
        seen: SeenOperations,
        keyspace: bytes,
        partitions: Sequence[int],
        commands: Sequence[Sequence[bytes]],
    ) -> list[Reply]:
        """Return the replies of the first commands: those that may be answered here, and fit into this
        turn."""
        available = keyspace in self._keyspaces.available
        if not (available or seen.readonly) or keyspace in self._homeless:
            return []
        now, budget, replies = self._now(), self._executor.turn_budget, list[Reply]()
        most, room, backups = limits.TURN_ENTRIES_MAX - budget.entries, limits.REPLY_BYTES, 0
        for partition, args in zip(partitions, commands, strict=True):
            replica = self._tablets.replicas.get(partition)
            if replica is None or len(replies) >= most or room <= 0 or args[0].upper() not in READS:
                break
            if not self._may_answer(replica, seen, keyspace, args, now, available=available):
                break
            try:
                reply = self._evaluate(replica, keyspace, args)
            except Corrupt:
                break  # A request that is executed hits the same damage, or is answered elsewhere.
            room -= len(reply) if type(reply) is bytes else 0
            backups += replica.owner is None
            replies.append(reply)
            seen.saw(partition, replica.tablet.log.applied, now)
        budget.spend(len(replies), limits.REPLY_BYTES - room)
        self._delayed_replies.counters.backup_reads += backups
        self._delayed_replies.counters.reads += len(replies) - backups
        return replies

    def answer(self, replica: Replica, request: Request) -> bool:
        """Answer a request to this member as the owner in an `Available` keyspace from what is applied.

        Returns False, with nothing done, for what has to be executed.
        """
        owner, now = replica.owner, self._now()
        if request.keyspace not in self._keyspaces.available or request.kind is not RequestKind.EXECUTE:
            return False
        if replica.intents:
            return False  # What is applied may be older than what a client was told of a transaction.
        if request.track is not None:
            return False  # The reads of a near cache are remembered when they are executed.
        if any(not args or args[0].upper() not in READS for args in request.commands):
            return False
        if any(_is_ahead(replica, request.keyspace, args) for args in request.commands):
            return False
        if owner is None or not self._owner_may_answer(replica, owner, now):
            return False
        for args in request.commands:
            reply = self._evaluate(replica, request.keyspace, args)
            if type(reply) is bytes and not request.takes(len(reply)):
                break
            request.replies.append(reply)
        self._executor.turn_budget.spend(len(request.replies), request.reply_bytes)
        self._delayed_replies.done(replica, request)
        return True

    def _evaluate(self, replica: Replica, keyspace: bytes, args: Sequence[bytes]) -> Reply:
        raw = self._tablets.engine.get(replica.prefix(keyspace) + args[1]) if len(args) > 1 else None
        stored = None if raw is None else unpack_value(raw)
        return evaluate(args, stored, int(self._wall() * 1000)).reply

    def _may_answer(
        self,
        replica: Replica,
        seen: SeenOperations,
        keyspace: bytes,
        args: Sequence[bytes],
        now: float,
        *,
        available: bool,
    ) -> bool:
        owner = replica.owner
        if replica.intents or replica.locks is not None:
            return False  # What is applied may be older than what a client was told of a transaction.
        if owner is None:
            return self._backup_may_answer(replica, seen, now)
        if available:
            is_ahead = _is_ahead(replica, keyspace, args)
            return owner.serving and not is_ahead and self._owner_may_answer(replica, owner, now)
        is_pending = len(args) > 1 and replica.prefix(keyspace) + args[1] in replica.pending
        return not is_pending and self._executor.serves_reads(replica, now)

    def _owner_may_answer(self, replica: Replica, owner: Owner, now: float) -> bool:
        """Return whether the owner may read, or could until a short time ago."""
        until = self._holder.read_until(replica.partition, owner.term, owner.waited_for)
        return now < until + limits.STALENESS_SECONDS_MAX

    def _backup_may_answer(self, replica: Replica, seen: SeenOperations, now: float) -> bool:
        """Return whether this backup's data is recent enough, also for what the connection has seen."""
        tablet = replica.tablet
        owner, log = tablet.row.owner, tablet.log
        if owner is None or not tablet.named or not replica.ready or replica.ingesting:
            return False
        if tablet.leader != owner:
            return False
        if self._indexes.want(replica.partition, now):
            self._ask_soon(replica.partition)
        fresh = self._indexes.fresh(replica.partition, owner, log.applied[1])
        recent = is_recent(fresh, now, self._grantor.lease_seconds)
        return recent and seen.allows(replica.partition, log.applied, fresh)

    # -- questions to owners

    def _ask_soon(self, partition: int) -> None:
        if not self._new:
            self._loop.call_soon(self._ask_new)
        self._new.append(partition)

    def _ask_new(self) -> None:
        new, self._new = self._new, []
        self._ask(new, self._now())

    def tick(self, now: float) -> None:
        """Ask again, several times within a lease, while clients read here."""
        if now >= self._ask_at:
            self._ask_at = now + self._grantor.lease_seconds / ASKS_PER_LEASE
            self._ask(self._indexes.wanted(now), now)

    def _ask(self, partitions: Sequence[int], now: float) -> None:
        rows, by_owner = self._tablets.rows, dict[int, list[int]]()
        for partition in partitions:
            owner = rows[partition].owner
            if owner is not None:
                by_owner.setdefault(owner, []).append(partition)
        for owner, asked in by_owner.items():
            link = self._links.get(owner)
            if link is not None and link.ready and link.format >= BACKUP_READS:
                for begin in range(0, len(asked), peer.READ_INDEX_PARTITIONS_MAX):
                    some = asked[begin : begin + peer.READ_INDEX_PARTITIONS_MAX]
                    link.send(peer.ReadIndex(now, some, self._keyspaces.catalog.version))

    def on_ask(self, sender: Inbound, message: peer.ReadIndex) -> None:
        """Answer as the owner, for those partitions that it may answer reads of at this moment."""
        now, indexes = self._now(), list[tuple[int, int]]()
        is_old = message.catalog < self._keyspaces.catalog.version
        for partition in () if is_old else message.partitions:
            replica = self._tablets.replicas.get(partition)
            if replica is not None and self._executor.serves_reads(replica, now):
                # What was answered before its commit counts, too: the backup waits for it.
                indexes.append((partition, max(replica.tablet.log.committed, replica.acknowledged.last)))
        self._executor.turn_budget.spend(len(message.partitions), 0)
        sender.send(peer.ReadIndexAnswer(message.at, indexes))

    def on_answer(self, link: Link, message: peer.ReadIndexAnswer) -> None:
        """Record what an owner answered, on the connection that it was asked on."""
        for partition, index in message.indexes:
            replica = self._tablets.replicas.get(partition)
            if replica is not None:
                self._indexes.answered(
                    partition,
                    link.member,
                    message.at,
                    index,
                    applied=replica.tablet.log.applied[1],
                    lease_seconds=self._grantor.lease_seconds,
                )


def _is_ahead(replica: Replica, keyspace: bytes, args: Sequence[bytes]) -> bool:
    """Return whether the answered writes, which are not all applied, may include one of this key."""
    if not replica.acknowledged or len(args) < 2:
        return False
    return replica.prefix(keyspace) + args[1] in replica.pending
