"""`STELE.ONCE client sequence command key [arg ...]`: a write that is applied once, however often sent.

A partition remembers, per client, the last sequence and its reply. The owner decides who is remembered and
who is forgotten, and logs both with the write itself: replicas, copies and a replayed log come to the same
memory without a clock. Who was used within KEEP_SECONDS is never forgotten; when there is no room, what is
new is refused.
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
"""The longest reply that is remembered; a command with a longer one is refused before it is logged."""
CLIENTS_MAX = 1024
"""Clients that one partition remembers."""
MEMORY_BYTES_MAX = 4 * 1024 * 1024
"""What one partition remembers: ids and replies."""
KEEP_SECONDS = 600
"""A retry that comes within this time, by the clock of the owner, is never applied again."""


def check_once(args: Sequence[bytes]) -> Failure | None:
    """What is wrong with the request, None when it can run. It works on one key and may write it."""
    if len(args) < -ARITY:
        return WRONG_NUMBER
    client, sequence, name = args[1], args[2], args[3]
    if not 1 <= len(client) <= CLIENT_ID_BYTES_MAX:
        return Failure("ERR", f"client id of {len(client)} bytes: 1 to {CLIENT_ID_BYTES_MAX} are expected")
    try:
        number = parse_integer(sequence)
    except ValueError:
        number = 0
    if not 1 <= number <= SEQUENCE_MAX:
        return Failure(
            "ERR", f"sequence is '{text_of(sequence)}', a number from 1 to {SEQUENCE_MAX} is expected"
        )
    if not is_write(name):
        return Failure(
            "ERR",
            f"'{text_of(name)}' cannot run once: {ONCE.decode()} takes a write of one key (SET, INCR, ...)",
        )
    arity = ARITIES[name.upper()]
    found = len(args) - 3
    if found != arity if arity > 0 else found < -arity:
        return wrong_number(name)
    return None


def stale(client: bytes, sequence: int, last: int) -> Failure:
    """The client went on since: whether this sequence ran is not known any more."""
    return Failure(
        "STALE_SEQUENCE",
        f"sequence {sequence} of client '{text_of(client)}' is over: this partition ran {last} since",
    )


def too_long(reply_bytes: int) -> Failure:
    return Failure(
        "ERR",
        f"reply of {reply_bytes} bytes: at most {REPLY_BYTES_MAX} can be remembered; nothing was done",
    )


NO_ROOM = Failure(
    "TRYAGAIN",
    f"this partition remembers {CLIENTS_MAX} clients, or {MEMORY_BYTES_MAX} bytes of their replies, all of"
    f" the last {KEEP_SECONDS} seconds: nothing was done; use fewer client ids, or wait",
)


class RememberedClients:
    """The clients that the owner of a partition remembers: when used (Unix milliseconds), bytes; least recent
    first.
    """

    def __init__(self, found: Sequence[tuple[bytes, int, int]]) -> None:
        """`found`: (client, used_ms, bytes), in any order."""
        ordered = sorted(found, key=lambda entry: (entry[1], entry[0]))
        self._known = {client: (used_ms, size) for client, used_ms, size in ordered}
        self.bytes = sum(size for _, size in self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, client: bytes, used_ms: int, size: int) -> list[bytes] | None:
        """Note that the client was used. Who is forgotten for it; None, and no change: there is no room."""
        others = len(self._known) - (client in self._known)
        total = self.bytes - self._known.get(client, (0, 0))[1] + size
        gone: list[bytes] = []
        for other, (other_ms, other_size) in self._known.items():
            if others - len(gone) < CLIENTS_MAX and total <= MEMORY_BYTES_MAX:
                break
            if other == client:
                continue
            if used_ms - other_ms < KEEP_SECONDS * 1000:
                return None
            gone.append(other)
            total -= other_size
        for known in (client, *gone):
            self._known.pop(known, None)
        self._known[client] = (used_ms, size)
        self.bytes = total
        return gone
