"""Which clients of this member listen to which channels, and how a message reaches them.

Messages are delivered one after the other, so all subscribers see them in one order. Comparing a channel with
patterns, and queueing for many clients, is work of several turns of the event loop. Delivery is at most once:
a client that reads too slowly is closed (`push`).
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Protocol

from stele.core.kv.acl import User
from stele.core.kv.keyslot import slot_of
from stele.core.kv.notifications import event_of, may_match
from stele.member.resp.match import Pattern, read_pattern
from stele.member.resp.push import PushQueue
from stele.member.turn_budget import TurnBudget
from stele.wire.resp import encode_push

SUBSCRIPTIONS_MAX = 10_000
PATTERNS_MAX = 1_000
"""Channels and patterns of one connection."""

MEMBER_PATTERNS_MAX = 4_096
"""Different patterns of all connections of a member: each message is compared with all of them."""

SUBSCRIPTIONS_BYTES_MAX = 64 * 1024 * 1024
"""Names of all subscriptions of a member, with `SUBSCRIPTION_BYTES` for each."""

SUBSCRIPTION_BYTES = 512
"""Bytes of memory that Python uses per subscription, beyond its name."""

RECEIVERS_PER_ENTRY = 8
"""Clients for which a message is queued in the time of one entry of a turn."""

RECEIVERS_AT_ONCE = 1_024


class Connection(Protocol):
    """Where messages to a client wait."""

    @property
    def pushes(self) -> PushQueue: ...

    def take_pushes(self) -> bytes: ...


class Subscriptions:
    """What one connection listens to: names in the order of their subscription."""

    __slots__ = ("channels", "patterns", "shard_channels")

    def __init__(self) -> None:
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.shard_channels: dict[bytes, None] = {}

    def __bool__(self) -> bool:
        return bool(self.channels or self.patterns or self.shard_channels)

    def count(self, *, sharded: bool) -> int:
        """Return the number that replies have: Redis counts sharded channels apart from the others."""
        return len(self.shard_channels) if sharded else len(self.channels) + len(self.patterns)

    def facts(self) -> dict[str, str]:
        """Return the fields of CLIENT LIST."""
        kinds = {"sub": self.channels, "psub": self.patterns, "ssub": self.shard_channels}
        return {name: str(len(names)) for name, names in kinds.items()}


class Subscriber(Protocol):
    """The part of a client's session that is used here."""

    id: int
    resp3: bool
    cluster: bool
    guard: User | None
    subscriptions: Subscriptions | None

    @property
    def connection(self) -> Connection | None: ...

    def update_mode(self) -> None: ...


Subscribers = dict[int, Subscriber]
"""By the id of their connection."""


class SubscriptionRefusedError(Exception):
    """Subscriptions exceed a limit, or the connection has ended; nothing was changed."""


class EventSource(Protocol):
    """Where events of keys come from."""

    async def listen(self, *, here: bool, everywhere: bool) -> None:
        """Deliver events of this member's partitions, or of all, from its return on."""
        ...

    def notify_of(self, keyspace: bytes) -> str:
        """Return the flags of the events that a keyspace publishes."""
        ...


class PubSub:
    """The subscriptions of all connections of a member.

    `forward` sends a message of a client to the other members, which `deliver` it to theirs. Names of sharded
    channels are apart from those of others.
    """

    def __init__(
        self,
        turn_budget: TurnBudget,
        forward: Callable[[bytes, bytes, bool], None] = lambda channel, message, sharded: None,
    ) -> None:
        self._turn_budget = turn_budget
        self._forward = forward
        self._source: EventSource | None = None
        self._listening = {False: 0, True: 0}
        self._channels: dict[bytes, Subscribers] = {}
        self._shard_channels: dict[bytes, Subscribers] = {}
        self._slots: dict[int, dict[bytes, None]] = {}
        self._patterns: dict[bytes, tuple[Pattern, Subscribers]] = {}
        self._order = asyncio.Lock()
        self._held_bytes = 0
        self.delivered = 0

    @property
    def subscribed(self) -> bool:
        """Whether anybody listens to anything."""
        return bool(self._channels or self._patterns or self._shard_channels)

    # -- events of keys

    def connect(self, source: EventSource) -> None:
        """Take events from a source from now on."""
        self._source = source

    async def listen(self) -> None:
        """Return once events arrive that somebody has subscribed to."""
        if self._source is not None:
            here, everywhere = self.wanted
            await self._source.listen(here=here, everywhere=everywhere)

    @property
    def wanted(self) -> tuple[bool, bool]:
        """Whether events of this member's partitions are subscribed to, and whether those of all are."""
        return sum(self._listening.values()) > 0, self._listening[False] > 0

    def notify_of(self, keyspace: bytes) -> str:
        """Return the flags of the events that a keyspace publishes."""
        return "" if self._source is None else self._source.notify_of(keyspace)

    def _count(
        self, subscriber: Subscriber, name: bytes, by: int, *, pattern: bool = False, sharded: bool = False
    ) -> None:
        """Count a subscription that began or ended."""
        self._held_bytes += by * (SUBSCRIPTION_BYTES + len(name))
        if not sharded and may_match(name, pattern=pattern):
            self._listening[subscriber.cluster] += by

    # -- subscriptions

    def subscribe(
        self, subscriber: Subscriber, channels: Iterable[bytes], *, sharded: bool = False
    ) -> list[int]:
        """Subscribe to channels, and return the number of subscriptions after each.

        Raises SubscriptionRefusedError.
        """
        mine = self._of(subscriber)
        own = mine.shard_channels if sharded else mine.channels
        channels = list(channels)
        self._check_room(own, channels, SUBSCRIPTIONS_MAX)
        counts: list[int] = []
        for channel in channels:
            if channel not in own:
                own[channel] = None
                self._subscribers(sharded).setdefault(channel, {})[subscriber.id] = subscriber
                if sharded:
                    self._slots.setdefault(slot_of(channel), {})[channel] = None
                self._count(subscriber, channel, 1, sharded=sharded)
            counts.append(mine.count(sharded=sharded))
        subscriber.update_mode()
        return counts

    def _subscribers(self, sharded: bool) -> dict[bytes, Subscribers]:
        return self._shard_channels if sharded else self._channels

    async def subscribe_patterns(self, subscriber: Subscriber, patterns: Iterable[bytes]) -> list[int]:
        """As `subscribe`. Raises ValueError for a pattern that is too long."""
        compiled = {each: await self._compiled(each) for each in dict.fromkeys(patterns)}
        patterns, mine = list(patterns), self._of(subscriber)
        self._check_room(mine.patterns, patterns, PATTERNS_MAX)
        if len(self._patterns.keys() | compiled.keys()) > MEMBER_PATTERNS_MAX:
            text = f"clients of this member subscribe to {MEMBER_PATTERNS_MAX} patterns, which is the limit"
            raise SubscriptionRefusedError(f"{text}; subscribe to channels, or connect to another member")
        counts: list[int] = []
        for pattern in patterns:
            if pattern not in mine.patterns:
                mine.patterns[pattern] = None
                self._patterns.setdefault(pattern, (compiled[pattern], {}))[1][subscriber.id] = subscriber
                self._count(subscriber, pattern, 1, pattern=True)
            counts.append(mine.count(sharded=False))
        subscriber.update_mode()
        return counts

    async def _compiled(self, pattern: bytes) -> Pattern:
        known = self._patterns.get(pattern)
        return await read_pattern(pattern, self._turn_budget) if known is None else known[0]

    def unsubscribe(self, subscriber: Subscriber, channel: bytes, *, sharded: bool = False) -> int:
        """Remove a subscription, if there is one. Returns how many are left."""
        mine = subscriber.subscriptions
        if mine is None:
            return 0
        own, all_subscribers = mine.shard_channels if sharded else mine.channels, self._subscribers(sharded)
        if channel in own:
            del own[channel]
            self._count(subscriber, channel, -1, sharded=sharded)
            if not _remove(all_subscribers[channel], subscriber):
                del all_subscribers[channel]
                if sharded:
                    self._forget_slot(channel)
        subscriber.update_mode()
        return mine.count(sharded=sharded)

    def _forget_slot(self, channel: bytes) -> None:
        slot = slot_of(channel)
        del self._slots[slot][channel]
        if not self._slots[slot]:
            del self._slots[slot]

    def unsubscribe_pattern(self, subscriber: Subscriber, pattern: bytes) -> int:
        """As `unsubscribe`."""
        mine = subscriber.subscriptions
        if mine is None:
            return 0
        if pattern in mine.patterns:
            del mine.patterns[pattern]
            self._count(subscriber, pattern, -1, pattern=True)
            _remove(self._patterns[pattern][1], subscriber) or self._patterns.pop(pattern)
        subscriber.update_mode()
        return mine.count(sharded=False)

    async def end_slots(self, slots: Iterable[int]) -> None:
        """End subscriptions of the cluster port to sharded channels of slots that another member owns.

        As in Redis, their clients get `sunsubscribe`.
        """
        channels = [channel for slot in slots for channel in self._slots.get(slot, ())]
        for channel in channels:
            subscribers = self._shard_channels.get(channel, {})
            for each in [each for each in subscribers.values() if each.cluster]:
                await self._turn_budget.run(1, partial(self._end, each, channel))

    def _end(self, subscriber: Subscriber, channel: bytes) -> None:
        mine = subscriber.subscriptions
        if subscriber.connection is not None and mine is not None and channel in mine.shard_channels:
            count = self.unsubscribe(subscriber, channel, sharded=True)
            message = encode_push([b"sunsubscribe", channel, count], subscriber.resp3)
            subscriber.connection.pushes.send(message)

    def leave(self, subscriber: Subscriber) -> None:
        """Remove all subscriptions of a connection."""
        mine = subscriber.subscriptions
        if mine is not None:
            for channel in list(mine.channels):
                self.unsubscribe(subscriber, channel)
            for pattern in list(mine.patterns):
                self.unsubscribe_pattern(subscriber, pattern)
            for channel in list(mine.shard_channels):
                self.unsubscribe(subscriber, channel, sharded=True)

    def _of(self, subscriber: Subscriber) -> Subscriptions:
        """Return the connection's subscriptions, which end with it."""
        if subscriber.connection is None:
            raise SubscriptionRefusedError("the connection has ended")
        if subscriber.subscriptions is None:
            subscriber.subscriptions = Subscriptions()
            subscriber.connection.pushes.on_close.append(partial(self.leave, subscriber))
        return subscriber.subscriptions

    def _check_room(self, mine: dict[bytes, None], names: list[bytes], most: int) -> None:
        new = set(names) - mine.keys()
        if len(mine) + len(new) > most:
            text = f"{len(mine) + len(new)} subscriptions of this connection exceed the limit of {most}"
            raise SubscriptionRefusedError(f"{text}; use several connections")
        size = self._held_bytes + sum(map(len, new)) + SUBSCRIPTION_BYTES * len(new)
        if size > SUBSCRIPTIONS_BYTES_MAX:
            text = f"subscriptions of {size} bytes of all clients of this member exceed the limit of"
            raise SubscriptionRefusedError(f"{text} {SUBSCRIPTIONS_BYTES_MAX}; connect to another member")

    # -- messages

    async def publish(self, channel: bytes, message: bytes, *, sharded: bool = False) -> int:
        """Send a message to all subscribers of the cluster; return how many of this member were reached."""
        self._forward(channel, message, sharded)
        return await self.deliver(channel, message, sharded=sharded)

    async def deliver(
        self, channel: bytes, message: bytes, *, own: bool = True, sharded: bool = False
    ) -> int:
        """Send a message to the subscribers of this member, and return how many there were.

        Those of the cluster port get only what is this member's `own`.
        """
        if not self.subscribed:
            return 0
        async with self._order:
            if sharded:
                items = [b"smessage", channel, message]
                count = await self._send(self._shard_channels.get(channel), items, own)
            else:
                count = await self._send(self._channels.get(channel), [b"message", channel, message], own)
                for pattern, (compiled, subscribers) in list(self._patterns.items()):
                    if await compiled.matches(channel):
                        items = [b"pmessage", pattern, channel, message]
                        count += await self._send(subscribers, items, own)
        self.delivered += count
        return count

    async def _send(self, subscribers: Subscribers | None, items: list[bytes], own: bool) -> int:
        if not subscribers:
            return 0
        left, count = iter([each for each in subscribers.values() if own or not each.cluster]), 0
        encoded: dict[bool, bytes] = {}
        while some := list(islice(left, RECEIVERS_AT_ONCE)):
            entries = 1 + len(some) // RECEIVERS_PER_ENTRY
            queue = partial(_queue, some, subscribers, items, encoded)
            count += await self._turn_budget.run(entries, queue)
        return count

    # -- what PUBSUB and INFO show

    async def channels(self, pattern: bytes, *, sharded: bool) -> list[bytes]:
        """Return the channels that match a pattern. Raises ValueError when that is too long."""
        compiled = await read_pattern(pattern, self._turn_budget)
        return [channel for channel in list(self._subscribers(sharded)) if await compiled.matches(channel)]

    def subscribers(self, channel: bytes, *, sharded: bool = False) -> int:
        return len(self._subscribers(sharded).get(channel, ()))

    @property
    def patterns(self) -> int:
        """Number of different patterns."""
        return len(self._patterns)

    def facts(self) -> dict[str, str | int]:
        """Return the fields of INFO."""
        return {
            "pubsub_channels": len(self._channels),
            "pubsub_patterns": len(self._patterns),
            "pubsubshard_channels": len(self._shard_channels),
        }


def _remove(subscribers: Subscribers, subscriber: Subscriber) -> bool:
    """Remove a subscriber; return whether others are left."""
    subscribers.pop(subscriber.id, None)
    return bool(subscribers)


def _queue(
    receivers: list[Subscriber], subscribers: Subscribers, items: list[bytes], encoded: dict[bool, bytes]
) -> int:
    """Queue a message, encoded once for each protocol, and return for how many clients.

    Receivers that have unsubscribed since their list was made get nothing, and no user gets events of keys
    that are not for it.
    """
    count = 0
    event = event_of(items[-2], items[-1]) if items[0] != b"smessage" else None
    for subscriber in receivers:
        if event is not None and subscriber.guard is not None and not subscriber.guard.may_know(*event):
            continue
        if subscriber.connection is not None and subscriber.id in subscribers:
            if subscriber.resp3 not in encoded:
                encoded[subscriber.resp3] = encode_push(items, subscriber.resp3)
            subscriber.connection.pushes.send(encoded[subscriber.resp3])
            count += 1
    return count
