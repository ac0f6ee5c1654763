"""What this member hears of its owners, and of itself: events of keys for the subscribers here.

The position in the log of each partition is known here, so any new owner of a partition goes on after it:
after a move or a promotion, and after a session that ended. Events that come twice are dropped by index.
Where some may be missing, `__stele__:gap` names the partition.

Clients of the plain port hear of all partitions; those of the cluster port, as in Redis Cluster, of the
partitions that this member owns.
"""

import asyncio
import json
from collections.abc import Mapping

from stele.core.formats import EVENTS
from stele.core.kv.cluster_map import slots_of_partition
from stele.core.kv.notifications import GAP_CHANNEL, PARTITIONS_CHANNEL, messages
from stele.core.table.table import Partition
from stele.member import limits
from stele.member.events.broadcast import Broadcast
from stele.member.events.notifier import Notifier
from stele.member.replication.links import Link
from stele.member.replication.table_cache import TableCache
from stele.wire import peer

UNKNOWN = -1


class Feed:
    """Implements `pubsub.EventSource`. `gaps` counts gaps.

    `_positions` has the last index whose events are known here, by partition; a partition is `_confirmed`
    once its owner sends events after that.
    """

    def __init__(
        self, table: TableCache, links: Mapping[int, Link], notifier: Notifier, broadcast: Broadcast
    ) -> None:
        self._table = table
        self._links = links
        self._notifier = notifier
        self._broadcast = broadcast
        self._here = self._everywhere = False
        self._positions: dict[int, int] = {}
        self._confirmed: set[int] = set()
        self._sessions: dict[int, int] = {}
        self._ask: dict[int, None] = {}
        self._lost: set[int] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self.gaps = 0

    # -- what subscribers want

    def notify_of(self, keyspace: bytes) -> str:
        return self._table.keyspaces.settings_of(keyspace).notify

    async def listen(self, *, here: bool, everywhere: bool) -> None:
        """Hear of own partitions, or of all; return once the owners send what happens from now on."""
        if not here:
            return
        widened = not self._here or (everywhere and not self._everywhere)
        self._here, self._everywhere = here, everywhere or self._everywhere
        if widened:
            self._notifier.listen(None, [])
            self._ask.update(dict.fromkeys(p for p in self._wanted() if p not in self._confirmed))
            self.tick()
        if not self._complete:
            await self._until_complete()

    def every_second(self) -> None:
        """Hear of nothing any more when the last subscriber has gone."""
        self._notifier.every_second()
        if self._here and not self._broadcast.pubsub.wanted[0]:
            self._stop()

    def _stop(self) -> None:
        self._here = self._everywhere = False
        self._notifier.stop(None)
        for link in self._links.values():
            if link.ready and link.format >= EVENTS:
                link.send(peer.Listen([], stop=True))
        for known in (self._positions, self._confirmed, self._sessions, self._ask, self._lost):
            known.clear()

    def _wanted(self) -> list[int]:
        me = self._table.me
        owners = enumerate(row.owner for row in self._table.rows)
        return [p for p, owner in owners if owner is not None and (self._everywhere or owner == me)]

    @property
    def _complete(self) -> bool:
        return self._confirmed.issuperset(self._wanted())

    async def _until_complete(self) -> None:
        """Wait, within LISTEN_SECONDS_MAX; what happened until a later confirmation is a gap."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter, limits.LISTEN_SECONDS_MAX)
        except TimeoutError:
            self._waiters.remove(waiter)
            self._lost.update(p for p in self._wanted() if p not in self._confirmed)

    def _check_complete(self) -> None:
        if self._waiters and self._complete:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    # -- what owners are asked

    def row_changed(self, partition: int, before: Partition, row: Partition) -> None:
        """Ask the owner of a newer row, and say that there is another one."""
        if before.owner != row.owner:
            self._say_partition(partition, before, row)
            if row.owner not in (None, self._table.me) and partition < self._table.main:
                self._broadcast.end_slots(slots_of_partition(partition, self._table.main))
        if not self._here:
            return
        self._confirmed.discard(partition)
        if self._everywhere or row.owner == self._table.me:
            self._ask[partition] = None
        if not self._everywhere and row.owner != before.owner:
            self._positions.pop(partition, None)
        if partition not in self._positions:
            self._lost.add(partition)

    def tick(self) -> None:
        """Ask owners after a new session or row, and say what was lost."""
        self._notifier.tick()
        if not self._here:
            return
        if self._everywhere:
            self._ask_new_sessions()
        by_owner: dict[int, list[peer.Position]] = {}
        for partition in self._ask:
            row = self._table.rows[partition]
            if row.owner is not None:
                position = partition, row.version, self._positions.get(partition, UNKNOWN)
                by_owner.setdefault(row.owner, []).append(position)
        for owner, positions in by_owner.items():
            if self._ask_owner(owner, positions):
                for partition, *_ in positions:
                    self._ask.pop(partition, None)
        for partition in [each for each in self._lost if each in self._confirmed]:
            if self._say_gap(partition):
                self._lost.discard(partition)

    def _ask_new_sessions(self) -> None:
        for member, link in self._links.items():
            if link.ready and self._sessions.get(member) != link.sessions:
                self._sessions[member] = link.sessions
                if link.format >= EVENTS:
                    link.send(peer.Listen([]))
                owned = [p for p, row in enumerate(self._table.rows) if row.owner == member]
                self._confirmed.difference_update(owned)
                self._ask.update(dict.fromkeys(owned))

    def _ask_owner(self, owner: int, positions: list[peer.Position]) -> bool:
        if owner == self._table.me:
            self._notifier.listen(None, positions)
            return True
        link = self._links.get(owner)
        if link is None or not link.ready or link.format < EVENTS or not self._everywhere:
            return False
        link.send(peer.Listen(positions))
        return True

    # -- what owners say

    def on_events(self, link: Link, message: peer.Events) -> None:
        """Take events of another member's partitions."""
        if self._everywhere:
            self._take(message, own=False)

    def on_own_events(self, message: peer.Events) -> None:
        """Take events of this member's partitions."""
        self._take(message, own=True)

    def _take(self, message: peer.Events, *, own: bool) -> None:
        for batch in message.batches:
            partition = batch.partition
            if batch.last < 0:
                self._say_moved(batch, own=own)
                continue
            known = self._positions.get(partition, UNKNOWN)
            if batch.gap:
                self._lost.add(partition)
                known = min(known, batch.last)
            for index, keyspace, key, event, kinds in batch.events:
                if index > known:
                    self._say(partition, messages(keyspace, key, event, kinds), own=own)
            self._positions[partition] = batch.last if batch.gap else max(known, batch.last)
            self._confirmed.add(partition)
        self._check_complete()

    def _say_moved(self, batch: peer.EventBatch, *, own: bool) -> None:
        """Say events that have no place in the log."""
        for _, keyspace, key, event, kinds in batch.events:
            for channel, text in messages(keyspace, key, event, kinds):
                self._broadcast.enqueue(channel, text, own=own)

    def _say(self, partition: int, found: list[tuple[bytes, bytes]], *, own: bool) -> None:
        for channel, text in found:
            if not self._broadcast.enqueue(channel, text, own=own):
                self._lost.add(partition)

    def _say_gap(self, partition: int) -> bool:
        self.gaps += 1
        text = json.dumps({"partition": partition}).encode()
        return self._broadcast.enqueue(GAP_CHANNEL, text, own=True)

    def _say_partition(self, partition: int, before: Partition, row: Partition) -> None:
        """Say that a partition has another owner, to all clients of this member."""
        names = [self._name(before.owner), self._name(row.owner)]
        said = {"partition": partition, "from": names[0], "to": names[1], "version": row.version}
        self._broadcast.enqueue(PARTITIONS_CHANNEL, json.dumps(said).encode(), own=True)

    def _name(self, member: int | None) -> str | None:
        info = None if member is None else self._table.members.get(member)
        return None if info is None else info.name
