"""Runs `MULTI ... EXEC` at the owner: all changes are one operation of the log."""

from collections.abc import Callable

from stele.core.kv.commands import Failure, Reply, Stored
from stele.core.kv.transaction import evaluate_all, fingerprint
from stele.errors import BadInput
from stele.wire.storage.log_record import Change
from stele.wire.transaction import decode_transaction

Read = Callable[[bytes, bytes], Stored | None]
"""Returns the value of (keyspace, key) after all logged operations; the reply then waits for their commit."""


def run_transaction(
    keyspace: bytes, body: bytes, now_ms: int, refusal: Failure | None, read: Read
) -> tuple[Reply, list[Change]]:
    """Return the reply, and the changes to log as one operation first.

    The reply is None, without a change, when a watched key has changed; `refusal` is why writes are refused
    at present, if they are.
    """
    try:
        transaction = decode_transaction(body)
    except BadInput as error:
        return Failure("ERR", str(error)), []
    for watched, key, known in transaction.watches:
        if fingerprint(read(watched, key), now_ms) != known:
            return None, []
    replies, changed = evaluate_all(transaction.commands, lambda key: read(keyspace, key), now_ms)
    if changed and refusal is not None:
        return refusal, []
    return replies, [_change(keyspace, key, stored) for key, stored in changed.items()]


def _change(keyspace: bytes, key: bytes, stored: Stored | None) -> Change:
    return Change(keyspace, key, None) if stored is None else Change(keyspace, key, *stored)


def reply_bytes(reply: Reply) -> int:
    """Return the bytes of the values in a reply."""
    if isinstance(reply, list):
        return sum(map(reply_bytes, reply))
    return len(reply) if isinstance(reply, bytes) else 0
