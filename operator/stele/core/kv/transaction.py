"""`MULTI ... EXEC` on keys of one partition, as a pure function of the stored values and the time.

The owner evaluates all commands at once and logs their changes as one operation, so a crash or a promotion
keeps all of them or none. WATCH keeps no state at the owner: a client's member remembers a fingerprint of the
value, EXEC brings it along, and the owner compares. A watch thus outlives moves, promotions and restarts of
the owner (Redis documentation, "Transactions").
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from stele.core.kv.commands import (
    REPLY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Delete,
    Failure,
    Put,
    Reply,
    Stored,
    evaluate,
)
from stele.core.kv.notifications import KeyEvents, events_of

EXEC = b"STELE.EXEC"
"""Name under which a transaction travels to the owner, with a key of its partition; not for clients."""

FINGERPRINT = b"STELE.FINGERPRINT"
"""Name under which a member asks the owner for the fingerprint of a key; not for clients."""

TRANSACTION_COMMANDS_MAX = 1000
"""Most commands of one transaction, each key of `MSET`, `DEL` and the like counted."""
TRANSACTION_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of all commands of one transaction."""
READ_BYTES_MAX = 2 * VALUE_BYTES_MAX
"""Most bytes of stored values that one transaction looks at, those of watched keys included."""
WRITTEN_BYTES_MAX = VALUE_BYTES_MAX
"""Most bytes of values that one transaction writes; `APPEND` may write more than its arguments have."""
WATCHED_KEYS_MAX = 1000
"""Most keys that one connection watches."""
WATCHED_BYTES_MAX = 1024 * 1024
"""Most bytes of all keys that one connection watches."""

_FINGERPRINT_BYTES = 16
MISSING = b""
"""The fingerprint of a key that has no value."""


class Watch(NamedTuple):
    """A key, and the fingerprint that it must still have when the transaction runs."""

    keyspace: bytes
    key: bytes
    fingerprint: bytes


def fingerprint(stored: Stored | None, now_ms: int) -> bytes:
    """Return the fingerprint of what is stored, its expiry included; MISSING for an expired value too.

    The hash is cryptographic: no client can write a value that passes for another one.
    """
    if stored is None or 0 < stored[1] <= now_ms:
        return MISSING
    value, expire_at_ms = stored
    expiry = expire_at_ms.to_bytes(8, "big")
    return blake2b(value, digest_size=_FINGERPRINT_BYTES, person=expiry).digest()


_TOO_MUCH = Failure(
    "EXECABORT", f"transaction writes more than {WRITTEN_BYTES_MAX} bytes; nothing was done: split it"
)
READS_TOO_MUCH = Failure(
    "EXECABORT",
    f"transaction looks at values of more than {READ_BYTES_MAX} bytes; nothing was done: split it",
)


def too_long(size: int) -> Failure:
    """Return the error for a transaction whose replies are too long together."""
    text = f"transaction's replies of {size} bytes exceed the limit of {REPLY_BYTES_MAX}; nothing was done"
    return Failure("EXECABORT", f"{text}: read fewer keys")


def evaluate_all(
    commands: Sequence[Sequence[bytes]],
    read: Callable[[bytes], Stored | None],
    now_ms: int,
    ttl_ms: int = 0,
    noted: list[KeyEvents] | None = None,
) -> tuple[list[Reply] | Failure, dict[bytes, Stored | None]]:
    """Return the reply to each single-key command, and the new value of each key that changes.

    Each command sees the effects of those before it. One that fails has its error as reply, and the others
    have their effect, as in Redis. A transaction that writes too much fails as a whole and changes nothing.
    `read` returns the value of a key before the transaction; `ttl_ms` is as in `evaluate`. The events of each
    command are appended to `noted`.
    """
    written = 0
    replies: list[Reply] = []
    changed: dict[bytes, Stored | None] = {}
    for args in commands:
        key = args[1]
        made = evaluate(args, changed[key] if key in changed else read(key), now_ms, ttl_ms)
        replies.append(made.reply)
        if noted is not None and made.op is not None:
            noted.append((key, events_of(args, made.op)))
        if isinstance(made.op, Put):
            changed[key] = made.op.value, made.op.expire_at_ms
            written += len(made.op.value)
            if written > WRITTEN_BYTES_MAX:
                return _TOO_MUCH, {}
        elif isinstance(made.op, Delete):
            changed[key] = None
    return replies, changed
