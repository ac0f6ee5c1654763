"""Runs `MULTI ... EXEC` at the owner: all changes are one operation of the log."""

from collections.abc import Callable
from typing import NamedTuple

from stele.core.kv.commands import Failure, Reply, Stored
from stele.core.kv.transaction import READ_BYTES_MAX, READS_TOO_MUCH, evaluate_all, fingerprint
from stele.errors import BadInput
from stele.wire.storage.log_record import Change
from stele.wire.transaction import Transaction, decode_transaction

Read = Callable[[bytes, bytes], Stored | None]
"""Returns the value of (keyspace, key) after all logged operations; the reply then waits for their commit."""


class Ran(NamedTuple):
    """The reply, the changes to log as one operation first, and the work: entries, and bytes read."""

    reply: Reply
    changes: list[Change]
    entries: int
    read_bytes: int


class _TooMuchError(Exception):
    """The transaction reads more than READ_BYTES_MAX."""


class _Reads:
    """Reads each key once, and counts the bytes."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._values: dict[tuple[bytes, bytes], Stored | None] = {}
        self.bytes = 0

    def __call__(self, keyspace: bytes, key: bytes) -> Stored | None:
        if (keyspace, key) not in self._values:
            stored = self._values[keyspace, key] = self._read(keyspace, key)
            self.bytes += 0 if stored is None else len(stored[0])
            if self.bytes > READ_BYTES_MAX:
                raise _TooMuchError
        return self._values[keyspace, key]


def run_transaction(keyspace: bytes, body: bytes, now_ms: int, refusal: Failure | None, read: Read) -> Ran:
    """Run a transaction. The reply is None, without a change, when a watched key has changed.

    `refusal` is why writes are refused at present, if they are.
    """
    try:
        transaction = decode_transaction(body)
    except BadInput as error:
        return Ran(Failure("ERR", str(error)), [], 1, 0)
    reads, entries = _Reads(read), len(transaction.watches) + len(transaction.commands)
    try:
        reply, changes = _run(keyspace, transaction, now_ms, reads)
    except _TooMuchError:
        reply, changes = READS_TOO_MUCH, []
    if changes and refusal is not None:
        reply, changes = refusal, []
    return Ran(reply, changes, entries, reads.bytes)


def _run(keyspace: bytes, transaction: Transaction, now_ms: int, read: Read) -> tuple[Reply, list[Change]]:
    for watched, key, known in transaction.watches:
        if fingerprint(read(watched, key), now_ms) != known:
            return None, []
    replies, changed = evaluate_all(transaction.commands, lambda key: read(keyspace, key), now_ms)
    return replies, [_change(keyspace, key, stored) for key, stored in changed.items()]


def _change(keyspace: bytes, key: bytes, stored: Stored | None) -> Change:
    return Change(keyspace, key, None) if stored is None else Change(keyspace, key, *stored)


def reply_bytes(reply: Reply) -> int:
    """Return the bytes of the values in a reply."""
    if isinstance(reply, list):
        return sum(map(reply_bytes, reply))
    return len(reply) if isinstance(reply, bytes) else 0
