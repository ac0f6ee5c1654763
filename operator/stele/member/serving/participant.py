"""The part of an owner in transactions across partitions: what it answers, logs and locks.

`core.kv.two_phase` decides; here are the entries that it reads and writes. A partition has the locks of its
intents in memory while it is served, and finds them again in its data before.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from stele.core.kv import two_phase
from stele.core.kv.commands import REPLY_BYTES_MAX, Failure, Reply, Stored
from stele.core.kv.dedup import ONCE
from stele.core.kv.notifications import KeyEvents, OperationEvents
from stele.core.kv.transaction import EXEC, too_long
from stele.core.kv.two_phase import (
    INTENTS_MAX,
    Intent,
    Locks,
    Mark,
    Outcome,
    Ran,
    Status,
    Step,
    TxId,
    UserChange,
    UserKey,
    Verdict,
    Write,
)
from stele.errors import BadInput
from stele.member.replication.replica import Replica
from stele.member.serving.dedup import Attempt
from stele.member.serving.transactions import run_commands
from stele.ports.engine import Engine
from stele.wire.replies import encode_replies
from stele.wire.storage.keys import after_prefix, value_of
from stele.wire.storage.log_record import Change
from stele.wire.transaction import decode_transaction
from stele.wire.two_phase import (
    ASK,
    DECIDE,
    END,
    HISTORY,
    HISTORY_KEY,
    INTENTS,
    KNOWN,
    MARK,
    MARKS,
    OUTCOMES,
    PREPARE,
    TOLD,
    TX,
    AskMessage,
    EndMessage,
    IdMessage,
    PartMessage,
    answer,
    decode_entry,
    decode_message,
    encode_entry,
    id_key,
    member_prefix,
    part_of,
    split_id,
    takes_locks,
    text_of_id,
)

log = logging.getLogger("stele.transactions")

REMEMBERED_BYTES_MAX = 16 * 1024
"""Longest reply of a coordinator's part that stays in its log, for an originator whose connection ended."""
FORGOTTEN_AT_ONCE = 256
"""Outcomes that one message removes, and intents that are read in one step."""

DataRead = Callable[[bytes], Stored | None]
"""Returns the value of a data key after all logged operations; the reply then waits for their commit."""

_KEYSPACES: dict[type, bytes] = {Intent: INTENTS, Outcome: OUTCOMES}
NO_ROOM = Failure(
    "TRYAGAIN",
    f"{INTENTS_MAX} transactions across partitions, or {two_phase.INTENTS_BYTES_MAX} bytes of their changes, "
    "have locks in this partition; nothing was done: retry later",
)


class Served(NamedTuple):
    """The answer to a message; the changes to log as one operation first, with intents among them; the keys
    that are about to change; the work done. It `applies` commands when users' entries are among the changes;
    those that were promised are `lost` together with data of the partition.
    """

    reply: Reply
    changes: list[Change]
    writes: tuple[Write, ...] = ()
    changing: tuple[UserKey, ...] = ()
    entries: int = 1
    bytes: int = 0
    applies: bool = False
    lost: bool = False


class _Ledger:
    """`core.kv.two_phase.Ledger` of a tablet, read with its logged operations."""

    def __init__(self, replica: Replica, read: DataRead) -> None:
        self.replica, self._read = replica, read

    def user_value(self, keyspace: bytes, key: bytes) -> Stored | None:
        """Return the value of a user's key."""
        return self._read(self.replica.prefix(keyspace) + key)

    def _value(self, keyspace: bytes, key: bytes) -> bytes | None:
        stored = self.user_value(keyspace, key)
        return None if stored is None else stored[0]

    @property
    def history(self) -> bytes:
        return self._value(MARKS, HISTORY_KEY) or b""

    def intent(self, id: TxId) -> Intent | None:
        value = self._value(INTENTS, id_key(id))
        return None if value is None else decode_entry(Intent, value)

    def outcome(self, id: TxId) -> Outcome | None:
        value = self._value(OUTCOMES, id_key(id))
        return None if value is None else decode_entry(Outcome, value)

    def mark(self, member: str) -> Mark | None:
        value = self._value(MARKS, member_prefix(member))
        return None if value is None else decode_entry(Mark, value)


def serve(engine: Engine, replica: Replica, attempt: Attempt, read: DataRead) -> Served:
    """Return the answer to one message, and what has to be logged first."""
    ledger = _Ledger(replica, read)
    try:
        if len(attempt.args) != 3:
            raise BadInput(f"message about a transaction of {len(attempt.args)} arguments; 3 are expected")
        _, verb, body = attempt.args
        if verb in (PREPARE, DECIDE):
            return _run_part(ledger, attempt, decode_message(PartMessage, body))
        if verb == HISTORY:
            return _history(ledger, body)
        if verb == MARK:
            return _mark(engine, ledger, TxId(*decode_message(IdMessage, body).id), attempt.refusal)
        return _served(_simple(ledger, verb, body))
    except BadInput as error:
        return Served(Failure("ERR", str(error)), [])


def _simple(ledger: _Ledger, verb: bytes, body: bytes) -> Step:
    if verb == ASK:
        asked = decode_message(AskMessage, body)
        return two_phase.ask(ledger, TxId(*asked.id), asked.history)
    if verb == END:
        ended = decode_message(EndMessage, body)
        return _end(ledger, TxId(*ended.id), ended.verdict)
    if verb == KNOWN:
        return two_phase.recall(ledger, TxId(*decode_message(IdMessage, body).id))
    if verb == TOLD:
        return two_phase.told(ledger, TxId(*decode_message(IdMessage, body).id))
    raise BadInput(f"message about a transaction: {verb[:20]!r} is none that this build knows")


def _end(ledger: _Ledger, id: TxId, verdict: Verdict) -> Step:
    step = two_phase.end(ledger, id, verdict)
    if step.status is Status.LOST:
        log.error(
            "partition %d: transaction %s is committed, and its part is lost with data of this partition",
            *(ledger.replica.partition, text_of_id(id)),
        )
    return step


def _run_part(ledger: _Ledger, attempt: Attempt, message: PartMessage) -> Served:
    work, verb, locks = [0, 0], attempt.args[1], ledger.replica.locks

    def run(intent: Intent | None) -> Ran:
        ran, work[0], work[1] = _evaluate(ledger, attempt, message, intent)
        if intent is not None or ran.refused:
            return ran
        if attempt.refusal is not None:
            return Ran(attempt.refusal, refused=True)
        full = verb == PREPARE and locks is not None and locks.full
        return Ran(NO_ROOM, refused=True) if full else ran

    step = (two_phase.prepare if verb == PREPARE else two_phase.decide)(
        ledger, part_of(message, attempt.keyspace), run
    )
    return _served(step)._replace(entries=work[0] or 1, bytes=work[1])


def _evaluate(
    ledger: _Ledger, attempt: Attempt, message: PartMessage, intent: Intent | None
) -> tuple[Ran, int, int]:
    """Run the commands of a part. Returns the result, and the number of entries and bytes looked at."""
    now_ms, ttl_ms = attempt.now_ms, attempt.ttl_ms
    attempt = replace(attempt, refusal=None)
    if intent is not None:
        now_ms, ttl_ms = intent.now_ms, intent.ttl_ms
        attempt = replace(attempt, full=None, now_ms=now_ms, ttl_ms=ttl_ms)
    made = run_commands(attempt, message.transaction, ledger.user_value)
    reply = made.reply if made.bytes <= REPLY_BYTES_MAX else too_long(made.bytes)
    if not isinstance(reply, list):
        return Ran(reply, refused=True), made.entries, 0
    changes = tuple(_user_change(each) for each in made.changes)
    remembered = encode_replies([reply])
    if len(remembered) > REMEMBERED_BYTES_MAX:
        remembered = b""
    ran = Ran(reply, changes, remembered=remembered, now_ms=now_ms, ttl_ms=ttl_ms)
    return ran, made.entries, made.bytes


def _user_change(change: Change) -> UserChange:
    return change.keyspace, change.key, change.value, change.expire_at_ms


def _served(step: Step) -> Served:
    changes = [Change(*each) for each in step.changes]
    changes += [_change(write) for write in step.writes]
    intents = [write.value for write in step.writes if isinstance(write.value, Intent)]
    changing = tuple((keyspace, key) for each in intents for keyspace, key, *_ in each.changes)
    reply, applies, lost = answer(step.status, step.reply), bool(step.changes), step.status is Status.LOST
    return Served(reply, changes, step.writes, changing, applies=applies, lost=lost)


def _change(write: Write) -> Change:
    value = None if write.value is None else encode_entry(write.value)
    return Change(_KEYSPACES[write.of], id_key(write.id), value)


def _history(ledger: _Ledger, name: bytes) -> Served:
    """Return the name of the partition's data, which gets the one that is offered if it has none."""
    known = ledger.history
    return Served(known or name, [] if known else [Change(MARKS, HISTORY_KEY, name)])


def _mark(engine: Engine, ledger: _Ledger, low: TxId, refusal: Failure | None) -> Served:
    """Note that all transactions of an originator before `low` are over, and remove outcomes of them.

    Returns 1 when there are more to remove, else 0; an error while writes are refused.
    """
    if refusal is not None:
        return Served(refusal, [])
    known, given = ledger.mark(low.member), Mark(low.incarnation, low.number)
    mark = given if known is None else max(known, given)
    changes = [] if mark == known else [Change(MARKS, member_prefix(low.member), encode_entry(mark))]
    page = stored_outcomes(engine, ledger.replica, low.member)
    gone = [id for id, outcome in page if two_phase.is_forgettable(id, outcome, mark)]
    changes += [Change(OUTCOMES, id_key(id), None) for id in gone]
    return Served(int(len(page) == FORGOTTEN_AT_ONCE and bool(gone)), changes, entries=len(page) + 1)


def stored_outcomes(engine: Engine, replica: Replica, member: str) -> list[tuple[TxId, Outcome]]:
    """Return the first outcomes of an originator in the applied data, FORGOTTEN_AT_ONCE at most.

    Raises Corrupt.
    """
    prefix = replica.prefix(OUTCOMES)
    begin = prefix + member_prefix(member)
    page = engine.scan(begin, after_prefix(begin), FORGOTTEN_AT_ONCE)
    return [(split_id(key[len(prefix) :]), decode_entry(Outcome, value_of(value))) for key, value in page]


def originators(engine: Engine, replica: Replica) -> Iterator[TxId]:
    """Yield, for each originator with outcomes in the applied data, the first of its transactions."""
    prefix = replica.prefix(OUTCOMES)
    begin, end = prefix, after_prefix(prefix)
    while page := engine.scan(begin, end, 1):
        first = split_id(page[0][0][len(prefix) :])
        yield first
        begin = after_prefix(prefix + member_prefix(first.member))


# -- locks


def stored_intents(engine: Engine, replica: Replica) -> Iterator[tuple[TxId, Intent]]:
    """Yield the intents in the applied data of a tablet. Raises Corrupt."""
    prefix = replica.prefix(INTENTS)
    begin, end = prefix, after_prefix(prefix)
    while page := engine.scan(begin, end, FORGOTTEN_AT_ONCE):
        for key, value in page:
            yield split_id(key[len(prefix) :]), decode_entry(Intent, value_of(value))
        begin = page[-1][0] + b"\0"


def rebuild_locks(engine: Engine, replica: Replica, now: float) -> None:
    """Find the locks of a tablet in its data, before it is served; all operations are applied."""
    replica.locks = None
    if replica.intents:
        replica.locks = Locks(stored_intents(engine, replica), now)


def effect(replica: Replica, writes: Sequence[Write], now: float) -> None:
    """Lock and unlock keys as logged."""
    for write in writes:
        if write.of is Intent:
            if isinstance(write.value, Intent):
                replica.lock_keys(write.id, write.value, now)
            else:
                replica.unlock_keys(write.id)


def name_events(
    events: OperationEvents, partition: int, index: int, made: Served, noted: list[KeyEvents]
) -> None:
    """Have the events of commands published with the operation that applies them.

    `index` is that of what is logged now, `noted` are the events of the commands that ran for it.
    """
    intents = [write for write in made.writes if write.of is Intent]
    for write in intents:
        if write.value is None:
            events.end(partition, write.id, index if made.applies else None)
        else:
            events.prepare(partition, write.id, noted)
    if noted and made.applies and not intents:
        events.add_transaction(partition, index, noted)


def unlocked_commands(locks: Locks, keyspace: bytes, commands: Sequence[Sequence[bytes]]) -> int:
    """Return how many of the commands may run: those before the first one whose key is locked."""
    for number, args in enumerate(commands):
        try:
            keys, but = _keys(keyspace, args)
        except BadInput:
            continue  # It changes nothing, and is answered with the same error.
        if not locks.are_free(keys, but):
            return number
    return len(commands)


def _keys(keyspace: bytes, args: Sequence[bytes]) -> tuple[Sequence[UserKey], TxId | None]:
    """Return the keys of a command, and the transaction that it belongs to. Raises BadInput."""
    name = args[0] if args else b""
    if name == TX:
        if not takes_locks(args):
            return (), None
        part = part_of(decode_message(PartMessage, args[2]), keyspace)
        return part.keys, part.id
    if name == EXEC:
        transaction = decode_transaction(args[-1])
        watched = [(space, key) for space, key, _ in transaction.watches]
        return [*watched, *((keyspace, each[1]) for each in transaction.commands)], None
    at = 4 if name == ONCE else 1
    return [(keyspace, args[at])] if len(args) > at else (), None
