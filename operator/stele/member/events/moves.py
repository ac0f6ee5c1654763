"""EntryMoved: which entries a new copy brought to this member, and which left it with its replica.

`arrived` follows the row that names this member, and may repeat. `departed` follows the deletion of the
replica, from the generation in quarantine, and never repeats: the superblock says that it was reported before
it is. So a member that dies in between reports a part, or nothing. Both are read in pages, one at a time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from stele.core.formats import EVENTS
from stele.core.kv.notifications import ARRIVED, DEPARTED, enabled
from stele.core.table.table import Partition
from stele.member import limits
from stele.member.background import Background
from stele.member.events.notifier import Notifier
from stele.member.replication import passes
from stele.member.replication.applied import until_applied
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.wire import peer
from stele.wire.storage.keys import is_service, split_user, tablet_range

NO_POSITION = -1
"""In place of the last index, for events that are not those of operations."""

EntriesMoved = Callable[[int, str, list[bytes], bool], Awaitable[None]]
"""Receives (partition, keyspace, keys, whether they arrived)."""


@dataclass(eq=False)
class EntryMoves:
    """`_services` are informed of each page, after clients."""

    _tablets: TabletStore
    _metadata: MetadataStore
    _notifier: Notifier
    _services: EntriesMoved
    _has_services: bool
    _background: Background
    _departures_at: float = 0.0
    _work: deque[tuple[Replica, int, str]] = field(default_factory=deque)
    _working: bool = False

    def __post_init__(self) -> None:
        self._departures_at = self._background.now() + limits.DEPARTURES_AFTER_SECONDS

    @property
    def wanted(self) -> bool:
        """Whether anybody may be informed, and all members may read what is recorded for it."""
        table = self._tablets.table
        settings = table.keyspaces.catalog.keyspaces.values()
        return table.features >= EVENTS and (
            self._has_services or any("M" in each.notify for each in settings)
        )

    def row_changed(self, partition: int, before: Partition, row: Partition) -> None:
        """Report what a copy brought, once the row that names this member is published."""
        me = self._tablets.me
        replica = self._tablets.replicas.get(partition)
        if me in row.replicas and me not in before.replicas and before.version and replica is not None:
            self._add(replica, replica.generation, ARRIVED)

    def every_second(self) -> None:
        """Report what left with replicas that were deleted, once those who listen may have connected."""
        if self._background.now() < self._departures_at:
            return
        for replica in passes.quarantined(self._tablets.replicas):
            block = replica.block
            if block is not None and any(each.unreported for each in block.quarantined):
                self._background.spawn(self._departed(replica))

    async def _departed(self, replica: Replica) -> None:
        async with replica.lock:
            block = replica.block
            left = [] if block is None else [each for each in block.quarantined if each.unreported]
            if block is None or not left:
                return
            reported = tuple(msgspec.structs.replace(each, unreported=False) for each in block.quarantined)
            await self._metadata.save_block(replica, msgspec.structs.replace(block, quarantined=reported))
        for each in left:
            self._add(replica, each.generation, DEPARTED)

    def _add(self, replica: Replica, generation: int, event: str) -> None:
        if self.wanted:
            self._work.append((replica, generation, event))
            if not self._working:
                self._working = True
                self._background.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._work:
                replica, generation, event = self._work.popleft()
                await self._report(replica, generation, event)
        finally:
            self._working = False

    async def _report(self, replica: Replica, generation: int, event: str) -> None:
        if event == ARRIVED:
            # The last operations of the log may be applied after the row came.
            await until_applied(replica)
        at, end = tablet_range(replica.partition, generation)
        while page := self._tablets.engine.scan(at, end, limits.SCAN_KEYS_MAX, limits.SCAN_BYTES):
            for keyspace, keys in _by_keyspace(page):
                self._notify(replica.partition, keyspace, keys, event)
                await self._services(replica.partition, keyspace.decode(), keys, event == ARRIVED)
            at = page[-1][0] + b"\0"
            await asyncio.sleep(limits.ENTRIES_MOVED_SECONDS)

    def _notify(self, partition: int, keyspace: bytes, keys: list[bytes], event: str) -> None:
        kinds = enabled(self._tablets.table.keyspaces.settings_of(keyspace).notify, event)
        if kinds:
            events = [(0, keyspace, key, event, kinds) for key in keys]
            self._notifier.announce(peer.EventBatch(partition, NO_POSITION, False, events))


def _by_keyspace(page: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Return the entries of users, without those of the partition itself and of services."""
    entries = [split for data_key, _ in page if (split := split_user(data_key)) and not is_service(split[0])]
    for keyspace, some in groupby(entries, key=lambda entry: entry[0]):
        yield keyspace, [key for _, key in some]
