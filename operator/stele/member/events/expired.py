"""Informs services of clients' entries that expired at this member, once their removal is applied.

At most once: what waits here when the partition gets another owner, or when the member ends, is not reported.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from stele.core.tablet.log import OpId
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.wire.storage.keys import is_service
from stele.wire.storage.log_record import Change

ENTRY_BYTES = 64
"""Bytes of memory that Python uses per key that waits, beyond its content."""

EntriesExpired = Callable[[int, str, list[bytes]], Awaitable[None]]
"""Receives (partition, keyspace, keys)."""


@dataclass(frozen=True, slots=True)
class _Removed:
    partition: int
    at: OpId
    keys: dict[bytes, list[bytes]]
    size: int


@dataclass(eq=False)
class ExpiredEntries:
    """`_removed` waits for its operation to be applied, `_applied` for the services."""

    _tablets: TabletStore
    _services: EntriesExpired
    _has_services: bool
    _background: Background
    _removed: deque[_Removed] = field(default_factory=deque)
    _applied: deque[_Removed] = field(default_factory=deque)
    _held_bytes: int = 0
    _working: bool = False

    def removed(self, replica: Replica, removals: Sequence[Change]) -> None:
        """Note the last operation of a tablet, which removes these entries."""
        keys: dict[bytes, list[bytes]] = {}
        for each in removals if self._has_services else ():
            if not is_service(each.keyspace):
                keys.setdefault(each.keyspace, []).append(each.key)
        size = sum(len(key) + ENTRY_BYTES for some in keys.values() for key in some)
        if keys and self._held_bytes + size <= limits.EXPIRED_BYTES_MAX:
            self._held_bytes += size
            self._removed.append(_Removed(replica.partition, replica.tablet.log.last, keys, size))

    def every_second(self) -> None:
        """Report what is applied, and forget what this member is not the owner of any more."""
        waiting, self._removed = self._removed, deque()
        for each in waiting:
            replica = self._tablets.replicas.get(each.partition)
            owner = None if replica is None else replica.owner
            if replica is None or owner is None or owner.term != each.at[0]:
                self._held_bytes -= each.size
            elif replica.tablet.log.applied >= each.at:
                self._applied.append(each)
            else:
                self._removed.append(each)
        if self._applied and not self._working:
            self._working = True
            self._background.spawn(self._report())

    async def _report(self) -> None:
        try:
            while self._applied:
                each = self._applied.popleft()
                self._held_bytes -= each.size
                for keyspace, keys in each.keys.items():
                    for at in range(0, len(keys), limits.SCAN_KEYS_MAX):
                        some = keys[at : at + limits.SCAN_KEYS_MAX]
                        await self._services(each.partition, keyspace.decode(), some)
        finally:
            self._working = False
