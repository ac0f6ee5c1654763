"""What clients publish, sent to all members: at most once, as in Redis.

A message is dropped for a member that is not connected, that speaks an older format, or that reads too
slowly, and at a member whose subscribers take longer than messages arrive.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stele.core.formats import EVENTS
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.links import Inbound, Link
from stele.member.resp.pubsub import PubSub
from stele.member.turn_budget import TurnBudget
from stele.wire import peer


@dataclass(eq=False)
class Broadcast:
    """`pubsub` has the subscribers of this member. `dropped` counts messages, once for each member."""

    _links: Mapping[int, Link]
    _background: Background
    _turn_budget: TurnBudget
    dropped: int = 0
    _arrived: deque[tuple[bytes, bytes, bool, bool]] = field(default_factory=deque)
    _arrived_bytes: int = 0
    _delivering: bool = False

    def __post_init__(self) -> None:
        self.pubsub = PubSub(self._turn_budget, self._forward)

    def _forward(self, channel: bytes, message: bytes, sharded: bool) -> None:
        published = peer.Publish(channel, message, sharded)
        for link in self._links.values():
            if link.full or link.format < EVENTS:
                self.dropped += 1
            else:
                link.send(published, _size(channel, message))

    def on_publish(self, sender: Inbound, message: peer.Publish) -> None:
        """Take what a client of another member published."""
        self.enqueue(message.channel, message.message, sharded=message.sharded)

    def enqueue(self, channel: bytes, message: bytes, *, own: bool = True, sharded: bool = False) -> bool:
        """Have a message delivered to the subscribers of this member, after those before it.

        Subscribers of the cluster port get only what is this member's `own`. Returns False when it is
        dropped.
        """
        if not self.pubsub.subscribed:
            return True
        size = _size(channel, message)
        if self._arrived_bytes + size > limits.PUBLISH_QUEUE_BYTES_MAX:
            self.dropped += 1
            return False
        self._arrived.append((channel, message, own, sharded))
        self._arrived_bytes += size
        if not self._delivering:
            self._delivering = True
            self._background.spawn(self._deliver())
        return True

    def end_slots(self, slots: Iterable[int]) -> None:
        """End subscriptions to sharded channels of slots that have moved to another member."""
        if self.pubsub.subscribed:
            self._background.spawn(self.pubsub.end_slots(slots))

    async def _deliver(self) -> None:
        try:
            while self._arrived:
                channel, message, own, sharded = self._arrived.popleft()
                self._arrived_bytes -= _size(channel, message)
                await self.pubsub.deliver(channel, message, own=own, sharded=sharded)
        finally:
            self._delivering = False


def _size(channel: bytes, message: bytes) -> int:
    return len(channel) + len(message) + limits.REQUEST_OVERHEAD_BYTES
