"""From requests to single-key commands by partition, and from their replies back to one per request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stele.core.commands import ARITIES, Failure, Reply, Simple, wrong_number
from stele.core.once import ARITY, ONCE, WRONG_NUMBER
from stele.core.routing import partition_of
from stele.wire.resp import Request

EXECUTE_COMMANDS_MAX = 256
EXECUTE_BYTES_MAX = 4 * 1024 * 1024

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


# Name -> how a request of many keys becomes single-key commands, and how their replies become one.
MANY_KEYS: dict[bytes, tuple[Callable[[Request], list[Request]], Combine]] = {
    b"DEL": (_each_key(b"DEL"), _sum),
    b"UNLINK": (_each_key(b"UNLINK"), _sum),
    b"EXISTS": (_each_key(b"EXISTS"), _sum),
    b"TOUCH": (_each_key(b"TOUCH"), _sum),
    b"MGET": (_each_key(b"GET"), _all),
    b"MSET": (_each_pair, _ok),
}


def is_keyed(name: bytes) -> bool:
    """Whether the (upper-case) command works on keys, so that it goes to the store."""
    return name in ARITIES or name in MANY_KEYS or name == ONCE


@dataclass(slots=True)
class Segment:
    """Requests that may run together: their commands, and which of the replies belong to which request.

    `groups` maps a partition to the places of its commands in `commands`. Commands on one partition keep
    their order; those on different partitions run at the same time.
    """

    partitions: int
    commands: list[Request] = field(default_factory=list)
    groups: dict[int, list[int]] = field(default_factory=dict)
    _answers: list[tuple[Combine, int, int] | int | Failure] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._answers)

    def refuse(self, failure: Failure) -> None:
        """The next request of this segment is answered without running."""
        self._answers.append(failure)

    def add(self, name: bytes, request: Request) -> None:
        """Add a keyed request; `name` is its name in upper case."""
        many = MANY_KEYS.get(name)
        if many is not None:
            self._add_many(name, request, many)
            return
        if name == ONCE:
            self._add_once(request)
            return
        arity = ARITIES[name]
        if len(request) != arity if arity > 0 else len(request) < -arity:
            self._answers.append(wrong_number(name))
            return
        self._answers.append(self._place(request, request[1]))

    def _add_once(self, request: Request) -> None:
        """The owner checks the rest, because it answers other members too."""
        if len(request) < -ARITY:
            self._answers.append(WRONG_NUMBER)
        else:
            self._answers.append(self._place([ONCE, *request[1:]], request[4]))

    def _add_many(
        self, name: bytes, request: Request, many: tuple[Callable[[Request], list[Request]], Combine]
    ) -> None:
        split, combine = many
        if len(request) < 2 or (name == b"MSET" and len(request) % 2 == 0):
            self._answers.append(wrong_number(name))
            return
        begin = len(self.commands)
        for command in split(request):
            self._place(command, command[1])
        self._answers.append((combine, begin, len(self.commands)))

    def _place(self, command: Request, key: bytes) -> int:
        place = len(self.commands)
        self.commands.append(command)
        self.groups.setdefault(partition_of(key, self.partitions), []).append(place)
        return place

    def calls(self, places: list[int]) -> list[list[int]]:
        """The places of one group, cut into calls of a limited size that are made one after the other."""
        if len(places) == 1:
            return [places]
        calls: list[list[int]] = []
        size = EXECUTE_BYTES_MAX
        for place in places:
            more = sum(map(len, self.commands[place]))
            if size + more > EXECUTE_BYTES_MAX or len(calls[-1]) >= EXECUTE_COMMANDS_MAX:
                calls.append([])
                size = 0
            calls[-1].append(place)
            size += more
        return calls

    def replies(self, results: Sequence[Reply]) -> list[Reply]:
        """One reply per request, in order, from one result per command."""
        return [self._answer(answer, results) for answer in self._answers]

    @staticmethod
    def _answer(answer: tuple[Combine, int, int] | int | Failure, results: Sequence[Reply]) -> Reply:
        if isinstance(answer, int):
            return results[answer]
        if isinstance(answer, Failure):
            return answer
        combine, begin, end = answer
        return combine(results[begin:end])
