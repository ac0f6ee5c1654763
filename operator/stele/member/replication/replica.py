"""One tablet: its files, its data, and the requests waiting for it."""

import asyncio
from collections import deque

from stele.core.control.commands import OpId
from stele.core.kv.dedup import RememberedClients
from stele.core.kv.two_phase import Intent, Locks, TxId
from stele.core.table.table import Replicas
from stele.core.tablet.acknowledged import Acknowledged
from stele.core.tablet.follower import Tablet
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.log import Log
from stele.core.tablet.log import OpId as Position
from stele.core.tablet.owner import Learner, Owner
from stele.member.replication.request import Request
from stele.wire.storage import keys
from stele.wire.storage.volume import Consensus, Superblock
from stele.wire.two_phase import INTENTS

Pending = tuple[tuple[bytes, int] | None, int]
"""(what will be stored under a key: (value, expire_at_ms) or None, index of the operation)."""

PROMISES_LOST = Consensus(promised=2**31 - 1)
"""For a tablet whose consensus metadata is damaged or missing: offline until a row no longer names it."""


class Replica:
    """A tablet's state machine `tablet`, and the facts that it needs.

    `records` are operations that are logged but not applied, by index. For the owner, `pending` is the result
    of the newest such operation for each data key, and `clients` the remembered clients (`core.kv.dedup`).
    `flushed` is the last index whose data survives a crash. `owner_commit` is the owner's last commit index,
    and `fetched_at` when a log's tail was last requested. `broken` is why the tablet is offline, if so.
    `loads` are the bulk loads in the log, by index; while one is `ingesting`, nothing is applied. `clearing`
    is the index of the last operation that this owner logged to clear a keyspace, until it is applied.
    `early` are the requests that may be answered before the commit, in order of the log; `acknowledged` are
    the operations of those that were. `locks` are those of transactions across
    partitions, for the owner, None while there are none; `unlocked` says that some were released, so that
    requests that wait for one may run. `copy_result` is the row that the copy to this member makes, for
    reports only; empty after a restart. `seen_block`, `seen_promised`, `seen_at` and `seen_bytes` are what
    `passes` saw of it last.
    """

    __slots__ = (
        "acknowledged",
        "block",
        "broken",
        "busy",
        "clearing",
        "clients",
        "copy_result",
        "early",
        "fetched_at",
        "flushed",
        "ingesting",
        "keyspaces",
        "loads",
        "lock",
        "locks",
        "meta",
        "owner",
        "owner_commit",
        "owner_row",
        "owner_since",
        "partition",
        "pending",
        "prefixes",
        "promising",
        "records",
        "seen_at",
        "seen_block",
        "seen_bytes",
        "seen_promised",
        "tablet",
        "unlocked",
        "waiters",
        "waiting_for_lease",
    )

    def __init__(
        self,
        tablet: Tablet,
        block: Superblock | None,
        meta: Consensus,
        keyspaces: dict[bytes, tuple[int, int]] | None = None,
        broken: str = "",
    ) -> None:
        self.partition = tablet.partition
        self.tablet = tablet
        self.block = block
        self.meta = meta
        self.owner: Owner | None = None
        self.owner_since = 0
        self.owner_row = 0
        self.owner_commit = 0
        self.promising = False
        self.records: dict[int, bytes] = {}
        self.pending: dict[bytes, Pending] = {}
        self.clients: RememberedClients | None = None
        self.waiters: deque[Request] = deque()
        self.early: deque[Request] = deque()
        self.acknowledged = Acknowledged()
        self.waiting_for_lease: list[Request] = []
        self.loads: dict[int, str] = {}
        self.ingesting = False
        self.clearing = 0
        self.locks: Locks | None = None
        self.unlocked = False
        self.keyspaces = keyspaces or {}
        self.prefixes: dict[bytes, bytes] = {}
        self.lock = asyncio.Lock()
        self.flushed = tablet.log.applied[1]
        self.broken = broken
        self.fetched_at = 0.0
        self.busy = False
        self.copy_result: Replicas = ()
        self.seen_block: Superblock | None = None
        self.seen_promised = 0
        self.seen_at: tuple[Position, Position] = ((0, 0), (0, 0))
        self.seen_bytes = 0

    @property
    def owes(self) -> bool:
        """Whether requests wait for an answer."""
        return bool(self.waiters or self.early or self.waiting_for_lease)

    @property
    def serves(self) -> bool:
        """Whether this member owns the tablet, and answers requests for it."""
        return self.owner is not None and self.owner.serving

    @property
    def state(self) -> TabletState | None:
        """None when there is no tablet."""
        return None if self.block is None else self.block.state

    @property
    def promises_lost(self) -> bool:
        """Whether the promises are unknown. They were for a row older than one without this member."""
        return self.meta.promised == PROMISES_LOST.promised

    @property
    def ready(self) -> bool:
        """Whether the tablet takes part in replication."""
        return self.state is TabletState.READY and not self.busy and not self.broken

    @property
    def copy_begun(self) -> bool:
        """Whether the superblock, which is written after the copy's record, includes the copy to this
        member."""
        copy, block = self.meta.copy, self.block
        return copy is not None and block is not None and block.newest >= copy.generation

    @property
    def received(self) -> bool:
        """Whether the copy to this member is complete, so that its generation is in effect."""
        copy = self.meta.copy
        return copy is not None and self.state is TabletState.READY and self.generation == copy.generation

    @property
    def generation(self) -> int:
        return 0 if self.block is None else self.block.generation

    @property
    def last(self) -> OpId:
        """The last operation, also of a tombstone."""
        if self.block is not None and self.state is not TabletState.READY:
            return self.block.last
        return OpId(*self.tablet.log.last)

    @property
    def loading(self) -> bool:
        """Whether a bulk load is logged but not applied: the values under its keys are then unknown."""
        return bool(self.loads) and max(self.loads) > self.tablet.log.applied[1]

    def reset(self, log: Log, keyspaces: dict[bytes, tuple[int, int]]) -> None:
        """Restart with other data: its log, and entries and bytes by keyspace. Promises and row are kept."""
        self.tablet.replace_log(log)
        self.keyspaces = keyspaces
        self.records.clear()
        self.flushed = log.applied[1]

    def forget_ahead(self) -> None:
        """Forget the results of logged operations that are ahead of the data."""
        self.pending.clear()
        self.clearing = 0
        self.clients = None
        self.locks = None

    def lock_keys(self, id: TxId, intent: Intent, now: float) -> None:
        """Lock the keys of a transaction that is prepared here."""
        if self.locks is None:
            self.locks = Locks()
        self.locks.take(id, intent, now)

    def unlock_keys(self, id: TxId) -> None:
        """Unlock the keys of a transaction that ended."""
        if self.locks is not None:
            self.locks.release(id)
            self.unlocked = True
            if not len(self.locks):
                self.locks = None

    @property
    def intents(self) -> int:
        """Number of transactions in the applied data that hold locks: their values may be about to change."""
        return self.keyspaces.get(INTENTS, (0, 0))[0]

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.keyspaces.values())

    @property
    def entries(self) -> int:
        """Number of entries of users."""
        return sum(count for keyspace, (count, _) in self.keyspaces.items() if not keys.is_service(keyspace))

    def prefix(self, keyspace: bytes) -> bytes:
        found = self.prefixes.get(keyspace)
        if found is None:
            found = keys.user_prefix(self.partition, self.generation, keyspace)
            self.prefixes[keyspace] = found
        return found

    @property
    def row_limit(self) -> int:
        """The last operation that neither a member of the row nor a learner that writes wait for needs."""
        owner, limit = self.owner, self.tablet.log.applied[1]
        if owner is None:
            return limit
        if not owner.appending:
            return 0
        return min([limit, *(owner.progress[m].match for m in owner.waited_for)])

    @property
    def trim_limit(self) -> int:
        """The last operation that neither a member of the row nor a learner needs."""
        learner = None if self.owner is None else self.owner.learner
        return self.row_limit if learner is None or not learner.pinned else min(self.row_limit, learner.pin)

    def own(self) -> None:
        """Start to own the tablet, or continue under a newer row that names this member as owner."""
        row = self.tablet.row
        if self.owner is None:
            self._begin_to_own()
        elif row.version > self.owner_row:
            self.owner.row_changed(row)
        self.owner_row = row.version

    def _begin_to_own(self) -> None:
        """Establish, with the persisted promises to learners."""
        waited, frozen = self.meta.waited, self.meta.frozen
        version = self.tablet.row.version
        learner = None
        if waited is not None and waited.base >= version:
            learner = Learner(waited.id, waited.member, waited.base, self.tablet.log.applied[1], waited=True)
        hold = (frozen.id, frozen.base) if frozen is not None and frozen.base >= version else None
        self.owner = Owner(self.tablet, learner, hold)
        self.owner_since = version
