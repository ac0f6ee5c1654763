"""MULTI, EXEC, DISCARD, WATCH and UNWATCH of one connection (Redis documentation, "Transactions").

Commands are queued here, and sent to the owner as one when EXEC comes. When the keys are in several
partitions, each owner runs its part, and all or none of the parts are done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from stele.core.kv.acl import User
from stele.core.kv.commands import (
    ARITIES,
    Failure,
    Reply,
    Simple,
    has_arity,
    text_of,
    too_large,
    wrong_number,
)
from stele.core.kv.transaction import (
    EXEC,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_COMMANDS_MAX,
    WATCHED_BYTES_MAX,
    WATCHED_KEYS_MAX,
    Watch,
)
from stele.member.resp.multi_key import MANY_KEYS, Combine, keys_of
from stele.member.resp.pubsub_commands import PUBSUB_COMMANDS
from stele.ports.transactions import PartitionPart
from stele.wire.resp import ARGUMENT_BYTES, Request
from stele.wire.transaction import encode_transaction

TRANSACTION_ARITIES = {b"MULTI": 1, b"EXEC": 1, b"DISCARD": 1, b"WATCH": -2, b"UNWATCH": 1}
OK, QUEUED = Simple("OK"), Simple("QUEUED")
NOT_QUEUED = frozenset({*TRANSACTION_ARITIES, b"QUIT", b"RESET"})
"""Commands that run at once between MULTI and EXEC."""
_LOCAL_ARITIES = {
    b"PING": -1,
    b"ECHO": 2,
    b"WAIT": 3,
    **{name: arity for name, (arity, _) in PUBSUB_COMMANDS.items()},
}
"""Commands that can be queued and run at the client's member, once the owner has run the others."""
_QUEUED_ARITIES = {**ARITIES, **_LOCAL_ARITIES}
_WATCH_BYTES = 256
"""Python's overhead of a watched key."""
OTHER_PARTITIONS = Failure(
    "CROSSSLOT",
    "Keys in request don't hash to the same slot: a transaction needs keys of one partition, for example with"
    " one {hashtag}, until the cluster is upgraded",
)
ABORTED = Failure("EXECABORT", "Transaction discarded because of previous errors.")


RIGHTS_CHANGED = Failure(
    "NOPERM", "ACLs rules changed between the moment the transaction was accumulated and the EXEC call."
)


def exec_failure(failure: Failure) -> Failure:
    """Return the error of an EXEC that was not run, for this reason."""
    code = "" if failure.code == "ERR" else f"{failure.code} "
    return Failure("EXECABORT", f"Transaction discarded because of: {code}{failure.text}")


@dataclass(slots=True)
class Queue:
    """The commands between MULTI and EXEC. `joins` has how replies of each request are joined, and how many.

    `local` has the requests that run at this member, by their place; `failed`: a request was refused, so EXEC
    discards all. `guard` is what they were checked with.
    """

    guard: User | None = None
    commands: list[Request] = field(default_factory=list)
    joins: list[tuple[Combine | None, int]] = field(default_factory=list)
    local: dict[int, Request] = field(default_factory=dict)
    queued_bytes: int = 0
    arguments: int = 0
    failed: bool = False

    def add(self, name: bytes, request: Request) -> Reply:
        """Queue a request with its upper-case name. Returns QUEUED, or why it was refused."""
        refused = self._refusal(name, request)
        if refused is not None:
            self.failed = True
            return refused
        if name in _LOCAL_ARITIES:
            self.local[len(self.joins)] = request
        commands, combine = _split(name, request)
        self.commands += commands
        self.joins.append((combine, len(commands)))
        return QUEUED

    def _refusal(self, name: bytes, request: Request) -> Failure | None:
        if name in MANY_KEYS:
            if len(request) < (3 if name == b"MSET" else 2):
                return wrong_number(name)
        elif name not in _QUEUED_ARITIES:
            text = f"'{text_of(request[0])}' cannot be used in a transaction"
            return Failure("ERR", f"{text}: commands of one key, MGET, MSET, DEL, PUBLISH and the like can")
        elif not has_arity(_QUEUED_ARITIES[name], request):
            return wrong_number(name)
        elif (refused := too_large(request)) is not None:
            return refused
        return self._full(request, len(keys_of(name, request)))

    def _full(self, request: Request, commands: int) -> Failure | None:
        """Count the request, or return which limit it exceeds."""
        self.queued_bytes += sum(map(len, request))
        self.arguments += len(request)
        if max(len(self.commands) + commands, len(self.joins) + 1) > TRANSACTION_COMMANDS_MAX:
            text = f"transaction of more than {TRANSACTION_COMMANDS_MAX} commands, or keys; split it"
            return Failure("ERR", text)
        if self.queued_bytes > TRANSACTION_BYTES_MAX:
            text = f"transaction of {self.queued_bytes} bytes exceeds the limit of {TRANSACTION_BYTES_MAX}"
            return Failure("ERR", f"{text}; split it")
        return None

    @property
    def held_bytes(self) -> int:
        """Memory that the queue takes, about."""
        return self.queued_bytes + ARGUMENT_BYTES * self.arguments

    def joined(self, replies: Sequence[Reply]) -> list[Reply]:
        """Return one reply for each queued request; that of a local one is None yet."""
        rest = iter(replies)
        return [_join(combine, list(islice(rest, number))) for combine, number in self.joins]


def _split(name: bytes, request: Request) -> tuple[list[Request], Combine | None]:
    """Return the single-key commands of a request, and how their replies are joined."""
    if name in _LOCAL_ARITIES:
        return [], lambda replies: None
    if name not in MANY_KEYS:
        return [request], None
    if name == b"MSET" and len(request) % 2 == 0:
        return [], lambda replies: wrong_number(name)  # Redis finds this out when it runs.
    split, combine = MANY_KEYS[name]
    return split(request), combine


def _join(combine: Combine | None, replies: list[Reply]) -> Reply:
    return replies[0] if combine is None else combine(replies)


@dataclass(slots=True)
class Transaction:
    """What a connection has queued and watches. `touched`: a watched key was seen with another value."""

    queue: Queue | None = None
    watches: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    watched_bytes: int = 0
    touched: bool = False

    def __bool__(self) -> bool:
        return self.queue is not None or bool(self.watches)

    @property
    def held_bytes(self) -> int:
        """Memory that it takes, about."""
        held = self.watched_bytes + _WATCH_BYTES * len(self.watches)
        return held if self.queue is None else held + self.queue.held_bytes

    def reset(self) -> None:
        """Forget all."""
        self.queue, self.watches, self.watched_bytes, self.touched = None, {}, 0, False

    def refused(self) -> None:
        """Note that a request between MULTI and EXEC was refused: EXEC discards all."""
        if self.queue is not None:
            self.queue.failed = True

    def misused(self, name: bytes) -> Failure:
        """Return the error for a wrong number of arguments, which ends a transaction when it is EXEC's."""
        failure = wrong_number(name)
        self.refused()
        if name != b"EXEC":
            return failure
        self.reset()
        return exec_failure(failure)

    def change(self, name: bytes, guard: User | None) -> Reply:
        """Run MULTI, DISCARD or UNWATCH; EXEC comes here without MULTI. `guard` is that of the session."""
        text = name.decode()
        if name == b"MULTI":
            if self.queue is not None:
                return Failure("ERR", "MULTI calls can not be nested")
            self.queue = Queue(guard)
        elif name != b"UNWATCH" and self.queue is None:
            return Failure("ERR", f"{text} without MULTI")
        elif name == b"UNWATCH" and self.queue is not None:
            self.queue.failed = True
            return Failure("ERR", "UNWATCH inside MULTI is not allowed")
        else:
            self.reset()
        return OK

    def check_watch(self, keys: Sequence[bytes]) -> Failure | None:
        """Return why these keys cannot be watched, None when they can."""
        if self.queue is not None:
            return Failure("ERR", "WATCH inside MULTI is not allowed")
        return self._check_room(keys)

    def watch(self, keyspace: bytes, key: bytes, fingerprint: bytes) -> None:
        """Note a fingerprint; of a key that is watched already, the first one stays."""
        if (keyspace, key) not in self.watches:
            self.watches[keyspace, key] = fingerprint
            self.watched_bytes += len(key)

    def see(self, keyspace: bytes, key: bytes, fingerprint: Reply) -> None:
        """Compare a watched key with what a later request found."""
        self.touched |= self.watches.get((keyspace, key), fingerprint) != fingerprint

    def touch(self) -> None:
        """Note that a watched key may have changed."""
        self.touched = True

    def _check_room(self, keys: Sequence[bytes]) -> Failure | None:
        """Return which limit further watched keys would exceed."""
        if len(self.watches) + len(keys) > WATCHED_KEYS_MAX:
            return Failure("ERR", f"more than {WATCHED_KEYS_MAX} watched keys; EXEC or UNWATCH first")
        if self.watched_bytes + sum(map(len, keys)) > WATCHED_BYTES_MAX:
            text = f"watched keys of more than {WATCHED_BYTES_MAX} bytes; EXEC or UNWATCH first"
            return Failure("ERR", text)
        return None

    def parts(
        self, queue: Queue, keyspace: bytes, place: Callable[[bytes, bytes], int]
    ) -> tuple[dict[int, PartitionPart], list[int]]:
        """Return the part of each partition, and the partition of each command, which is of `keyspace`.

        `place` maps a key of a keyspace to its partition.
        """
        parts: dict[int, PartitionPart] = {}
        for (watched, key), value in self.watches.items():
            part = parts.setdefault(place(watched, key), PartitionPart([], []))
            part.watches.append(Watch(watched, key, value))
        places = [place(keyspace, each[1]) for each in queue.commands]
        for each, partition in zip(queue.commands, places, strict=True):
            parts.setdefault(partition, PartitionPart([], [])).commands.append(list(each))
        return parts, places

    def keys(self, queue: Queue, keyspace: bytes) -> list[tuple[bytes, bytes]]:
        """Return keyspace and key of what is used or watched; the commands are of `keyspace`."""
        return [*((keyspace, each[1]) for each in queue.commands), *self.watches]

    def command(self, queue: Queue, key: bytes) -> Request:
        """Return the command for the owner of all keys; `key` is one of them."""
        watches = [Watch(keyspace, key, value) for (keyspace, key), value in self.watches.items()]
        return [EXEC, key, encode_transaction(watches, [list(each) for each in queue.commands])]
