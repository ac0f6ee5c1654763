"""Subscribers on Redis connections: what they hear of keys, of entries that expire, and of those that arrive.

They connect to a member again when their connection is lost, and look at what has happened since.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from stele.core.kv.notifications import ARRIVED, DEPARTED
from stele.member.node import Node
from tests.fakes.loop import ProcessLoop
from tests.fakes.resp_connection import RespConnection
from tests.simulation.expiring_clients import ExpiringClient
from tests.simulation.history import Violation
from tests.simulation.kubelet import Machine
from tests.simulation.member import RESP_PORT, MemberProcess
from tests.simulation.subscribers import KEYS, LOOK_SECONDS, OTHER, Subscriber, Subscribers

ARRIVALS = "arrivals are reported"
EXPIRATIONS = "expired entries have their event, or there is a gap"

SUBSCRIBE_SECONDS_MAX = 10.0
LATE_SECONDS = 5.0
"""How long after its cause an event may come."""
REMOVED = ("expired", "del")
"""A new owner knows what was removed, and not why."""


class Listener(RespConnection):
    """A connection whose messages are handed to its subscriber, in both versions of the protocol."""

    def __init__(self, subscriber: "RespSubscriber") -> None:
        super().__init__()
        self._subscriber = subscriber

    def received(self, value: Any, *, pushed: bool) -> None:
        kind = value[0] if isinstance(value, list) else b""
        if kind in (b"message", b"pmessage"):
            self._subscriber.hear(value[-2], value[-1])
        else:
            # Replies to SUBSCRIBE are pushed too, in RESP3.
            super().received(value, pushed=False)


class RespSubscriber(Subscriber):
    """`events` has the times at which events were heard, by key and event. `arrivals` are partitions whose
    row named this member, and before that not, with when that was seen.
    """

    loop: ProcessLoop
    address: str

    def __init__(self, *of: Any, loop: ProcessLoop, address: str) -> None:
        self.loop, self.address = loop, address
        self.events: dict[tuple[bytes, str], list[float]] = defaultdict(list)
        self.arrivals: dict[int, float] = {}
        self._connection: Listener | None = None
        self._node: Node | None = None
        self._named: dict[int, bool] = {}
        super().__init__(*of)

    # -- the connection

    def begin(self, process: MemberProcess, node: Node) -> None:
        self._node = node
        self.loop.create_task(self._stay_subscribed())

    async def _stay_subscribed(self) -> None:
        while self.process.loop.alive:
            if not self.connected:
                await self._connect()
            await asyncio.sleep(LOOK_SECONDS)

    async def _connect(self) -> None:
        self.since = float("inf")
        self.heard, self.gaps = Counter(), set()
        self.events.clear()
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS_MAX):
                made = await self.loop.create_connection(lambda: Listener(self), self.address, RESP_PORT)
                self._connection = made[1]
                if self.id % 2:
                    await self._connection.ask([b"HELLO", b"3"])
                await self._connection.ask([b"PSUBSCRIBE", KEYS + b"*"], [b"SUBSCRIBE", OTHER])
        except (ConnectionError, TimeoutError):
            if self._connection is not None:
                self._connection.close()
            return
        self.since = self.loop.clock.now

    @property
    def connected(self) -> bool:
        """Whether it hears of everything from `since` on."""
        return self._connection is not None and self._connection.open and self.since < float("inf")

    def hear(self, channel: bytes, text: bytes) -> None:
        """One message, in the order of the stream."""
        if channel == OTHER:
            self.gaps.add(json.loads(text)["partition"])
            return
        key, event = channel.removeprefix(KEYS), text.decode()
        self.events[key, event].append(self.loop.clock.now)
        if event not in (ARRIVED, DEPARTED, "expired"):
            self.heard[key] += 1

    # -- arrivals

    def look(self) -> None:
        """See which rows name this member now."""
        assert self._node is not None
        me = self._node.tablets.me
        for partition, row in enumerate(self._node.rows):
            if not row.version:
                continue
            named = me in row.replicas
            if named and self._named.get(partition) is False:
                self.arrivals[partition] = self.loop.clock.now
            elif not named:
                self.arrivals.pop(partition, None)
            self._named[partition] = named

    def check_arrivals(self, kept: Iterable[tuple[bytes, int, float]]) -> int:
        """Raise Violation when an entry that was there arrived, and nothing was heard of it."""
        now, compared = self.loop.clock.now, 0
        for key, partition, written in kept:
            at = self.arrivals.get(partition)
            if at is None or self.since > at - 2 * LOOK_SECONDS or at + LATE_SECONDS > now:
                continue
            if written > at - LATE_SECONDS:
                continue
            heard = self.events[key, ARRIVED]
            if not any(each >= at - 2 * LOOK_SECONDS for each in heard):
                text = f"{self.process.place} says nothing of {key!r}, which came with partition {partition}"
                raise Violation(ARRIVALS, f"{text} by {at:.3f}; heard at {heard}", key=key)
            compared += 1
        return compared

    # -- expirations

    def check_expired(self, expired: Iterable[tuple[bytes, int, float, float]]) -> int:
        """Raise Violation when an entry expired, and there was no event and no gap."""
        compared = 0
        for key, partition, began, over in expired:
            if self.since > began or partition in self.gaps or over + LATE_SECONDS > self.loop.clock.now:
                continue
            if not any(self.events[key, event] for event in REMOVED):
                raise Violation(EXPIRATIONS, f"{self.process.place} did not hear of {key!r}", key=key)
            compared += 1
        return compared


class RespSubscribers(Subscribers):
    """The same at each member, on Redis connections."""

    place = "client-subscribers"

    def make(self, machine: Machine, process: MemberProcess, node: Node) -> Subscriber:
        of = len(self._of) + 1, process, node, self.departed
        return RespSubscriber(*of, loop=self._loop, address=machine.address)

    def check_clients(self, clients: Iterable[ExpiringClient]) -> Counter[str]:
        """Return how often each rule was checked."""
        checked: Counter[str] = Counter()
        partition = self._keys.partition
        kept = [(key, partition(key), at) for each in clients for key, at in each.kept.items()]
        expired = [(key, partition(key), *times) for each in clients for key, *times in each.expired]
        for listener in self.living():
            assert isinstance(listener, RespSubscriber)
            checked[ARRIVALS] += listener.check_arrivals(kept)
            checked[EXPIRATIONS] += listener.check_expired(expired)  # type: ignore[arg-type]
        return checked
