"""Executes requests at the owner: evaluate, log, and reply once committed (docs/reference/protocol.md).

Reads need leases. They see the effect of all logged operations, committed or not; the reply then waits until
everything that was read is committed. A client thus never reads data that could still be lost, but in Async
keyspaces, where the reply waits for this member's log only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stele.core.kv.commands import (
    KEY_BYTES_MAX,
    OK,
    REPLY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Evaluation,
    Failure,
    Put,
    Reply,
    Stored,
    evaluate,
    grows,
)
from stele.core.kv.dedup import ONCE
from stele.core.kv.notifications import EXPIRED, KeyEvents, OperationEvents, events_of
from stele.core.kv.transaction import EXEC, FINGERPRINT, fingerprint, too_long
from stele.core.kv.written import HELD, operations_of
from stele.core.tablet.holders import holders
from stele.core.tablet.owner import Owner, Phase
from stele.errors import Corrupt
from stele.member import limits
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.request import Request, RequestKind
from stele.member.replication.write_gate import WriteGate, no_space
from stele.member.serving import participant
from stele.member.serving.dedup import Attempt, Read, run_once
from stele.member.serving.transactions import Ran, run_transaction
from stele.member.tracking.invalidations import Invalidations
from stele.member.turn_budget import TurnBudget
from stele.native import compiled
from stele.wire.storage.keys import (
    EXPIRY_BYTES,
    after_prefix,
    is_expired,
    split_user,
    unpack_value,
    user_tail,
    value_of,
)
from stele.wire.storage.log_record import Change, batch_record, clear_record, delete_record, put_record
from stele.wire.two_phase import TX

_PLAIN_SET = (b"SET", b"set")
_NEVER = bytes(EXPIRY_BYTES)
_INTERNAL = frozenset({ONCE, EXEC, FINGERPRINT, HELD, TX})


def _fits(key: bytes, value: bytes) -> bool:
    return len(key) <= KEY_BYTES_MAX and len(value) <= VALUE_BYTES_MAX


@dataclass(eq=False)
class CommandExecutor:
    """Runs requests on tablets that this member serves."""

    _replicator: Replicator
    _delayed_replies: DelayedReplies
    _gate: WriteGate
    turn_budget: TurnBudget
    _now: Callable[[], float]
    _wall: Callable[[], float]
    _invalidations: Invalidations
    operation_events: OperationEvents = field(default_factory=OperationEvents)

    def __post_init__(self) -> None:
        self._engine = self._replicator.tablets.engine
        self._keyspaces = self._replicator.tablets.table.keyspaces
        self._asynchronous = self._keyspaces.asynchronous
        self._lease_holder = self._replicator.lease_holder
        self.counters = self._delayed_replies.counters

    def run(self, replica: Replica, request: Request) -> None:
        """Execute a request; it is answered now, or once it is committed and a lease allows it."""
        if request.kind is RequestKind.EXECUTE:
            if request.track is not None:
                self._invalidations.register(replica.partition, request.track)
            request.early = request.keyspace in self._asynchronous
            self._execute(replica, request)
            if request.track is not None and request.wrote:
                self._invalidations.wrote(replica, request, request.track)
            size = max(request.reply_bytes, request.work_bytes) + request.bytes
            self.turn_budget.spend(len(request.replies), size)
        elif request.kind is RequestKind.CLEAR:
            request.replies = [self._clear(replica, request)]
        else:
            request.reads = True
            if request.kind is RequestKind.SCAN:
                request.replies = [self._scan(replica, request)]  # type: ignore[list-item]
            else:
                request.replies = [replica.keyspaces.get(request.keyspace, (0, 0))[0]]
        if request.index:
            self._delayed_replies.wait(replica, request)
        else:
            self._delayed_replies.answer(replica, request)

    def _execute(self, replica: Replica, request: Request) -> None:
        prefix = replica.prefix(request.keyspace)
        now_ms = int(self._wall() * 1000)
        records: list[bytes] = []
        replies = request.replies = []
        pending, owner = replica.pending, replica.owner
        assert owner is not None
        index, term, keyspace = replica.tablet.log.last[1], owner.term, request.keyspace
        ttl_ms = self._ttl_ms(keyspace)
        expire_at_ms = now_ms + ttl_ms if ttl_ms else 0
        refusal, full = self.refusal_at(owner), self._keyspaces.full.get(keyspace)
        unchecked = refusal is None and full is None
        for args in request.commands:
            if len(args) == 3 and args[0] in _PLAIN_SET and unchecked and _fits(args[1], args[2]):
                # A plain SET, the most common write, needs no read of the old value.
                records.append(put_record(term, keyspace, args[1], args[2], expire_at_ms))
                pending[prefix + args[1]] = ((args[2], expire_at_ms), index + len(records))
                replies.append(OK)
                continue
            if request.work_bytes > limits.REQUEST_WORK_BYTES:
                break
            if args and args[0] in _INTERNAL:
                request.early = False
                if not self._internal(replica, request, args, records):
                    break
                continue
            data_key = prefix + args[1] if len(args) > 1 else b""
            stored = self._read(replica, request, data_key, index + len(records)) if data_key else None
            evaluation = evaluate(args, stored, now_ms, ttl_ms)
            if type(evaluation.reply) is bytes and not request.takes(len(evaluation.reply)):
                break  # Neither this command nor later ones run, which keeps their order.
            if evaluation.op is None:
                request.reads = True
                replies.append(evaluation.reply)
            elif refusal is not None:
                replies.append(refusal)
            elif full is not None and grows(evaluation.op, stored):
                replies.append(full)
            else:
                self._log(replica, request, evaluation, records, owner.term)
                if self.operation_events.active:
                    events = events_of(args, evaluation.op)
                    self.operation_events.add(replica.partition, index + len(records), events)
                request.work_bytes += len(records[-1])
                pending[data_key] = (_after(evaluation), index + len(records))
                replies.append(evaluation.reply)
        if records:
            # Who asks remembers the operation, for WAIT.
            request.early = request.early and request.saw is not None
            request.writes = len(records)
            request.index = index + len(records)
            request.wrote = True
            request.bytes = sum(map(len, records))
            self._replicator.append(replica, records)

    def waits_for_lock(self, replica: Replica, request: Request) -> bool:
        """Return whether a lock keeps the request from running; of several commands, the first ones may run.

        Those that may not are taken out of the request: they count as commands without room for their reply.
        """
        locks = replica.locks
        if locks is None or request.kind in (RequestKind.SCAN, RequestKind.COUNT):
            return False
        if request.kind is RequestKind.CLEAR:
            return locks.any_in(request.keyspace)
        free = participant.unlocked_commands(locks, request.keyspace, request.commands)
        if free < len(request.commands):
            request.commands = request.commands[: max(1, free)]
        return free == 0

    def _clear(self, replica: Replica, request: Request) -> Reply:
        """Log that a keyspace is cleared. Until that is applied, other requests of the partition wait."""
        owner, version = replica.owner, self._keyspaces.catalog.version
        assert owner is not None
        if (refusal := self.refusal_at(owner)) is not None:
            return refusal
        if 0 < request.catalog < version:
            text = f"catalog {version} of keyspaces is newer than {request.catalog}: it may be in use again"
            return Failure("STALE_CATALOG", text)
        record = clear_record(owner.term, request.keyspace)
        request.index = replica.clearing = replica.tablet.log.last[1] + 1
        request.writes, request.wrote, request.bytes = 1, True, len(record)
        self._replicator.append(replica, [record])
        return OK

    def refusal_at(self, owner: Owner) -> Failure | None:
        """Return why writes to the tablet are refused now; a full volume of a backup counts as the
        owner's own."""
        full, refusal = self._replicator.full, self._gate.refusal
        if refusal is not None or not full:
            return refusal
        backup = next((member for member in owner.waited_for if member in full), None)
        return None if backup is None else no_space(backup, "holds a copy of this partition")

    def read_now(
        self,
        replicas: dict[int, Replica],
        keyspace: bytes,
        partitions: list[int],
        keys: list[bytes],
    ) -> list[Reply] | None:
        """Return committed values that leases allow to be read directly; None when one cannot be.

        Returns as many as fit into this turn: perhaps only the first ones, or none.
        """
        entries_left = limits.TURN_ENTRIES_MAX - self.turn_budget.entries
        if len(keys) > entries_left:
            partitions, keys = partitions[: max(0, entries_left)], keys[: max(0, entries_left)]
        find = self._find_plainly if compiled is None else self._find_compiled
        try:
            found = find(replicas, keyspace, partitions, keys)
        except Corrupt:
            return None  # A request hits the same damage and takes the tablet offline.
        if found is None:
            return None
        replies, room = found
        self.turn_budget.spend(len(replies), limits.REPLY_BYTES - room)
        self.counters.reads += len(replies)
        self._delayed_replies.latencies["read"].add(0.0, len(replies))
        return replies or None

    def _find_compiled(
        self, replicas: dict[int, Replica], keyspace: bytes, partitions: list[int], keys: list[bytes]
    ) -> tuple[list[Reply], int] | None:
        """Do the same as `_find_plainly`."""
        assert compiled is not None
        now = self._now()

        def leased(replica: Replica, owner: Owner) -> bool:
            return self._lease_holder.may_read(replica.partition, owner.term, owner.waited_for, now)

        engine, now_ms = self._engine, int(self._wall() * 1000)
        return compiled.read_now(
            replicas, keyspace, partitions, keys, Phase.SERVING, leased, engine, now_ms, limits.REPLY_BYTES
        )

    def _find_plainly(
        self, replicas: dict[int, Replica], keyspace: bytes, partitions: list[int], keys: list[bytes]
    ) -> tuple[list[Reply], int] | None:
        """Return replies to the leading reads, and the bytes of room that are left."""
        now, now_ms = self._now(), int(self._wall() * 1000)
        get, replies, room = self._engine.get, list[Reply](), limits.REPLY_BYTES
        for partition, key in zip(partitions, keys, strict=True):
            replica = replicas.get(partition)
            if replica is None or len(key) > KEY_BYTES_MAX or not self.serves_reads(replica, now):
                return None
            data_key = (replica.prefixes.get(keyspace) or replica.prefix(keyspace)) + key
            if replica.pending and data_key in replica.pending:
                return None
            if replica.locks is not None and (keyspace, key) in replica.locks:
                return None
            stored = get(data_key)
            if stored is None or (not stored.startswith(_NEVER) and is_expired(stored, now_ms)):
                replies.append(None)
                continue
            replies.append(value_of(stored))
            room -= len(stored)
            if room <= 0:
                break
        return replies, room

    def serves_reads(self, replica: Replica, now: float) -> bool:
        """Return whether the applied data has every acknowledged write: it is the owner and has leases."""
        owner = replica.owner
        if owner is None or owner.phase is not Phase.SERVING or owner.frozen:
            return False
        others = owner.waited_for
        return not others or self._lease_holder.may_read(replica.partition, owner.term, others, now)

    def _internal(
        self, replica: Replica, request: Request, args: Sequence[bytes], records: list[bytes]
    ) -> bool:
        """Run a command whose changes are one operation. Returns False when its reply has no room."""
        owner, now_ms = replica.owner, int(self._wall() * 1000)
        assert owner is not None
        if args[0] == HELD:
            held = holders(owner, operations_of(args))
            request.replies.append(None if held is None else [held[0], int(held[1])])
            return True
        at = replica.tablet.log.last[1] + len(records)

        def read(data_key: bytes) -> Stored | None:
            return self._read(replica, request, data_key, at)

        if args[0] == TX:
            self._two_phase(replica, request, args, records, read)
            return True
        noted: list[KeyEvents] | None = [] if self.operation_events.active else None
        attempt = Attempt(
            request.keyspace,
            args,
            now_ms,
            self.refusal_at(owner),
            self._keyspaces.full.get(request.keyspace),
            self._ttl_ms(request.keyspace),
            noted,
        )
        reply, changes, entries, size = self._outcome(replica, attempt, read)
        self.turn_budget.spend(entries, 0)
        request.work_bytes += sum(len(each.value or b"") for each in changes)
        if args[0] != ONCE and not request.takes(size):
            if request.replies or request.room < REPLY_BYTES_MAX:
                return False
            reply, changes = too_long(size), []
        request.replies.append(reply)
        if changes:
            records.append(batch_record(owner.term, changes))
            _look_ahead(replica, changes, at + 1)
            if noted is not None:
                self._name_events(replica.partition, at + 1, args, changes, noted)
        else:
            request.reads = True
        return True

    def _two_phase(
        self, replica: Replica, request: Request, args: Sequence[bytes], records: list[bytes], read: Read
    ) -> None:
        """Run a message about a transaction across partitions."""
        owner, now_ms = replica.owner, int(self._wall() * 1000)
        assert owner is not None
        keyspace, refusal = request.keyspace, self.refusal_at(owner)
        full, ttl_ms = self._keyspaces.full.get(keyspace), self._ttl_ms(keyspace)
        noted: list[KeyEvents] | None = [] if self.operation_events.active else None
        attempt = Attempt(keyspace, args, now_ms, refusal, full, ttl_ms, noted)
        made = participant.serve(self._engine, replica, attempt, read)
        self.turn_budget.spend(made.entries, 0)
        request.takes(made.bytes)
        request.replies.append(made.reply)
        self.counters.lost_parts += made.lost
        if not made.changes:
            request.reads = True
            return
        request.work_bytes += sum(len(each.value or b"") for each in made.changes)
        records.append(batch_record(owner.term, made.changes))
        index = replica.tablet.log.last[1] + len(records)
        _look_ahead(replica, made.changes, index)
        if noted is not None:
            participant.name_events(self.operation_events, replica.partition, index, made, noted)
        participant.effect(replica, made.writes, self._now())
        self._invalidations.changing(replica.partition, [user_tail(*each) for each in made.changing])

    def _name_events(
        self,
        partition: int,
        index: int,
        args: Sequence[bytes],
        changes: Sequence[Change],
        noted: list[KeyEvents],
    ) -> None:
        if noted:
            self.operation_events.add_transaction(partition, index, noted)
        elif args[0] == ONCE and changes[0].value is not None:
            self.operation_events.add(partition, index, events_of(args[3:], Put(args[4], b"", 0)))

    def _outcome(self, replica: Replica, attempt: Attempt, read: Read) -> Ran:
        args, prefix = attempt.args, replica.prefix
        if args[0] == FINGERPRINT and len(args) == 2:
            stored = read(prefix(attempt.keyspace) + args[1])
            # A fingerprint is short, but takes the time of its value.
            size = 0 if stored is None else len(stored[0])
            return Ran(fingerprint(stored, attempt.now_ms), [], 0, size)
        if args[0] == EXEC:
            return run_transaction(attempt, lambda space, key: read(prefix(space) + key))
        return Ran(*run_once(self._engine, replica, attempt, read), 0, 0)

    def _ttl_ms(self, keyspace: bytes) -> int:
        return self._keyspaces.settings_of(keyspace).ttl_seconds * 1000

    def _read(self, replica: Replica, request: Request, data_key: bytes, at: int) -> Stored | None:
        """Return a value after all operations up to `at`, and count its bytes.

        The reply to the request then waits for all of them, so that replies are sent in the order of the log.
        """
        pending_value = replica.pending.get(data_key)
        if pending_value is not None:
            stored, request.index = pending_value[0], at
        else:
            raw = self._engine.get(data_key)
            stored = None if raw is None else unpack_value(raw)
        if stored is not None:
            request.work_bytes += len(stored[0])
        return stored

    def remove_expired(self, replica: Replica, page: Sequence[tuple[bytes, bytes]]) -> list[Change]:
        """Log the removal of stored entries that are expired and unchanged since, as one operation."""
        owner, now_ms = replica.owner, int(self._wall() * 1000)
        assert owner is not None
        removals = [
            Change(*split, None)
            for data_key, stored in page
            if data_key not in replica.pending
            and is_expired(stored, now_ms)
            and (split := split_user(data_key))
            and (replica.locks is None or split not in replica.locks)
        ]
        if removals:
            index = replica.tablet.log.last[1] + 1
            _look_ahead(replica, removals, index)
            if self.operation_events.active:
                self.operation_events.add(replica.partition, index, EXPIRED)
            self._replicator.append(replica, [batch_record(owner.term, removals)])
        return removals

    def log_changes(self, replica: Replica, changes: Sequence[Change]) -> Failure | None:
        """Log the changes that differ from stored values, as one operation, even while clients have to wait.

        Returns the refusal when writes to the tablet are refused now.
        """
        owner = replica.owner
        assert owner is not None
        assert owner.phase is Phase.SERVING
        effective = [change for change in changes if self._differs(replica, change)]
        refusal = self.refusal_at(owner) if effective else None
        if effective and refusal is None:
            _look_ahead(replica, effective, replica.tablet.log.last[1] + 1)
            self._replicator.append(replica, [batch_record(owner.term, effective)])
        return refusal

    def _differs(self, replica: Replica, change: Change) -> bool:
        if replica.clearing:
            return True  # What is stored is about to go.
        data_key = replica.prefix(change.keyspace) + change.key
        pending_value = replica.pending.get(data_key)
        if pending_value is not None:
            return pending_value[0] != (None if change.value is None else (change.value, change.expire_at_ms))
        stored = self._engine.get(data_key)
        if stored is None or change.value is None:
            return (stored is None) is not (change.value is None)
        return unpack_value(stored) != (change.value, change.expire_at_ms)

    @staticmethod
    def _log(replica: Replica, request: Request, made: Evaluation, records: list[bytes], term: int) -> None:
        op, keyspace = made.op, request.keyspace
        if isinstance(op, Put):
            records.append(put_record(term, keyspace, op.key, op.value, op.expire_at_ms))
        elif op is not None:
            records.append(delete_record(term, keyspace, op.key))

    def _scan(self, replica: Replica, request: Request) -> tuple[list[bytes], bytes | None]:
        """Return the unexpired keys greater than `after`, and how far the scan got, None at the end."""
        prefix = replica.prefix(request.keyspace)
        begin, end = prefix + request.after + b"\0", after_prefix(prefix)
        limit = max(1, min(request.limit, limits.SCAN_KEYS_MAX))
        page = self._engine.scan(begin, end, limit, limits.SCAN_BYTES)
        now_ms = int(self._wall() * 1000)
        keys = [key.removeprefix(prefix) for key, value in page if not is_expired(value, now_ms)]
        size = sum(len(key) + len(value) for key, value in page)
        request.reply_bytes = min(size, limits.SCAN_BYTES)
        self.turn_budget.spend(max(1, len(page)), size)
        full = len(page) == limit or size >= limits.SCAN_BYTES
        return keys, page[-1][0].removeprefix(prefix) if full else None


def _look_ahead(replica: Replica, changes: Sequence[Change], index: int) -> None:
    """Record the values of entries after operation `index`, which was just logged."""
    for change in changes:
        after = None if change.value is None else (change.value, change.expire_at_ms)
        replica.pending[replica.prefix(change.keyspace) + change.key] = (after, index)


def _after(evaluation: Evaluation) -> Stored | None:
    return (evaluation.op.value, evaluation.op.expire_at_ms) if isinstance(evaluation.op, Put) else None
