"""Clients: each does one operation after the other on a few keys, through any member, and writes down all."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from stele.core.kv.commands import Failure, Reply, Simple
from stele.core.kv.dedup import ONCE
from stele.core.kv.keyslot import partition_of
from stele.core.kv.keyspaces import Catalog, NearCache, Settings
from stele.core.kv.seen import SeenOperations, SeenTotal
from stele.errors import SteleError, Uncertain
from stele.member import limits
from stele.ports.key_value_service import KeyValueService
from tests.fakes.loop import Clock, Handle, ProcessLoop
from tests.fakes.network import Network
from tests.simulation.history import Histories, Operation
from tests.simulation.kinds import RATES
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.ledger import Ledger
from tests.simulation.member import MemberProcess
from tests.simulation.profile import STALENESS_SECONDS, Backups, Profile
from tests.simulation.trace import Trace

KEYSPACE = b"default"
NEAR_CACHE_BYTES = 1 << 20
PATIENCE_SECONDS = 4.0
ATTEMPTS_MAX = 4
"""How often an operation that runs once is sent, while nobody says what became of it."""
ONCE_PART = 0.5
"""Which part of increments and appends runs by `STELE.ONCE`, and is sent again."""

CALM_SECONDS = 0.02
TICKS_SECONDS = 2 * limits.TICK_SECONDS
"""How much later than a lease ends a member looks at it, when a client does not ask."""

LEDGERS = 2
BURST_PART = 0.04
"""Which part of what clients do whose members have near caches writes a key. All else reads: so each key is
changed seldom, and an old value is read long after."""
BURST_SECONDS = 0.002

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


@dataclass
class Connection:
    """One connection of a client to one process of a member: what it has seen, if backups may answer it.

    `last` is the last answered operation of each key.
    """

    seen: SeenOperations | None
    last: dict[bytes, int] = field(default_factory=dict)


Back = Callable[[object, Connection], None]


class Client:
    """One application: it asks a member, waits for a while, and goes on with the next operation."""

    def __init__(self, name: str, network: Network, kubelet: Kubelet, keys: "Keys", trace: Trace) -> None:
        self.name, self._clock, self._network = name, network.clock, network
        self._kubelet, self._keys, self._trace = kubelet, keys, trace
        self._backups = keys.backups_of(name)
        self._connections: dict[MemberProcess, Connection] = {}
        self._loop = ProcessLoop(network.clock, name, network)
        self.active = True
        self._loop.create_task(self._work()).add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A client that ends by an error is a find."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._clock.fail(error)

    def stop(self) -> None:
        self._loop.kill()

    async def _work(self) -> None:
        random = self._clock.random
        while self.active:
            await asyncio.sleep(random.uniform(*self._keys.think_seconds))
            machines = self._kubelet.reached()
            if self._keys.near_caches and random.random() < BURST_PART:
                await self._burst(machines)
            elif machines:
                await self._one(random.choice(machines), self._keys.operation(self.name, self._clock.now))

    async def _burst(self, machines: list[Machine]) -> None:
        """Write a key, read it and write it again, through a member each, while no write is committed yet."""
        self._clock.random.shuffle(machines)
        asked = []
        for machine, operation in zip(machines, self._keys.burst(self.name, self._clock.now), strict=False):
            asked.append(self._loop.create_task(self._one(machine, operation)))
            await asyncio.sleep(BURST_SECONDS)
        await asyncio.gather(*asked)

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
        if operation.kind == "get":
            operation.stale_seconds = self._keys.stale_seconds(self._backups)
        self._keys.histories.began(operation, self._keys.touched(operation))
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

        def back(reply: object, connection: Connection) -> None:
            answered = partial(self._loop.call_soon, _resolve, answer, (reply, connection))
            self._network.send(there, here, answered, back=True)

        self._network.send(here, there, lambda: self._arrive(machine, operation, back))
        found = await answer
        timer.cancel()
        return found

    def _arrive(self, machine: Machine, operation: Operation, back: "Back") -> None:
        process = machine.process
        if process is None or not process.listens or process.node is None:
            return
        store = process.node.router
        partition = self._keys.partition(operation.key)
        reads = self._clock.random.choice((0, 0, 1, 3))
        connection = self._connection(process, store)

        async def run() -> None:
            try:
                back(await _ask_store(store, partition, operation, reads, connection.seen), connection)
            except SteleError as error:
                back(error, connection)

        self._clock.soon(Handle(process.loop, lambda: process.loop.create_task(run()), ()))

    def _connection(self, process: MemberProcess, store: KeyValueService) -> "Connection":
        if self._backups is Backups.AVAILABLE:
            store.available.add(KEYSPACE)
        if self._keys.near_caches:
            declare_near_cache(process)
        if process not in self._connections:
            since = store.available_since(KEYSPACE)
            readonly = self._backups is Backups.READONLY
            tracks = readonly or since is not None
            seen = SeenOperations(SeenTotal(), since or 0.0, readonly=readonly) if tracks else None
            self._connections[process] = Connection(seen)
        return self._connections[process]

    def _note(self, operation: Operation, found: object, lost: int) -> None:
        """Write down the answer; no answer and `Uncertain` mean that it may have been done, or may be yet.

        So does a refusal after attempts that were `lost`.
        """
        histories = self._keys.histories
        reply = found[0] if isinstance(found, tuple) else Uncertain("no answer")
        if _is_unknown(found, lost):
            histories.unknown += 1
        elif isinstance(reply, SteleError | Failure):
            histories.refused(operation, self._keys.touched(operation))
        else:
            operation.end = self._clock.now
            operation.reply = reply.text if isinstance(reply, Simple) else reply
            assert isinstance(found, tuple)
            operation.after = found[1].last.get(operation.key, 0)
            found[1].last[operation.key] = operation.number
            histories.acknowledged += 1
            histories.answered(operation)
        told = f" refused: {reply}" if operation.end is None else ""
        partition = self._keys.partition(operation.key)
        self._trace.note(self.name, f"{operation}{told}", partition)


def declare_near_cache(process: MemberProcess) -> None:
    """As the catalog of a Keyspace does that has a nearCache."""
    assert process.node is not None
    keyspaces = process.node.table.keyspaces
    if keyspaces.settings_of(KEYSPACE).near_cache is None:
        near = NearCache(NEAR_CACHE_BYTES, 3600)
        keyspaces.use(Catalog(1, {KEYSPACE.decode(): Settings(near_cache=near)}))


async def _ask_store(
    store: KeyValueService, partition: int, operation: Operation, reads: int, seen: SeenOperations | None
) -> Reply:
    """The reply, of a pipeline that reads the key some times before: what did not run is asked again."""
    if operation.kind == "clear":
        await store.clear(partition, KEYSPACE)
        return Simple("OK")
    commands = [*[[b"GET", operation.key]] * reads, command_of(operation)]
    replies: list[Reply] = []
    while len(replies) < len(commands):
        some = await store.execute(partition, KEYSPACE, commands[len(replies) :], seen=seen)
        assert some, "with room for any reply the first command runs"
        replies += some
    return replies[-1]


def _is_unknown(found: object, lost: int) -> bool:
    """Whether nobody knows if it was done, after so many attempts that nobody answered before."""
    reply = found[0] if isinstance(found, tuple) else Uncertain("no answer")
    return isinstance(reply, Uncertain) or (lost > 0 and isinstance(reply, SteleError | Failure))


def command_of(operation: Operation) -> list[bytes]:
    """The request, as it is sent to a member."""
    command = _COMMANDS[operation.kind](operation)
    if not operation.once:
        return command
    return [ONCE, operation.client.encode(), b"%d" % operation.number, *command]


class Keys:
    """Which keys there are, and what is done to each: registers, counters and lists; ledgers besides."""

    def __init__(self, clock: Clock, profile: Profile) -> None:
        self.partitions, self._clock = profile.partitions, clock
        self.think_seconds, count = profile.think_seconds, profile.keys
        self.histories = Histories()
        self.own: Callable[[bytes], int | None] = lambda key: None
        self._profile = profile
        self.near_caches = profile.near_caches
        self._numbers = 0
        names = list(_KINDS)
        self.ledgers = [Ledger(tag) for tag in range(min(profile.partitions, LEDGERS))]
        self._keys = [(f"{names[n % len(names)]}-{n}".encode(), names[n % len(names)]) for n in range(count)]

    def operation(self, client: str, now: float) -> Operation:
        random = self._clock.random
        key, sort = random.choice(self._keys)
        self._numbers += 1
        if self._profile.clears and random.random() < self._profile.clears:
            return Operation(self._numbers, client, "clear", key, b"", now)
        kind = random.choice(_KINDS[sort])
        if self.near_caches:
            kind = "get"
        once = kind in ("increment", "append") and random.random() < ONCE_PART
        return Operation(self._numbers, client, kind, key, b"<%d>" % self._numbers, now, once=once)

    @property
    def names(self) -> list[bytes]:
        """All keys but those of ledgers."""
        return [key for key, _ in self._keys]

    def read(self, client: str, now: float) -> Operation:
        """One read of any key."""
        self._numbers += 1
        return Operation(self._numbers, client, "get", self._clock.random.choice(self._keys)[0], b"", now)

    def burst(self, client: str, now: float) -> list[Operation]:
        """Writes of one key, with a read before the last one."""
        key, sort = self._clock.random.choice(self._keys)
        writes, made = [kind for kind in _KINDS[sort] if kind != "get"], []
        for kind in (*self._clock.random.choices(writes, k=2), "get", self._clock.random.choice(writes)):
            self._numbers += 1
            made.append(Operation(self._numbers, client, kind, key, b"<%d>" % self._numbers, now))
        return made

    def several(self, client: str, now: float) -> list[Operation]:
        """One read of each of some keys, or one write of some registers."""
        random = self._clock.random
        kind = random.choice(("get", "set"))
        names = [key for key, sort in self._keys if kind == "get" or sort == "register"]
        made = []
        for key in random.sample(names, random.randint(1, min(3, len(names)))):
            self._numbers += 1
            made.append(Operation(self._numbers, client, kind, key, b"<%d>" % self._numbers, now))
        return made

    def reads(self, client: str) -> list[Operation]:
        """One of each key, numbered after all others."""
        return [Operation(10**9 + n, client, "get", key, b"", 0.0) for n, (key, _) in enumerate(self._keys)]

    def backups_of(self, client: str) -> Backups:
        """Whether backups may answer a client: the first one reads the end of every run, at the owners."""
        asks = self._profile.backups
        return Backups.NEVER if asks is Backups.READONLY and client == "client-0" else asks

    def stale_seconds(self, backups: Backups) -> float:
        """How long ago what a client reads may have been replaced."""
        lease = self._profile.lease_seconds
        if self.near_caches:
            return 2 * lease * (1 + 2 * RATES["clock drift"])
        available = max(lease, STALENESS_SECONDS) * (1 + 2 * RATES["clock drift"])
        return {Backups.NEVER: 0.0, Backups.READONLY: lease, Backups.AVAILABLE: available}[backups]

    @property
    def near_cache_seconds(self) -> float:
        """How long ago what a client's cache has may have been replaced.

        Where nothing goes wrong, that is no longer than messages take.
        """
        if not self._profile.faults:
            return CALM_SECONDS
        return TICKS_SECONDS + 2 * self._profile.lease_seconds * (1 + 2 * RATES["clock drift"])

    def touched(self, operation: Operation) -> list[bytes]:
        """The keys that an operation changes or reads."""
        if operation.kind != "clear":
            return [operation.key]
        partition = self.partition(operation.key)
        return [key for key, _ in self._keys if self.partition(key) == partition]

    def partition(self, key: bytes) -> int:
        own = self.own(key)
        return partition_of(key, self.partitions) if own is None else own


def _resolve(answer: "asyncio.Future[object]", value: object) -> None:
    if not answer.done():
        answer.set_result(value)
