"""`STELE.ONCE client sequence command key [arg ...]`: apply a write exactly once, however often it is sent.

A partition remembers the last sequence and reply of each client. The owner decides which clients are
remembered and which are forgotten, and logs both decisions with the write: replicas, copies and a replayed
log reach the same state without a clock. A client that was active within KEEP_SECONDS is never forgotten;
when the memory is full of those, new clients are refused.
"""

from collections.abc import Sequence

from stele.core.kv.commands import ARITIES, Failure, is_write, parse_integer, text_of, wrong_number

ONCE = b"STELE.ONCE"
ARITY = -5
WRONG_NUMBER = Failure(
    "ERR",
    "wrong number of arguments for 'stele.once' command: client, sequence, command and key are expected",
)
CLIENT_ID_BYTES_MAX = 64
SEQUENCE_MAX = 2**63 - 1

REPLY_BYTES_MAX = 16 * 1024
"""Longest reply that is remembered; a command with a longer reply is refused before it is logged."""
CLIENTS_MAX = 1024
"""Most clients that one partition remembers."""
MEMORY_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes (ids and replies) that one partition remembers."""
KEEP_SECONDS = 600
"""A retry within this time, by the owner's clock, is never applied a second time."""


def check_once(args: Sequence[bytes]) -> Failure | None:
    """Return what is wrong with the request, None when it is valid: a write of one key."""
    if len(args) < -ARITY:
        return WRONG_NUMBER
    client, sequence, name = args[1], args[2], args[3]
    if not 1 <= len(client) <= CLIENT_ID_BYTES_MAX:
        return Failure("ERR", f"client id of {len(client)} bytes; expected 1 to {CLIENT_ID_BYTES_MAX}")
    try:
        number = parse_integer(sequence)
    except ValueError:
        number = 0
    if not 1 <= number <= SEQUENCE_MAX:
        return Failure(
            "ERR", f"sequence is '{text_of(sequence)}'; expected a number from 1 to {SEQUENCE_MAX}"
        )
    if not is_write(name):
        return Failure(
            "ERR",
            f"'{text_of(name)}' cannot run once: {ONCE.decode()} expects a write of one key (SET, INCR, ...)",
        )
    arity = ARITIES[name.upper()]
    count = len(args) - 3
    if count != arity if arity > 0 else count < -arity:
        return wrong_number(name)
    return None


def stale(client: bytes, sequence: int, last: int) -> Failure:
    """Return the error for a sequence that the client has passed: whether it ran is no longer known."""
    return Failure(
        "STALE_SEQUENCE",
        f"sequence {sequence} of client '{text_of(client)}' is outdated: this partition has run {last} since",
    )


def too_long(reply_bytes: int) -> Failure:
    return Failure(
        "ERR",
        f"reply of {reply_bytes} bytes exceeds the limit of {REPLY_BYTES_MAX}; nothing was done",
    )


NO_ROOM = Failure(
    "TRYAGAIN",
    f"this partition remembers {CLIENTS_MAX} clients, or {MEMORY_BYTES_MAX} bytes of replies, all from"
    f" the last {KEEP_SECONDS} seconds; nothing was done: use fewer client ids or wait",
)


class RememberedClients:
    """The clients that a partition remembers, least recently used first, with time (Unix ms) and bytes."""

    def __init__(self, entries: Sequence[tuple[bytes, int, int]]) -> None:
        """Load entries of (client, used_ms, bytes), in any order."""
        ordered = sorted(entries, key=lambda entry: (entry[1], entry[0]))
        self._known = {client: (used_ms, size) for client, used_ms, size in ordered}
        self.bytes = sum(size for _, size in self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, client: bytes, used_ms: int, size: int) -> list[bytes] | None:
        """Record a use of the client.

        Return the clients to forget for it; None, without a change, when full.
        """
        others = len(self._known) - (client in self._known)
        total = self.bytes - self._known.get(client, (0, 0))[1] + size
        forgotten: list[bytes] = []
        for other, (other_ms, other_size) in self._known.items():
            if others - len(forgotten) < CLIENTS_MAX and total <= MEMORY_BYTES_MAX:
                break
            if other == client:
                continue
            if used_ms - other_ms < KEEP_SECONDS * 1000:
                return None
            forgotten.append(other)
            total -= other_size
        for stale in (client, *forgotten):
            self._known.pop(stale, None)
        self._known[client] = (used_ms, size)
        self.bytes = total
        return forgotten
