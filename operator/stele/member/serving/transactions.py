"""Runs `MULTI ... EXEC` at the owner: all changes are one operation of the log."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from stele.core.kv.commands import Failure, Reply, Stored
from stele.core.kv.transaction import READ_BYTES_MAX, READS_TOO_MUCH, evaluate_all, fingerprint
from stele.errors import BadInput
from stele.member.serving.dedup import Attempt
from stele.wire.storage.log_record import Change
from stele.wire.transaction import Transaction, decode_transaction

Read = Callable[[bytes, bytes], Stored | None]
"""Returns the value of (keyspace, key) after all logged operations; the reply then waits for their commit."""


class Ran(NamedTuple):
    """The reply, the changes to log as one operation first, and the work: `entries` in all, and the `bytes`
    that count as those of the reply.
    """

    reply: Reply
    changes: list[Change]
    entries: int
    bytes: int


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


def run_transaction(attempt: Attempt, read: Read) -> Ran:
    """Run a transaction. The reply is None, without a change, when a watched key has changed."""
    try:
        transaction = decode_transaction(attempt.args[-1])
    except BadInput as error:
        return Ran(Failure("ERR", str(error)), [], 1, 0)
    return run_commands(attempt, transaction, read)


def run_commands(attempt: Attempt, transaction: Transaction, read: Read) -> Ran:
    """Run a decoded transaction, in the same way."""
    reads, entries = _Reads(read), len(transaction.watches) + len(transaction.commands)
    try:
        reply, changes = _run(attempt, transaction, reads)
    except _TooMuchError:
        reply, changes = READS_TOO_MUCH, []
    if changes and attempt.refusal is not None:
        reply, changes = attempt.refusal, []
    return Ran(reply, changes, entries, _reply_bytes(reply))


def _run(attempt: Attempt, transaction: Transaction, read: Read) -> tuple[Reply, list[Change]]:
    keyspace, now_ms = attempt.keyspace, attempt.now_ms
    for watched, key, known in transaction.watches:
        if fingerprint(read(watched, key), now_ms) != known:
            return None, []
    replies, changed = evaluate_all(
        transaction.commands, lambda key: read(keyspace, key), now_ms, attempt.ttl_ms, attempt.noted
    )
    if attempt.full is not None:
        before = {key: read(keyspace, key) for key in changed}
        if any(after > now for now, after in zip(_size(before), _size(changed), strict=True)):
            return attempt.full, []
    return replies, [_change(keyspace, key, stored) for key, stored in changed.items()]


def _size(entries: Mapping[bytes, Stored | None]) -> tuple[int, int]:
    """Return the number of those that are there, and the bytes of their keys and values."""
    there = [len(key) + len(stored[0]) for key, stored in entries.items() if stored is not None]
    return len(there), sum(there)


def _change(keyspace: bytes, key: bytes, stored: Stored | None) -> Change:
    return Change(keyspace, key, None) if stored is None else Change(keyspace, key, *stored)


def _reply_bytes(reply: Reply) -> int:
    """Return the bytes of the values in a reply."""
    if isinstance(reply, list):
        return sum(map(_reply_bytes, reply))
    return len(reply) if isinstance(reply, bytes) else 0
