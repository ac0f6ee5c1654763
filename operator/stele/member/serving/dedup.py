"""Runs `STELE.ONCE` at the owner: the write and its deduplication entry are one operation of the log.

Deduplication entries are read like any key, including uncommitted changes, so a second attempt during the
first gets the same reply at the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stele.core.kv.commands import Evaluation, Failure, Put, Reply, Stored, evaluate, grows
from stele.core.kv.dedup import (
    CLIENTS_MAX,
    NO_ROOM,
    REPLY_BYTES_MAX,
    RememberedClients,
    check_once,
    stale,
    too_long,
)
from stele.core.kv.notifications import KeyEvents
from stele.errors import Corrupt
from stele.member.replication.replica import Replica
from stele.ports.engine import Engine
from stele.wire.replies import BadRepliesError, decode_replies, encode_replies
from stele.wire.storage.dedup import Remembered, client_entry, decode_remembered, encode_remembered
from stele.wire.storage.keys import SERVICE, after_prefix
from stele.wire.storage.log_record import Change

Read = Callable[[bytes], Stored | None]
"""Returns the value of a data key after all logged operations; the reply then waits for their commit."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request. `refusal` is why writes are refused at present, if they are, `full` why those are that
    make the keyspace larger; `ttl_ms` as in `evaluate`; `noted` takes the events of its commands, if somebody
    listens."""

    keyspace: bytes
    args: Sequence[bytes]
    now_ms: int
    refusal: Failure | None
    full: Failure | None
    ttl_ms: int
    noted: list[KeyEvents] | None = None


def run_once(engine: Engine, replica: Replica, attempt: Attempt, read: Read) -> tuple[Reply, list[Change]]:
    """Return the reply, and the changes to log as one operation first; none for a repeated request."""
    args, now_ms = attempt.args, attempt.now_ms
    failure = check_once(args)
    if failure is not None:
        return failure, []
    client, sequence = args[1], int(args[2])
    stored = read(replica.prefix(SERVICE) + client)
    if stored is not None:
        last = decode_remembered(stored[0])
        if last.sequence >= sequence:
            return _again(client, sequence, last), []
    if attempt.refusal is not None:
        return attempt.refusal, []
    stored_value = read(replica.prefix(attempt.keyspace) + args[4])
    evaluation = evaluate(args[3:], stored_value, now_ms, attempt.ttl_ms)
    if attempt.full is not None and grows(evaluation.op, stored_value):
        return attempt.full, []
    reply = encode_replies([evaluation.reply])
    if len(reply) > REPLY_BYTES_MAX:
        return too_long(len(reply)), []
    entry = encode_remembered(Remembered(sequence, now_ms, reply))
    forgotten = _clients(engine, replica).remember(client, now_ms, len(client) + len(entry))
    if forgotten is None:
        return NO_ROOM, []
    return evaluation.reply, [
        *_change(attempt.keyspace, evaluation),
        Change(SERVICE, client, entry),
        *map(_forget, forgotten),
    ]


def _again(client: bytes, sequence: int, last: Remembered) -> Reply:
    if last.sequence > sequence:
        return stale(client, sequence, last.sequence)
    try:
        return decode_replies(last.reply)[0]
    except (BadRepliesError, IndexError) as error:
        raise Corrupt(f"the remembered reply of a client: {error}") from error


def _change(keyspace: bytes, evaluation: Evaluation) -> list[Change]:
    op = evaluation.op
    if op is None:
        return []
    if isinstance(op, Put):
        return [Change(keyspace, op.key, op.value, op.expire_at_ms)]
    return [Change(keyspace, op.key, None)]


def _forget(client: bytes) -> Change:
    return Change(SERVICE, client, None)


def _clients(engine: Engine, replica: Replica) -> RememberedClients:
    """Return the remembered clients, read once per term: a new owner has applied all earlier operations."""
    if replica.clients is None:
        prefix = replica.prefix(SERVICE)
        page = engine.scan(prefix, after_prefix(prefix), CLIENTS_MAX + 1)
        replica.clients = RememberedClients(
            [client_entry(key[len(prefix) :], stored) for key, stored in page]
        )
    return replica.clients
