"""The clients of a storm: pipelines to any member's port, and every answer checked when it comes."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from e2e.demo.history import Outcome, Violation, number_of
from e2e.demo.judge import partition_of
from e2e.demo.resp import Command, Connection, Endpoint, Reply, ReplyFailure
from e2e.storm.books import Books, is_counter, packed, unpacked
from e2e.storm.report import NOT_CONNECTED

CLIENTS = 48
SLOTS = {"count": 3, "once": 1, "set": 2, "large": 1}
"""Keys of each client by kind."""
OF_100 = {"count": 50, "once": 18, "set": 26, "large": 6}
"""How often each kind is chosen."""
PIPELINE_COMMANDS_MAX = 5
READS_OF_100 = 35
OWN_READS_OF_100 = 30
THINK_SECONDS, READER_THINK_SECONDS = (0.0, 0.08), (0.2, 0.6)
AVOIDING = 4
"""Of so many clients one keeps away from the first member, one from the second, and so on: it goes on to
write when all that come there hang.
"""
CONNECT_SECONDS_MAX = 1.5
REPLY_SECONDS_MAX = 4.0
RETRY_SECONDS = 0.05
KEYSPACE = "default"
UNDER_WAY = "(under way)"
REFUSALS = frozenset({"TRYAGAIN", "CLUSTER_PASSIVE", "NO_SPACE"})
"""Answers that say that nothing was done; after any other error nobody knows."""


@dataclass
class Operation:
    """One command, and what became of it; times are those of the day. `floor` as `Books` gave it."""

    key: str
    word: str
    command: Command
    floor: int
    number: int = 0
    member: str = ""
    began: float = 0.0
    ended: float = 0.0
    answer: str = UNDER_WAY
    outcome: Outcome = Outcome.SENT

    @property
    def reads(self) -> bool:
        return self.word == "GET"

    def __str__(self) -> str:
        return f"{clock(self.began)} .. {clock(self.ended)}  {self.member:10} {self.word} -> {self.answer}"


def clock(moment: float) -> str:
    """A time of the day (UTC, as in the logs) with milliseconds; blanks for none."""
    if not moment:
        return " " * 12
    return time.strftime("%H:%M:%S", time.gmtime(moment)) + f".{int(moment * 1000) % 1000:03d}"


@dataclass
class Load:
    """What all clients share. `endpoints` is changed while they run; `broken` is told of each violation.

    `latest` has, by partition, the key of the write that was acknowledged last.
    """

    seed: int
    endpoints: Mapping[str, Endpoint]
    broken: Callable[[Violation], None]
    partitions: int
    books: Books = field(default_factory=Books.empty)
    history: dict[str, list[Operation]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    latest: dict[int, str] = field(default_factory=dict)
    stopping: bool = False

    async def run(self, members: Iterable[str]) -> None:
        """All clients, with readers at these members, until `stopping`."""
        clients = [Client(number, self) for number in range(CLIENTS)]
        readers = [
            Reader(member, partition, self) for member in members for partition in range(self.partitions)
        ]
        async with asyncio.TaskGroup() as group:
            for each in (*clients, *readers):
                group.create_task(each.run())


class Client:
    """One loop: a pipeline, its answers, a moment of rest. It alone writes its keys, it reads everybody's."""

    _think_seconds = THINK_SECONDS

    def __init__(self, number: int, load: Load) -> None:
        self._number, self._load, self._books = number, load, load.books
        self._random = random.Random(f"{load.seed}:{number}")
        self._connections: dict[str, Connection] = {}
        self._generations: Counter[str] = Counter()
        self._sequences: Counter[str] = Counter()
        self._again: list[Operation] = []

    async def run(self) -> None:
        """Until the load stops."""
        while not self._load.stopping:
            await asyncio.sleep(self._random.uniform(*self._think_seconds))
            member = self._member()
            connection = await self._connected(member)
            if connection is not None:
                await self._send(self._batch(), member, connection)
        for operation in self._again:
            self._end_increment(operation, Outcome.DOUBTFUL, None)
        for connection in self._connections.values():
            connection.close()

    # -- what is asked

    def _member(self) -> str:
        """Any but the one that it avoids. A connection that stands may lead to a process that nothing shows
        any more.
        """
        members = sorted({*self._load.endpoints, *self._connections})
        avoided = f"-{self._number % AVOIDING}"
        return self._random.choice([each for each in members if not each.endswith(avoided)] or members)

    def _batch(self) -> list[Operation]:
        """Up to `PIPELINE_COMMANDS_MAX` operations; what must be sent again is among the first."""
        batch, self._again = self._again, []
        taken = {each.key for each in batch}
        for _ in range(self._random.randint(1, PIPELINE_COMMANDS_MAX)):
            operation = self._read() if self._random.randrange(100) < READS_OF_100 else self._write(taken)
            if operation is not None:
                batch.append(operation)
        return batch

    def _read(self) -> Operation:
        known = self._books.keys()
        own = not known or self._random.randrange(100) < OWN_READS_OF_100
        return self._read_of(self._own_key() if own else self._random.choice(known))

    def _read_of(self, key: str) -> Operation:
        return Operation(key, "GET", (b"GET", key.encode()), self._books.floor(key))

    def _own_key(self) -> str:
        kind = self._random.choices(list(OF_100), list(OF_100.values()))[0]
        place = f"storm:{kind}:{self._number}:{self._random.randrange(SLOTS[kind])}"
        return f"{place}:{self._generations[place]}"

    def _write(self, taken: set[str]) -> Operation | None:
        """Only plain counters take several writes in one pipeline."""
        key = self._own_key()
        kind = key.split(":")[1]
        if kind == "count":
            return Operation(key, "INCR", (b"INCR", key.encode()), self._books.counters.send(key))
        if key in taken:
            return None
        taken.add(key)
        return self._once(key) if kind == "once" else self._set(key)

    def _once(self, key: str) -> Operation:
        self._sequences[key] += 1
        number = self._sequences[key]
        words = (b"STELE.ONCE", key.encode(), b"%d" % number, b"INCR", key.encode())
        floor = self._books.counters.send(key)
        return Operation(key, f"ONCE {number} INCR", words, floor, number)

    def _set(self, key: str) -> Operation:
        number = self._books.registers.send(key)
        value = packed(key, number)
        words = (b"SET", key.encode(), value)
        return Operation(key, f"SET {number} ({len(value)} bytes)", words, 0, number)

    # -- what becomes of it

    async def _send(self, batch: list[Operation], member: str, connection: Connection) -> None:
        replies: list[Reply] = []
        began = time.time()
        for each in batch:
            each.member, each.began = member, began
            self._load.history.setdefault(each.key, []).append(each)
        error = await self._ask(batch, member, connection, replies)
        for operation, reply in zip(batch, replies, strict=False):
            self._replied(operation, reply)
        for operation in batch[len(replies) :]:
            self._done(operation, Outcome.DOUBTFUL, None, f"({error})")
        if error:
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask(
        self, batch: list[Operation], member: str, connection: Connection, replies: list[Reply]
    ) -> str:
        """Why not all are answered; empty when all are."""
        try:
            await connection.ask([each.command for each in batch], REPLY_SECONDS_MAX, replies)
        except OSError as error:
            self._connections.pop(member).close()
            return f"{type(error).__name__} {error}".strip()
        return ""

    def _replied(self, operation: Operation, reply: Reply) -> None:
        if not isinstance(reply, ReplyFailure):
            self._done(operation, Outcome.ACKNOWLEDGED, reply, _shown(operation, reply))
        elif reply.code in REFUSALS:
            self._done(operation, Outcome.REFUSED, None, str(reply))
        else:
            self._done(operation, Outcome.DOUBTFUL, None, str(reply))

    def _done(self, operation: Operation, outcome: Outcome, reply: Reply, text: str) -> None:
        operation.ended, operation.outcome, operation.answer = time.time(), outcome, text
        word = operation.word.split(" ", 1)[0]
        self._load.counts[f"{word} {outcome.name.lower()}"] += 1
        if operation.reads:
            if outcome is Outcome.ACKNOWLEDGED:
                self._judge(self._books.judge(operation.key, operation.floor, reply))
        else:
            self._end_write(operation, word, outcome, reply)
        operation.command = ()  # The history is kept to the end, and need not hold large values.

    def _end_write(self, operation: Operation, word: str, outcome: Outcome, reply: Reply) -> None:
        if outcome is Outcome.ACKNOWLEDGED:
            self._load.latest[partition_of(operation.key.encode(), self._load.partitions)] = operation.key
        if not is_counter(operation.key):
            self._end_set(operation, outcome)
        elif word == "ONCE" and outcome is not Outcome.ACKNOWLEDGED:
            self._again.append(replace(operation, ended=0.0, answer=UNDER_WAY, outcome=Outcome.SENT))
        else:
            self._end_increment(operation, outcome, reply)

    def _end_increment(self, operation: Operation, outcome: Outcome, reply: Reply) -> None:
        self._judge(self._books.counters.end(operation.key, operation.floor, outcome, reply))

    def _end_set(self, operation: Operation, outcome: Outcome) -> None:
        self._books.registers.end(operation.key, operation.number, outcome)
        if outcome is Outcome.DOUBTFUL:
            self._generations[operation.key.rsplit(":", 1)[0]] += 1

    def _judge(self, violation: Violation | None) -> None:
        if violation is not None:
            self._load.broken(violation)

    async def _connected(self, member: str) -> Connection | None:
        connection = self._connections.get(member)
        if connection is not None and not connection.closed_by_server:
            return connection
        if connection is not None:
            self._connections.pop(member).close()
        if member not in self._load.endpoints:
            return None
        try:
            opened = await Connection.open(self._load.endpoints[member], KEYSPACE, CONNECT_SECONDS_MAX)
        except OSError:
            self._load.counts[NOT_CONNECTED] += 1
            await asyncio.sleep(RETRY_SECONDS)
            return None
        self._connections[member] = opened
        return opened


class Reader(Client):
    """Reads at one member what was acknowledged last in one partition, to anybody: the most telling key.

    There is one for each partition at each member, so that what hangs holds up no other. It keeps its
    connection for as long as that answers, whatever becomes of the member's pod and port meanwhile.
    """

    _think_seconds = READER_THINK_SECONDS

    def __init__(self, member: str, partition: int, load: Load) -> None:
        super().__init__(partition, load)
        self._at, self._partition = member, partition

    def _member(self) -> str:
        return self._at

    def _batch(self) -> list[Operation]:
        key = self._load.latest.get(self._partition)
        return [] if key is None else [self._read_of(key)]


def _shown(operation: Operation, reply: Reply) -> str:
    """An answer for people: the number of a register's value, not its bytes."""
    if not isinstance(reply, bytes) or is_counter(operation.key):
        return repr(reply)
    number = number_of(operation.key, unpacked(operation.key, reply) or b"")
    return f"number {number}" if number is not None else repr(reply[:80])
