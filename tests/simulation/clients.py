"""Clients: each does one operation after the other on a few keys, through any member, and writes down all."""

import asyncio
from collections.abc import Callable
from functools import partial

from stele.core.kv.commands import Failure, Reply, Simple
from stele.core.kv.dedup import ONCE
from stele.core.kv.keyslot import partition_of
from stele.errors import SteleError, Uncertain
from stele.ports.key_value_service import KeyValueService
from tests.fakes.loop import Clock, Handle, ProcessLoop
from tests.fakes.network import Network
from tests.simulation.history import Histories, Operation
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.profile import Profile
from tests.simulation.trace import Trace

KEYSPACE = b"default"
PATIENCE_SECONDS = 4.0
ATTEMPTS_MAX = 4
"""How often an operation that runs once is sent, while nobody says what became of it."""
ONCE_PART = 0.5
"""Which part of increments and appends runs by `STELE.ONCE`, and is sent again."""

_COMMANDS: dict[str, Callable[[Operation], list[bytes]]] = {
    "get": lambda o: [b"GET", o.key],
    "set": lambda o: [b"SET", o.key, o.value],
    "add": lambda o: [b"SET", o.key, o.value, b"NX"],
    "delete": lambda o: [b"DEL", o.key],
    "increment": lambda o: [b"INCR", o.key],
    "append": lambda o: [b"APPEND", o.key, o.value],
}
_KINDS = {
    "register": ("get", "get", "set", "set", "add", "delete"),
    "counter": ("get", "increment"),
    "list": ("get", "append", "append"),
}


class Client:
    """One application: it asks a member, waits for a while, and goes on with the next operation."""

    def __init__(self, name: str, network: Network, kubelet: Kubelet, keys: "Keys", trace: Trace) -> None:
        self.name, self._clock, self._network = name, network.clock, network
        self._kubelet, self._keys, self._trace = kubelet, keys, trace
        self._loop = ProcessLoop(network.clock, name, network)
        self.active = True
        self._loop.create_task(self._work())

    def stop(self) -> None:
        self._loop.kill()

    async def _work(self) -> None:
        random = self._clock.random
        while self.active:
            await asyncio.sleep(random.uniform(*self._keys.think_seconds))
            machines = self._kubelet.reached()
            if machines:
                await self._one(random.choice(machines), self._keys.operation(self.name, self._clock.now))

    def read_all(self, machines: list[Machine]) -> "asyncio.Task[list[Operation]]":
        """Read each key once, one after the other, each through one of these members."""

        async def read() -> list[Operation]:
            found = []
            for operation in self._keys.reads(self.name):
                operation.begin = self._clock.now
                found.append(operation)
                await self._one(self._clock.random.choice(machines), operation)
            return found

        return self._loop.create_task(read())

    async def _one(self, machine: Machine, operation: Operation) -> None:
        """Ask once; what runs once is asked again, with the same sequence, until it is known."""
        self._keys.histories.began(operation)
        found = await self._ask(machine, operation)
        lost = 0
        while operation.once and _is_unknown(found, lost) and lost < ATTEMPTS_MAX - 1:
            lost += 1
            others = self._kubelet.reached()
            if others:
                found = await self._ask(self._clock.random.choice(others), operation)
        self._note(operation, found, lost)

    async def _ask(self, machine: Machine, operation: Operation) -> object:
        answer = self._loop.create_future()
        timer = self._loop.call_later(PATIENCE_SECONDS, _resolve, answer, None)
        here, there = self.name, machine.place

        def back(reply: object) -> None:
            answered = partial(self._loop.call_soon, _resolve, answer, (reply,))
            self._network.send(there, here, answered, back=True)

        self._network.send(here, there, lambda: self._arrive(machine, operation, back))
        found = await answer
        timer.cancel()
        return found

    def _arrive(self, machine: Machine, operation: Operation, back: Callable[[object], None]) -> None:
        process = machine.process
        if process is None or not process.listens or process.node is None:
            return
        store = process.node.router
        partition = self._keys.partition(operation.key)
        reads = self._clock.random.choice((0, 0, 1, 3))

        async def run() -> None:
            try:
                back(await _ask_store(store, partition, operation, reads))
            except SteleError as error:
                back(error)

        self._clock.soon(Handle(process.loop, lambda: process.loop.create_task(run()), ()))

    def _note(self, operation: Operation, found: object, lost: int) -> None:
        """Write down the answer; no answer and `Uncertain` mean that it may have been done, or may be yet.

        So does a refusal after attempts that were `lost`.
        """
        histories = self._keys.histories
        reply = found[0] if isinstance(found, tuple) else Uncertain("no answer")
        if _is_unknown(found, lost):
            histories.unknown += 1
        elif isinstance(reply, SteleError | Failure):
            histories.refused(operation)
        else:
            operation.end = self._clock.now
            operation.reply = reply.text if isinstance(reply, Simple) else reply
            histories.acknowledged += 1
            histories.answered(operation)
        told = f" refused: {reply}" if operation.end is None else ""
        partition = self._keys.partition(operation.key)
        self._trace.note(self.name, f"{operation}{told}", partition)


async def _ask_store(store: KeyValueService, partition: int, operation: Operation, reads: int) -> Reply:
    """The reply, of a pipeline that reads the key some times before: what did not run is asked again."""
    commands = [*[[b"GET", operation.key]] * reads, _command(operation)]
    replies: list[Reply] = []
    while len(replies) < len(commands):
        some = await store.execute(partition, KEYSPACE, commands[len(replies) :])
        assert some, "with room for any reply the first command runs"
        replies += some
    return replies[-1]


def _is_unknown(found: object, lost: int) -> bool:
    """Whether nobody knows if it was done, after so many attempts that nobody answered before."""
    reply = found[0] if isinstance(found, tuple) else Uncertain("no answer")
    return isinstance(reply, Uncertain) or (lost > 0 and isinstance(reply, SteleError | Failure))


def _command(operation: Operation) -> list[bytes]:
    command = _COMMANDS[operation.kind](operation)
    if not operation.once:
        return command
    return [ONCE, operation.client.encode(), b"%d" % operation.number, *command]


class Keys:
    """Which keys there are, and what is done to each: registers, counters and lists."""

    def __init__(self, clock: Clock, profile: Profile) -> None:
        self.partitions, self._clock = profile.partitions, clock
        self.think_seconds, count = profile.think_seconds, profile.keys
        self.histories = Histories()
        self._numbers = 0
        names = list(_KINDS)
        self._keys = [(f"{names[n % len(names)]}-{n}".encode(), names[n % len(names)]) for n in range(count)]

    def operation(self, client: str, now: float) -> Operation:
        random = self._clock.random
        key, sort = random.choice(self._keys)
        self._numbers += 1
        kind = random.choice(_KINDS[sort])
        once = kind in ("increment", "append") and random.random() < ONCE_PART
        return Operation(self._numbers, client, kind, key, b"<%d>" % self._numbers, now, once=once)

    def reads(self, client: str) -> list[Operation]:
        """One of each key, numbered after all others."""
        return [Operation(10**9 + n, client, "get", key, b"", 0.0) for n, (key, _) in enumerate(self._keys)]

    def partition(self, key: bytes) -> int:
        return partition_of(key, self.partitions)


def _resolve(answer: "asyncio.Future[object]", value: object) -> None:
    if not answer.done():
        answer.set_result(value)
