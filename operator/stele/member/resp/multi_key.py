"""Splits requests into single-key commands by partition, and joins their replies."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from stele.core.kv.commands import ARITIES, Failure, Reply, Simple, has_arity, too_large, wrong_number
from stele.core.kv.dedup import ARITY, ONCE, WRONG_NUMBER
from stele.core.kv.keyslot import partition_in, slot_of
from stele.member import limits
from stele.member.resp import msetnx
from stele.member.resp.msetnx import MSETNX
from stele.wire.resp import Request

SEGMENT_COMMANDS_MAX = 1024
"""Commands of one connection that are planned together; a longer request runs in pieces."""

LATER = Failure("LATER", "the command has not run yet")
"""Reply of a command that did not run for lack of room."""

Combine = Callable[[Sequence[Reply]], Reply]


def _first_failure(replies: Sequence[Reply]) -> Failure | None:
    return next((reply for reply in replies if isinstance(reply, Failure)), None)


def _sum(replies: Sequence[Reply]) -> Reply:
    return _first_failure(replies) or sum(reply for reply in replies if isinstance(reply, int))


def _all(replies: Sequence[Reply]) -> Reply:
    return _first_failure(replies) or list(replies)


def _ok(replies: Sequence[Reply]) -> Reply:
    return _first_failure(replies) or Simple("OK")


def _each_key(name: bytes) -> Callable[[Request], list[Request]]:
    return lambda request: [[name, key] for key in request[1:]]


def _each_pair(request: Request) -> list[Request]:
    return [[b"SET", request[at], request[at + 1]] for at in range(1, len(request), 2)]


# Name -> how a multi-key request is split into single-key commands, and how replies are joined.
MANY_KEYS: dict[bytes, tuple[Callable[[Request], list[Request]], Combine]] = {
    b"DEL": (_each_key(b"DEL"), _sum),
    b"UNLINK": (_each_key(b"UNLINK"), _sum),
    b"EXISTS": (_each_key(b"EXISTS"), _sum),
    b"TOUCH": (_each_key(b"TOUCH"), _sum),
    b"MGET": (_each_key(b"GET"), _all),
    b"MSET": (_each_pair, _ok),
}


def first_room(groups: int) -> int:
    """Return the room for replies of each partition when all are requested at once."""
    return min(limits.REPLY_BYTES, limits.FIRST_REPLIES_BYTES // max(1, groups))


def pieces(name: bytes, request: Request) -> Iterator[Request]:
    """Split a multi-key request with a valid number of keys into requests of limited size."""
    step = 2 if name == b"MSET" else 1
    if name not in MANY_KEYS or (len(request) - 1) % step:
        yield request
        return
    size = SEGMENT_COMMANDS_MAX * step
    for begin in range(1, len(request), size):
        yield [name, *request[begin : begin + size]]


def join(name: bytes, replies: Sequence[Reply]) -> Reply:
    """Join the replies of a request's `pieces`."""
    if name not in MANY_KEYS:
        return replies[0]
    if name == b"MGET":
        return _first_failure(replies) or list(chain(*(each for each in replies if isinstance(each, list))))
    return MANY_KEYS[name][1](replies)


def is_keyed(name: bytes) -> bool:
    """Return whether the (upper-case) command works on keys, and so goes to the store."""
    return name in ARITIES or name in MANY_KEYS or name in (ONCE, MSETNX)


def keys_of(name: bytes, request: Request) -> Request:
    """Return the keys of a request with its upper-case name; sharded channels have slots too."""
    if name in MANY_KEYS or name == MSETNX:
        return request[1 :: 2 if name in (b"MSET", MSETNX) else 1]
    if name in ARITIES:
        return request[1:2]
    if name in (b"WATCH", b"SSUBSCRIBE", b"SUNSUBSCRIBE"):
        return request[1:]
    if name == b"SPUBLISH":
        return request[1:2]
    if name == b"MEMORY":
        return request[2:3] if request[1].upper() == b"USAGE" else []
    return request[4:5] if name == ONCE else []


@dataclass(slots=True)
class Segment:
    """Requests that may run together, and which replies belong to which request.

    `group` has the partitions of the keyspace, `groups` maps one of them to the indexes of its commands in
    `commands`. Commands of one partition run in order, those of different partitions concurrently.
    """

    group: range
    keyspace: bytes
    commands: list[Request] = field(default_factory=list)
    groups: dict[int, list[int]] = field(default_factory=dict)
    answers: list[tuple[Combine, int, int] | int | Failure] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.answers)

    def add(self, name: bytes, request: Request) -> None:
        """Add a keyed request with its upper-case name."""
        many = MANY_KEYS.get(name)
        if many is not None:
            self._add_many(name, request, many)
            return
        if name == ONCE:
            self._add_once(request)
            return
        if name == MSETNX:
            self._add_msetnx(request)
            return
        if not has_arity(ARITIES[name], request):
            self.answers.append(wrong_number(name))
            return
        self._add_one(request, request[1])

    def _add_one(self, command: Request, key: bytes) -> None:
        self.answers.append(too_large(command) or self.place(command, key))

    def _add_once(self, request: Request) -> None:
        """Add STELE.ONCE; the owner checks the rest, as it also gets requests of other members."""
        if len(request) < -ARITY:
            self.answers.append(WRONG_NUMBER)
        else:
            self._add_one([ONCE, *request[1:]], request[4])

    def _add_msetnx(self, request: Request) -> None:
        command = msetnx.transaction_of(request, self.keyspace, self.partition)
        if isinstance(command, Failure):
            self.answers.append(command)
        else:
            at = self.place(command, command[1])
            self.answers.append((msetnx.joined, at, at + 1))

    def _add_many(
        self, name: bytes, request: Request, many: tuple[Callable[[Request], list[Request]], Combine]
    ) -> None:
        split, combine = many
        if len(request) < 2 or (name == b"MSET" and len(request) % 2 == 0):
            self.answers.append(wrong_number(name))
            return
        commands = split(request)
        refused = next(filter(None, map(too_large, commands)), None)
        if refused is not None:
            self.answers.append(refused)
            return
        begin = len(self.commands)
        for command in commands:
            self.place(command, command[1])
        self.answers.append((combine, begin, len(self.commands)))

    def place(self, command: Request, key: bytes) -> int:
        """Add a command of the partition of a key, and return its index."""
        index = len(self.commands)
        self.commands.append(command)
        self.groups.setdefault(self.partition(key), []).append(index)
        return index

    def partition(self, key: bytes) -> int:
        """Return the partition of a key."""
        return partition_in(self.group, slot_of(key))

    def calls(self, places: list[int]) -> list[list[int]]:
        """Split the indexes of one group into calls of limited size, to be made one after the other."""
        if len(places) == 1:
            return [places]
        calls: list[list[int]] = []
        size = limits.REQUEST_BYTES
        for place in places:
            command_bytes = sum(map(len, self.commands[place]))
            if size + command_bytes > limits.REQUEST_BYTES or len(calls[-1]) >= limits.REQUEST_COMMANDS_MAX:
                calls.append([])
                size = 0
            calls[-1].append(place)
            size += command_bytes
        return calls

    def key(self, place: int) -> bytes:
        """Return the key that determines the command's partition."""
        command = self.commands[place]
        return command[4] if command[0] == ONCE else command[1]

    def places(self, number: int) -> range:
        """Return the indexes of one request's commands."""
        answer = self.answers[number]
        if isinstance(answer, Failure):
            return range(0)
        return range(answer, answer + 1) if isinstance(answer, int) else range(answer[1], answer[2])

    def reply(self, number: int, results: Sequence[Reply]) -> Reply:
        """Return the reply to one request, given one result per command."""
        answer = self.answers[number]
        if isinstance(answer, int):
            return results[answer]
        if isinstance(answer, Failure):
            return answer
        combine, begin, end = answer
        return combine(results[begin:end])
