"""Clients of a keyspace with mode Invalidation: a cache in front of a source that they read and change.

Each changes its own keys: first the source, then the cache, until that is acknowledged. All read all keys,
and fill what they missed with what they then read in the source, which may take a while.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from stele.core.kv.commands import Failure
from tests.fakes.network import Network
from tests.fakes.resp_connection import RespConnection
from tests.simulation.clients import Keys
from tests.simulation.history import Violation
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.redis_clients import RedisClient
from tests.simulation.trace import Trace

CURRENT = "no hit is older than an acknowledged write"

KEYSPACE = "pages"
SPEC = {"mode": "Invalidation", "localCache": {"bytes": "1Mi"}}
KEYS_OF_ONE = 2
WRITES_PART = 0.2
FILLS_PART = 0.7
THINK_SECONDS = (0.01, 0.1)
SOURCE_SECONDS = (0.0, 0.0, 0.05, 0.5)
"""How long a client takes from reading the source to filling the cache."""


@dataclass
class Source:
    """What the cache is in front of: versions by key, and the last one whose write was acknowledged."""

    versions: dict[bytes, int] = field(default_factory=dict)
    acknowledged: dict[bytes, int] = field(default_factory=dict)

    def add(self, key: bytes) -> bytes:
        self.versions[key] = self.acknowledged[key] = 0
        return key


class LocalClient(RedisClient):
    """See the module."""

    def __init__(
        self, name: str, network: Network, kubelet: Kubelet, keys: Keys, trace: Trace, *, source: Source
    ) -> None:
        self._source, self._made = source, 0
        self._label = name.encode()
        self._own = [self._new_key() for _ in range(KEYS_OF_ONE)]
        super().__init__(name, network, kubelet, keys, trace)

    def _new_key(self) -> bytes:
        self._made += 1
        return self._source.add(b"page-%b-%d" % (self._label, self._made))

    async def _connection(self, machine: Machine) -> RespConnection:
        known = self._streams.get(machine.place)
        connection = await super()._connection(machine)
        if connection is not known:
            await connection.ask([b"SELECT", KEYSPACE.encode()])
        return connection

    def _machines(self) -> list[Machine]:
        """Those that have the settings: clients wait until the Keyspace is ready."""
        return [
            each
            for each in self._kubelet.reached()
            if each.node is not None and KEYSPACE.encode() in each.node.table.keyspaces.local
        ]

    async def _work(self) -> None:
        random = self._clock.random
        while self.active:
            await asyncio.sleep(random.uniform(*THINK_SECONDS))
            machines = self._machines()
            if machines and random.random() < WRITES_PART:
                await self._write(random.randrange(KEYS_OF_ONE))
            elif machines:
                await self._look(random.choice(machines), random.choice(list(self._source.versions)))

    # -- writes

    async def _write(self, place: int) -> None:
        """Change the source, then the cache. A SET that may come late is never followed by another write."""
        random, key = self._clock.random, self._own[place]
        self._source.versions[key] += 1
        version = self._source.versions[key]
        deletes = random.random() < 0.5
        while self.active:
            machines = self._machines()
            reply: Any = None
            if machines:
                command = [b"DEL", key] if deletes else [b"SET", key, b"%d" % version]
                replies = await self._call(random.choice(machines), command)
                reply = None if replies is None else replies[0]
            if reply is not None and not isinstance(reply, Failure):
                self._source.acknowledged[key] = version
                self._trace.cover("write of a local cache")
                return
            if not deletes and machines and reply is None:
                self._own[place] = self._new_key()
                return
            await asyncio.sleep(random.uniform(*THINK_SECONDS))

    # -- reads

    async def _look(self, machine: Machine, key: bytes) -> None:
        least = self._source.acknowledged[key]
        replies = await self._call(machine, [b"GET", key])
        if replies is None or isinstance(replies[0], Failure):
            return
        if replies[0] is None:
            await self._fill(machine, key)
        else:
            self.check(machine.place, key, int(replies[0]), least)

    def check(self, place: str, key: bytes, version: int, least: int) -> None:
        """Raise Violation for a hit that is older than what was acknowledged when it was asked for."""
        self._trace.checked[CURRENT] += 1
        self._trace.cover("hit of a local cache")
        if version < least:
            text = f"{place} answers version {version} of {key!r} after {least} was acknowledged"
            raise Violation(CURRENT, text, key=key)

    async def _fill(self, machine: Machine, key: bytes) -> None:
        random, version = self._clock.random, self._source.versions[key]
        if random.random() < FILLS_PART:
            await asyncio.sleep(random.choice(SOURCE_SECONDS))
            await self._call(machine, [b"SET", key, b"%d" % version, b"NX"])
