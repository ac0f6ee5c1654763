"""Runs `STELE.ONCE` at the owner: the write, and what is remembered of it, are one operation of the log.

What is remembered is read like any key: from what the log makes of it, committed or not. So a second attempt
that comes while the first is under way gets the same reply, at the same moment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stele.core.kv.commands import Evaluation, Failure, Put, Reply, Stored, evaluate
from stele.core.kv.dedup import (
    CLIENTS_MAX,
    NO_ROOM,
    REPLY_BYTES_MAX,
    RememberedClients,
    check_once,
    stale,
    too_long,
)
from stele.errors import Corrupt
from stele.member.replication.replica import Replica
from stele.ports.engine import Engine
from stele.wire.replies import BadRepliesError, decode_replies, encode_replies
from stele.wire.storage.dedup import Remembered, client_entry, decode_remembered, encode_remembered
from stele.wire.storage.keys import SERVICE, after_prefix
from stele.wire.storage.log_record import Change

Read = Callable[[bytes], Stored | None]
"""What the log makes of a data key; the answer then waits for it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request. `refusal` is why nothing may be written now, if it may not."""

    keyspace: bytes
    args: Sequence[bytes]
    now_ms: int
    refusal: Failure | None


def run_once(engine: Engine, replica: Replica, attempt: Attempt, read: Read) -> tuple[Reply, list[Change]]:
    """The reply, and what to log as one operation before it is given: nothing, for one given before."""
    args, now_ms = attempt.args, attempt.now_ms
    failure = check_once(args)
    if failure is not None:
        return failure, []
    client, sequence = args[1], int(args[2])
    known = read(replica.prefix(SERVICE) + client)
    if known is not None:
        last = decode_remembered(known[0])
        if last.sequence >= sequence:
            return _again(client, sequence, last), []
    if attempt.refusal is not None:
        return attempt.refusal, []
    made = evaluate(args[3:], read(replica.prefix(attempt.keyspace) + args[4]), now_ms)
    reply = encode_replies([made.reply])
    if len(reply) > REPLY_BYTES_MAX:
        return too_long(len(reply)), []
    entry = encode_remembered(Remembered(sequence, now_ms, reply))
    gone = _clients(engine, replica).remember(client, now_ms, len(client) + len(entry))
    if gone is None:
        return NO_ROOM, []
    return made.reply, [*_change(attempt.keyspace, made), Change(SERVICE, client, entry), *map(_forget, gone)]


def _again(client: bytes, sequence: int, last: Remembered) -> Reply:
    if last.sequence > sequence:
        return stale(client, sequence, last.sequence)
    try:
        return decode_replies(last.reply)[0]
    except (BadRepliesError, IndexError) as error:
        raise Corrupt(f"the reply that is remembered of a client: {error}") from error


def _change(keyspace: bytes, made: Evaluation) -> list[Change]:
    op = made.op
    if op is None:
        return []
    if isinstance(op, Put):
        return [Change(keyspace, op.key, op.value, op.expire_at_ms)]
    return [Change(keyspace, op.key, None)]


def _forget(client: bytes) -> Change:
    return Change(SERVICE, client, None)


def _clients(engine: Engine, replica: Replica) -> RememberedClients:
    """Read once per term: when an owner begins to serve, all that was logged before is applied."""
    if replica.clients is None:
        prefix = replica.prefix(SERVICE)
        page = engine.scan(prefix, after_prefix(prefix), CLIENTS_MAX + 1)
        replica.clients = RememberedClients(
            [client_entry(key[len(prefix) :], stored) for key, stored in page]
        )
    return replica.clients
