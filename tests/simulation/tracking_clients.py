"""Clients with caches of their own: CLIENT TRACKING on a Redis connection, in each of its modes.

Each reads its few keys through one member, keeps the values, and drops them when that member says so or the
connection ends. What it finds in its cache is a read like any other, which may be two leases old.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from stele.core.kv.commands import Failure
from tests.fakes.network import Network
from tests.fakes.resp_connection import RespConnection
from tests.simulation.clients import BURST_PART, Connection, Keys
from tests.simulation.history import Operation, Violation
from tests.simulation.invalidations import Told
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.member import RESP_PORT
from tests.simulation.redis_clients import RedisClient
from tests.simulation.trace import Trace

OVERTAKEN = "nothing older follows an invalidation"

CHANNEL = b"__redis__:invalidate"
READS_MAX = 3
HITS_PART = 0.5
"""How often only what is cached is read: no other read holds that up."""
THINK_SECONDS = (0.01, 0.1)
PING_SECONDS = 0.05
"""A connection that was quiet for longer is asked whether it lives."""
QUIET_SECONDS_MAX = 1.0
"""Nothing is taken from the cache while the member has said nothing for longer."""
SILENCE_SECONDS_MAX = 15.0
"""A connection that answers nothing for longer is closed."""

MODES: dict[str, Sequence[bytes]] = {
    "plain": (),
    "optin": (b"OPTIN",),
    "noloop": (b"NOLOOP",),
    "broadcast": (b"BCAST",),
    "prefixes": (b"BCAST", b"PREFIX", b"register-", b"PREFIX", b"counter-", b"PREFIX", b"list-"),
    "redirect": (b"REDIRECT",),
}


class TrackedConnection(RespConnection):
    """Hands out what arrives in the order of the stream: `pushed` messages, and `answered` requests."""

    def __init__(
        self, pushed: Callable[[Any], None], answered: Callable[[Sequence[bytes], Any], None]
    ) -> None:
        super().__init__()
        self._pushed, self._answered = pushed, answered
        self._requests: deque[Sequence[bytes]] = deque()

    def send(self, *requests: Sequence[bytes]) -> "list[asyncio.Future[Any]]":
        futures = super().send(*requests)
        self._requests += requests
        return futures

    def received(self, value: Any, *, pushed: bool) -> None:
        if pushed or (isinstance(value, list) and value[:1] == [b"message"]):
            self._pushed(value)
            return
        self._answered(self._requests.popleft(), value)
        super().received(value, pushed=False)


class TrackingClient(RedisClient):
    """Everything before `_fresh_at` that its member had to say has arrived: the request of that time was
    answered, and so was one after it.

    `_spoiled` are the keys that changed while they were read: with REDIRECT messages and replies have no
    order. `_floors` has the index that a value must have, by key.
    """

    def __init__(
        self, name: str, network: Network, kubelet: Kubelet, keys: Keys, trace: Trace, *, told: Told
    ) -> None:
        self._told = told
        self._mode = network.clock.random.choice(sorted(MODES))
        self._forget()
        super().__init__(name, network, kubelet, keys, trace)

    def _forget(self) -> None:
        """Have no connection, and so no cache."""
        self._data: TrackedConnection | None = None
        self._heard: TrackedConnection | None = None
        self._cache: dict[bytes, Any] = {}
        self._floors: dict[bytes, int] = {}
        self._spoiled: set[bytes] = set()
        self._tracked = Connection(None)
        self._id = 0
        self._fresh_at = self._asked_at = -1.0

    async def _work(self) -> None:
        random = self._clock.random
        while self.active:
            await asyncio.sleep(random.uniform(*THINK_SECONDS))
            machines = self._kubelet.reached()
            if random.random() < BURST_PART:
                await self._burst(machines)
            elif machines:
                await self._use_cache()

    async def _use_cache(self) -> None:
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                if not self._connected:
                    await self._connect()
                await self._read()
        except (ConnectionError, TimeoutError):
            for each in (self._data, self._heard):
                if each is not None:
                    each.close()
            self._forget()

    async def _ask(self, machine: Machine, operation: Operation) -> object:
        """Write through other connections, several at once: they are in no order."""
        found = await super()._ask(machine, operation)
        return (found[0], Connection(None)) if isinstance(found, tuple) else None

    # -- the connection

    @property
    def _connected(self) -> bool:
        return all(each is not None and each.open for each in (self._data, self._heard))

    async def _connect(self) -> None:
        self._forget()
        machine = self._clock.random.choice(self._kubelet.reached())
        self._data = self._heard = await self._open(machine.address)
        mode = [*MODES[self._mode]]
        if self._mode == "redirect":
            self._heard = await self._open(machine.address)
            await self._heard.ask([b"SUBSCRIBE", CHANNEL])
            mode.append(b"%d" % await self._id_of(self._heard))
        else:
            await self._data.ask([b"HELLO", b"3"])
        self._id = await self._id_of(self._heard)
        (reply,) = await self._data.ask([b"CLIENT", b"TRACKING", b"ON", *mode])
        if isinstance(reply, Failure):
            raise ConnectionRefusedError(str(reply))

    async def _open(self, address: str) -> TrackedConnection:
        def make() -> TrackedConnection:
            return TrackedConnection(self._hear, self._fill)

        made = await self._loop.create_connection(make, address, RESP_PORT)
        connection: TrackedConnection = made[1]
        return connection

    async def _id_of(self, connection: TrackedConnection) -> int:
        (number,) = await connection.ask([b"CLIENT", b"ID"])
        if isinstance(number, Failure):
            raise ConnectionRefusedError(str(number))
        return int(number)

    # -- what arrives, in the order of the stream

    def _hear(self, message: list[Any]) -> None:
        """Drop what has changed."""
        if message[-2] not in (b"invalidate", CHANNEL):
            return
        keys = message[-1]
        for key, index in self._told.take(self._id, keys).items():
            self._floors[key] = max(index, self._floors.get(key, 0))
        for key in [*self._cache] if keys is None else keys:
            self._cache.pop(key, None)
        self._spoiled.update(self._keys.names if keys is None else keys)

    def _fill(self, request: Sequence[bytes], value: Any) -> None:
        """Keep what was read. It must not be older than what the member has said to have changed."""
        if request[0] != b"GET" or isinstance(value, Failure):
            return
        key, ordered = request[1], self._data is self._heard
        if ordered and value is not None:
            index, floor = self._told.index_of(key, value), self._floors.get(key, 0)
            if index is not None and index < floor:
                text = f"{value!r} is of operation {index}, and {self.name} heard of operation {floor} before"
                self._clock.fail(Violation(OVERTAKEN, text, key=key))
            self._trace.checked[OVERTAKEN] += floor > 0
        if ordered or key not in self._spoiled:
            self._cache[key] = value

    # -- reads

    async def _read(self) -> None:
        """Read some keys: those that are cached from there, the others from the member."""
        now, count = self._clock.now, self._clock.random.randint(1, READS_MAX)
        operations = {each.key: each for each in (self._keys.read(self.name, now) for _ in range(count))}
        fresh = now - self._fresh_at < QUIET_SECONDS_MAX
        hits = [each for each in operations.values() if fresh and each.key in self._cache]
        only_hits = self._clock.random.random() < HITS_PART
        rest = [] if only_hits else [each for each in operations.values() if each not in hits]
        for each in [*hits, *rest]:
            self._keys.histories.began(each, [each.key])
        for each in hits:
            self._hit(each)
        await self._get(rest)
        if self._heard is not self._data or not rest:
            await self._ping()

    def _hit(self, operation: Operation) -> None:
        since = self._clock.now - self._fresh_at
        operation.stale_seconds = since + self._keys.near_cache_seconds
        self._trace.cover("value of a client's cache")
        self._note(operation, (self._cache[operation.key], self._tracked), 0)

    async def _get(self, operations: Sequence[Operation]) -> None:
        assert self._data is not None
        if not operations:
            return
        self._spoiled -= {each.key for each in operations}
        requests: list[list[bytes]] = []
        for each in operations:
            requests += [[b"CLIENT", b"CACHING", b"YES"]] if self._mode == "optin" else []
            requests.append([b"GET", each.key])
        asked, tracked = self._clock.now, self._tracked
        replies: list[Any] = []
        try:
            replies = await self._data.ask(*requests)
            if self._heard is self._data:
                self._answered(asked)
        finally:
            replies = replies[-1::-2][::-1] if self._mode == "optin" else replies
            for place, each in enumerate(operations):
                self._note(each, (replies[place], tracked) if replies else None, 0)

    async def _ping(self) -> None:
        """Make sure that messages arrive."""
        asked = self._clock.now
        if asked - self._asked_at > PING_SECONDS or self._fresh_at < 0:
            assert self._heard is not None
            await self._heard.ask([b"PING"])
            self._answered(asked)

    def _answered(self, asked: float) -> None:
        self._fresh_at, self._asked_at = self._asked_at, asked
