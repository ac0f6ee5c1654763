"""Clients whose entries get, keep and lose expiry times: EXPIRE, PERSIST, GETDEL, besides SET PX."""

import asyncio
from typing import Any

from stele.core.kv.commands import Failure
from tests.fakes.network import Network
from tests.simulation.clients import Keys
from tests.simulation.history import Violation
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.redis_clients import BRIEF_SECONDS, CLOCK_SECONDS, LIFETIME, RedisClient
from tests.simulation.trace import Trace

TAKEN_ONCE = "GETDEL answers a value once"
TAKERS = 3


class ExpiringClient(RedisClient):
    """`expired` has keys whose time is over, each with when it was written and when its time was over."""

    def __init__(self, name: str, network: Network, kubelet: Kubelet, keys: Keys, trace: Trace) -> None:
        self.expired: list[tuple[bytes, float, float]] = []
        self._lives = 0
        super().__init__(name, network, kubelet, keys, trace)
        self._jobs = (
            (4, self._operate), (2, self._take), (2, self._expire), (1, self._persist), (1, self._brief),
            (1, self._scan),
        )  # fmt: skip

    @property
    def kept(self) -> dict[bytes, float]:
        """Keys that are never removed, and when they were written."""
        return self._kept

    # -- commands

    async def _one_reply(self, machine: Machine, *command: bytes) -> Any:
        """The reply, or a Failure when there was none."""
        replies = await self._call(machine, command)
        return Failure("ERR", "no answer") if replies is None else replies[0]

    def _anyone(self) -> Machine | None:
        machines = self._kubelet.reached()
        return self._clock.random.choice(machines) if machines else None

    async def _new(self, machine: Machine, value: bytes) -> bytes | None:
        """Write an entry without an expiry time; None when that may have failed."""
        self._lives += 1
        key = b"life-%b-%d" % (self.name.encode(), self._lives)
        reply = await self._one_reply(machine, b"SET", key, value)
        return None if isinstance(reply, Failure) else key

    async def _read(self, key: bytes) -> Any:
        machine = self._anyone()
        return Failure("ERR", "no member") if machine is None else await self._one_reply(machine, b"GET", key)

    # -- expiry

    async def _expire(self, machine: Machine) -> None:
        """Give an entry a time, and read it before and after that."""
        born = self._clock.now
        key = await self._new(machine, b"life")
        seconds, began = self._clock.random.choice(BRIEF_SECONDS), self._clock.now
        unit, number = (b"PEXPIRE", seconds * 1000) if seconds % 1 else (b"EXPIRE", seconds)
        if key is None or await self._one_reply(machine, unit, key, b"%d" % number) != 1:
            return
        ended = self._clock.now
        while self.active and self._clock.now < ended + 1.5 * seconds:
            await asyncio.sleep(self._clock.random.uniform(0.1, 0.5) * seconds)
            asked, value = self._clock.now, await self._read(key)
            if not isinstance(value, Failure):
                self._check_life(key, value, (asked, began + seconds, ended + seconds))
        self.expired.append((key, born, ended + seconds))

    def _check_life(self, key: bytes, value: Any, times: tuple[float, float, float]) -> None:
        """An entry was read by a request that began at the first time; it expires between the others."""
        asked, least, most = times
        if value is None and self._clock.now < least - CLOCK_SECONDS:
            raise Violation(LIFETIME, f"{key!r} was gone before its time", key=key)
        if value is not None and asked > most + CLOCK_SECONDS:
            raise Violation(LIFETIME, f"{key!r} was there after its time", key=key)
        self._trace.checked[LIFETIME] += 1

    async def _persist(self, machine: Machine) -> None:
        """Take the time of an entry away again: then it stays."""
        key = await self._new(machine, b"life")
        if key is None or await self._one_reply(machine, b"EXPIRE", key, b"1") != 1:
            return
        machine = self._anyone() or machine
        if await self._one_reply(machine, b"PERSIST", key) != 1:
            return
        await asyncio.sleep(self._clock.random.uniform(1.1, 3.0))
        value = await self._read(key)
        if not isinstance(value, Failure):
            self._check_life(key, value, (self._clock.now, float("inf"), float("inf")))

    # -- GETDEL

    async def _take(self, machine: Machine) -> None:
        """Several take an entry through a member each: one of them gets it."""
        key = await self._new(machine, b"life")
        machines = self._kubelet.reached()
        self._clock.random.shuffle(machines)
        if key is None or not machines:
            return
        takers = (self._one_reply(each, b"GETDEL", key) for each in machines[:TAKERS])
        replies = await asyncio.gather(*map(self._loop.create_task, takers))
        found = await self._read(key)
        if isinstance(found, Failure):
            return
        self.check_taken(key, replies, found)

    def check_taken(self, key: bytes, replies: list[Any], found: Any) -> None:
        """Raise Violation unless one reply has the value; it may be one that did not arrive."""
        values = sum(isinstance(each, bytes) for each in replies)
        unknown = any(isinstance(each, Failure) for each in replies)
        if values > 1 or (values == 0 and not unknown):
            raise Violation(TAKEN_ONCE, f"{key!r} was taken {values} times: {replies}", key=key)
        if values and found is not None:
            raise Violation(TAKEN_ONCE, f"{key!r} is there after it was taken", key=key)
        self._trace.checked[TAKEN_ONCE] += 1
