"""Sends the events of this member's own partitions to the members that listen, in the order of the log.

Nothing is queued here: each listener has a position in the log of a partition, and what it lacks is read from
the log. So events are sent only of applied operations, a listener that reads slowly holds no memory, and a
new owner goes on where the old one stopped, as far as its log reaches back.
"""

from collections.abc import Callable, Iterable

from stele.core.kv.keyspaces import Settings
from stele.core.kv.notifications import OperationEvents, enabled
from stele.core.table.table import Partition
from stele.core.tablet.owner import Phase
from stele.errors import Corrupt
from stele.member import limits
from stele.member.replication.links import Inbound
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.turn_budget import TurnBudget
from stele.wire import peer
from stele.wire.storage.keys import is_service
from stele.wire.storage.log_record import BATCH, CLEAR, KIND_AT, LOAD, NOOP, entry_of, split_batch_record

PARTITIONS_AT_ONCE = 64
"""Partitions of which events are read in one turn."""

_EVENT_BYTES = 64
"""Bytes of an event besides its key."""

_WHOLE = (LOAD, CLEAR)
"""Operations that change many keys at once, without events of their own."""

Listener = Inbound | None
"""A session that another member began, or None for this member."""


class Notifier:
    """`here` takes the events for this member's own clients; `sent` counts events, once for each listener."""

    def __init__(
        self,
        tablets: TabletStore,
        named: OperationEvents,
        turn_budget: TurnBudget,
        here: Callable[[peer.Events], None],
    ) -> None:
        self._tablets = tablets
        self._named = named
        self._turn_budget = turn_budget
        self._here = here
        self._audience: dict[Listener, None] = {}
        self._listeners: dict[int, dict[Listener, int]] = {}
        self._versions: dict[tuple[int, Listener], int] = {}
        self._due: dict[int, None] = {}
        self._waiting: set[int] = set()
        self._quiet: dict[Listener, dict[int, int]] = {}
        self._scheduled = False
        self.sent = 0

    # -- who listens

    def on_listen(self, sender: Inbound, message: peer.Listen) -> None:
        """A member asks for events, or for none any more."""
        if message.stop:
            self.stop(sender)
        else:
            self.listen(sender, message.positions)

    def listen(self, listener: Listener, positions: Iterable[peer.Position]) -> None:
        """Send events of moved entries, and those after these positions, from now on."""
        self._audience[listener] = None
        positions = [each for each in positions if 0 <= each[0] < len(self._tablets.rows)]
        for partition, version, after in positions:
            self._listeners.setdefault(partition, {})[listener] = after
            self._versions[partition, listener] = version
            self._due[partition] = None
        self._activate()
        self._schedule()

    def stop(self, listener: Listener) -> None:
        """Send nothing any more."""
        self._audience.pop(listener, None)
        for partition in [each for each, those in self._listeners.items() if listener in those]:
            self._remove_one(partition, listener)
        self._quiet.pop(listener, None)
        self._activate()

    def _remove_one(self, partition: int, listener: Listener) -> None:
        self._versions.pop((partition, listener), None)
        listeners = self._listeners[partition]
        del listeners[listener]
        if not listeners:
            del self._listeners[partition]

    def row_changed(self, partition: int, row: Partition) -> None:
        """Forget who listened to this member as the owner, unless by a row that is newer still."""
        if row.owner != self._tablets.me:
            for listener in list(self._listeners.get(partition, ())):
                if self._versions[partition, listener] < row.version:
                    self._remove_one(partition, listener)

    def _activate(self) -> None:
        """Have operations named and reported while somebody listens."""
        active = bool(self._listeners)
        if active != self._named.active:
            self._named.activate(active)
            self._tablets.watch_progress(self._advanced if active else None)

    def _advanced(self, partition: int) -> None:
        """Operations of a partition were applied."""
        if partition in self._listeners:
            self._due[partition] = None
            self._schedule()

    def _schedule(self) -> None:
        if self._due and not self._scheduled:
            self._scheduled = True
            self._turn_budget.later(PARTITIONS_AT_ONCE, self._pump)

    def tick(self) -> None:
        """Try again what waited for an owner that serves, or for a member that reads."""
        self._due.update(dict.fromkeys(self._waiting))
        self._waiting.clear()
        self._schedule()

    def every_second(self) -> None:
        """Report positions of partitions without events, and forget sessions that ended."""
        for session in [each for each in self._audience if each is not None and each.ended]:
            self.stop(session)
        quiet, self._quiet = self._quiet, {}
        for listener, positions in quiet.items():
            self._send(listener, [peer.EventBatch(p, last, False, []) for p, last in positions.items()])
        self._activate()

    # -- what is sent

    def _pump(self) -> None:
        """Send what listeners lack, of a few partitions."""
        self._scheduled = False
        batches: dict[Listener, list[peer.EventBatch]] = {}
        for partition in list(self._due)[:PARTITIONS_AT_ONCE]:
            del self._due[partition]
            replica = self._tablets.replicas.get(partition)
            owner = None if replica is None else replica.owner
            if replica is None or owner is None or owner.phase is not Phase.SERVING:
                self._named.forget(partition)
                if partition in self._listeners:
                    self._waiting.add(partition)
                continue
            for listener, after in list(self._listeners.get(partition, {}).items()):
                self._pump_one(replica, listener, after, batches)
            self._named.forget(partition, min(self._listeners.get(partition, {None: 0}).values()))
        for listener, several in batches.items():
            self._send(listener, several)
        self._schedule()

    def _pump_one(
        self, replica: Replica, listener: Listener, after: int, batches: dict[Listener, list[peer.EventBatch]]
    ) -> None:
        partition = replica.partition
        if listener is not None and listener.full:
            self._waiting.add(partition)
            return
        try:
            batch = self._batch(replica, after)
        except Corrupt as error:
            self._tablets.break_off(replica, error)
            return
        if batch is None:
            return
        self._listeners[partition][listener] = batch.last
        if batch.last < replica.tablet.log.applied[1]:
            self._due[partition] = None
        if batch.events or batch.gap or after < 0:
            batches.setdefault(listener, []).append(batch)
            self.sent += len(batch.events)
            self._quiet.get(listener, {}).pop(partition, None)
        else:
            self._quiet.setdefault(listener, {})[partition] = batch.last

    def _batch(self, replica: Replica, after: int) -> peer.EventBatch | None:
        """Return the next events after a position, None at the end."""
        log = replica.tablet.log
        applied = log.applied[1]
        if after == applied:
            return None
        if not 0 <= after < applied or log.first > applied:
            # A position ahead of the log is of another history: the partition was reset since.
            return peer.EventBatch(replica.partition, applied, after >= 0, [])
        first = max(after + 1, log.first)
        records = self._tablets.read_records(replica, first, limits.EVENT_BYTES)[: applied - first + 1]
        gap, events = first > after + 1 or not records, list[peer.Event]()
        last, size = first - 1 if records else applied, 0
        for last, record in enumerate(records, first):
            gap |= record[KIND_AT] in _WHOLE
            found = self._events(replica.partition, last, record)
            events += found
            # A transaction has an event for each command, though its record has each key once.
            size += sum(len(key) for _, _, key, *_ in found) + _EVENT_BYTES * len(found)
            if size > limits.EVENT_BYTES:
                break
        return peer.EventBatch(replica.partition, last, gap, events)

    def _events(self, partition: int, index: int, record: bytes) -> list[peer.Event]:
        """Return the events of one operation that its keyspaces publish."""
        kind = record[KIND_AT]
        if kind in _WHOLE or kind == NOOP:
            return []
        changed = split_batch_record(record) if kind == BATCH else [entry_of(record)]
        return [
            (index, keyspace, key, event, kinds)
            for keyspace, key, event in self._named.of(partition, index, changed)
            if not is_service(keyspace) and (notify := self._settings(keyspace).notify)
            if (kinds := enabled(notify, event))
        ]

    def _settings(self, keyspace: bytes) -> Settings:
        return self._tablets.table.keyspaces.settings_of(keyspace)

    def announce(self, batch: peer.EventBatch) -> None:
        """Send events that are not those of operations to everyone who listens to anything."""
        for listener in list(self._audience):
            if listener is None or not listener.full:
                self._send(listener, [batch])

    def _send(self, listener: Listener, batches: list[peer.EventBatch]) -> None:
        if listener is None:
            self._here(peer.Events(batches))
        elif not listener.ended:
            listener.send(peer.Events(batches))
