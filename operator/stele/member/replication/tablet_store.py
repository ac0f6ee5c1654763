"""All tablets of this member on its engine: loading, writing logs, applying, trimming.

Nothing is sent, acknowledged or applied before `LogWriter` has written it.
`apply` writes committed operations to the data, with the tablet's state in the same batch.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from stele.core.control.commands import OpId
from stele.core.table.table import Partition
from stele.core.tablet.follower import Code, Tablet
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.log import Log
from stele.core.tablet.log import OpId as Position
from stele.errors import Corrupt, Unavailable
from stele.member import limits
from stele.member.replication.log_writer import LogWriter
from stele.member.replication.operations import Effects, Totals, take_cleared
from stele.member.replication.replica import Replica
from stele.member.replication.stored_log import log_range, restore_log
from stele.member.replication.table_cache import TableCache
from stele.member.storage import failpoints
from stele.member.storage.disk_full import raise_unless_disk_full
from stele.ports.engine import Engine
from stele.wire.storage import keys
from stele.wire.storage.log_record import (
    CLEAR,
    KIND_AT,
    LOAD,
    check_record,
    split_record,
    term_of,
)
from stele.wire.storage.volume import APPLIED, Consensus, DataState, Superblock, decode_state, encode_state

log = logging.getLogger("stele.tablets")

Change = tuple[bytes, bytes | None]
_GENERATION_MAX = 2**32 - 1

OnApplied = Callable[[Replica, list[tuple[int, bytes]]], None]
"""Takes the (index, name) of each change of an entry; a name is `wire.storage.keys.user_tail`."""


class LoadEvents(Protocol):
    """Files of bulk loads, which the log names and the data ingests."""

    def has_load(self, replica: Replica, record: bytes, source: int) -> bool:
        """Return whether the file of a logged load is here; if not, it is fetched from member `source`."""
        ...

    def apply_next(self, replica: Replica, index: int, record: bytes) -> None:
        """Apply the load next; nothing else is applied to the tablet before it."""
        ...

    def trimmed(self, replica: Replica, loads: list[str]) -> None:
        """Delete the files of loads whose operations were trimmed from the log."""
        ...


def _nothing(*_: object) -> None:
    return


class TabletStore:
    """Tablets of one member. `applied_bytes` counts since the last flush started.

    `writer` writes the logs. `data_refused`: the last `apply` met a full volume.
    """

    def __init__(
        self,
        engine: Engine,
        table: TableCache,
        *,
        has_room: Callable[[int], bool] = lambda size: True,
        on_cut: Callable[[Replica, int], None] = _nothing,
        on_broken: Callable[[Replica], None] = _nothing,
        loads: LoadEvents | None = None,
    ) -> None:
        """`on_cut` is called with the operation after which a log was cut, `on_broken` with a tablet that
        went offline."""
        self.engine = engine
        self.table = table
        self.writer = LogWriter(engine, has_room)
        self.replicas: dict[int, Replica] = {}
        self.applied_bytes = 0
        self.data_refused = False
        self._on_cut = on_cut
        self._on_broken = on_broken
        self._loads = loads
        self._on_applied: OnApplied | None = None
        self._on_replaced: Callable[[int], None] = _nothing
        self._on_advanced: Callable[[int], None] | None = None

    @property
    def me(self) -> int:
        """This member's index; negative until the master assigns one."""
        return self.table.me

    @property
    def rows(self) -> Sequence[Partition]:
        return self.table.rows

    def watch(self, on_applied: OnApplied | None, on_replaced: Callable[[int], None]) -> None:
        """Call `on_applied` with the changes of entries that were applied from now on, None for nothing.

        `on_replaced` is called with a partition whose data is replaced as a whole.
        """
        self._on_applied = on_applied
        self._on_replaced = on_replaced

    @property
    def watched(self) -> bool:
        return self._on_applied is not None

    def watch_progress(self, advanced: Callable[[int], None] | None) -> None:
        """Have a function called with each partition of which operations were applied; None: no function."""
        self._on_advanced = advanced

    def break_off(self, replica: Replica, error: Corrupt) -> None:
        """Take a tablet offline that contradicts itself or its owner, until it is copied again."""
        if not replica.broken:
            replica.broken = str(error)
            log.error("partition %d goes offline: %s", replica.partition, error)
            self._on_broken(replica)

    def mark_missing(self, replica: Replica, version: int) -> None:
        """Take a tablet offline that a row names but the volume lacks, so that the loss is visible."""
        replica.broken = f"row {version} names a tablet that is not on this volume"
        log.error("partition %d: %s", replica.partition, replica.broken)

    def reset(self, replica: Replica, applied: tuple[int, int], keyspaces: Totals) -> None:
        """Restart the tablet with copied data; promises and row are kept."""
        self._on_cut(replica, 0)
        replica.reset(Log(applied), keyspaces)

    def me_changed(self) -> None:
        """Take this member's index from the first exchange."""
        for replica in self.replicas.values():
            replica.tablet.me = self.me

    # -- loading

    def load(self, partition: int, block: Superblock | None, meta: Consensus) -> Replica:
        """Load the tablet from the volume. Any error makes it `broken`, and affects no other."""
        promised, restored, state = meta.promised, Log(), DataState(OpId(), {})
        try:
            if block is not None and block.state is TabletState.READY:
                restored, state = self.load_data(partition, block.generation)
                if len(restored) == 0 and self.engine.log_bounds(*log_range(partition)):
                    self.engine.write_log([], [log_range(partition)])
            elif block is not None:
                promised = max(promised, block.last.term)
        except Corrupt as error:
            log.error("partition %d stays offline: %s", partition, error)
            return self.add(partition, block, meta, broken=str(error))
        tablet = Tablet(partition, self.table.me, restored, promised, self._row(partition))
        return self._add(Replica(tablet, block, meta, dict(state.keyspaces)))

    def add(self, partition: int, block: Superblock | None, meta: Consensus, broken: str = "") -> Replica:
        """Add a partition without data that serves."""
        tablet = Tablet(partition, self.table.me, Log(), meta.promised, self._row(partition))
        return self._add(Replica(tablet, block, meta, broken=broken))

    def replica_of(self, partition: int) -> Replica:
        """Return the partition's replica, created when missing."""
        return self.replicas.get(partition) or self.add(partition, None, Consensus())

    def _add(self, replica: Replica) -> Replica:
        self.replicas[replica.partition] = replica
        return replica

    def _row(self, partition: int) -> Partition:
        return self.table.row_of(partition)

    def load_data(self, partition: int, generation: int) -> tuple[Log, DataState]:
        """Return the log and data of one generation in the engine. Raises Corrupt when they disagree."""
        state = self.read_state(partition, generation)
        return restore_log(self.engine, partition, (state.applied.term, state.applied.index)), state

    def read_state(self, partition: int, generation: int) -> DataState:
        """Return the stored state of one generation; the default for an empty one."""
        stored = self.engine.get(keys.meta_key(partition, generation, APPLIED))
        return DataState(OpId(), {}) if stored is None else decode_state(stored)

    def highest_generation(self, partition: int) -> int:
        """Return the greatest generation with any data, for a tablet whose superblock cannot be read."""
        begin, end = keys.tablet_prefix(partition, 0), keys.tablet_prefix(partition, _GENERATION_MAX)
        key = self.engine.last_key(begin, end)
        return 0 if key is None else keys.generation_of(key)

    # -- the log

    def log_append(self, replica: Replica, records: list[bytes], term: int) -> None:
        """Append operations of one term to the log; the next write of the logs writes them."""
        record_log = replica.tablet.log
        first = record_log.last[1] + 1
        size = sum(map(len, records))
        replica.records.update(enumerate(records, first))
        record_log.append(term, len(records), size)
        self.writer.put(replica.partition, first, records, size)

    def take(self, replica: Replica, prev: Position, records: list[bytes], source: int) -> Code:
        """Append operations that follow `prev` in the log of member `source`.

        Returns LOG_MISMATCH also when only some were appended, because the next one names a missing file.
        Raises Corrupt when they contradict this log.
        """
        terms: list[int] = []
        for record in records:
            check_record(record)
            terms.append(term_of(record)[0])
        place = replica.tablet.place(prev, terms)
        if place.code is not Code.OK:
            return place.code
        if place.cut is not None:
            self.cut(replica, place.cut)
        end = self._takeable(replica, prev[1] + 1, records, place.skip, source)
        self._append_runs(replica, records[:end], terms[:end], place.skip)
        return Code.OK if end == len(records) else Code.LOG_MISMATCH

    def _takeable(self, replica: Replica, first: int, records: list[bytes], skip: int, source: int) -> int:
        """Return how many of the records may be logged: those before a load whose file is missing here."""
        for at in range(skip, len(records)):
            record = records[at]
            if record[KIND_AT] == LOAD:
                if self._loads is None or not self._loads.has_load(replica, record, source):
                    return at
                replica.loads[first + at] = split_record(record)[2].decode()
        return len(records)

    def _append_runs(self, replica: Replica, records: list[bytes], terms: list[int], skip: int) -> None:
        """Append records, with one call per run of equal terms."""
        while skip < len(records):
            end = len(records) if terms[-1] == terms[skip] else skip + 1
            while end < len(records) and terms[end] == terms[skip]:
                end += 1
            self.log_append(replica, records[skip:end], terms[skip])
            skip = end

    def cut(self, replica: Replica, index: int) -> None:
        """Truncate operations after `index`, none of which was applied; on the volume with the next
        `write`."""
        tablet = replica.tablet
        last = tablet.log.last[1]
        if index >= last:
            return
        tablet.log.truncate(index)
        self.writer.cut(replica.partition, index + 1)
        for gone in range(index + 1, last + 1):
            replica.records.pop(gone, None)
        replica.loads = {at: load for at, load in replica.loads.items() if at <= index}
        self._on_cut(replica, index)

    def read_records(self, replica: Replica, first: int, bytes_max: int) -> list[bytes]:
        """Return operations from `first` on, from memory or the log; at least one if there is any."""
        records, last, size = replica.records, replica.tablet.log.last[1], 0
        found: list[bytes] = []
        if first not in records:
            self.writer.write()
            begin, end = keys.log_key(replica.partition, first), keys.log_key(replica.partition, last + 1)
            return self._in_a_row(replica.partition, first, self.engine.scan_log(begin, end, bytes_max))
        while first <= last and size < bytes_max:
            record = records[first]
            found.append(record)
            size += len(record)
            first += 1
        return found

    @staticmethod
    def _in_a_row(partition: int, first: int, found: list[tuple[bytes, bytes]]) -> list[bytes]:
        """Return records up to the first gap, since receivers count them from `first`."""
        expected = enumerate(found, first)
        return [record for index, (key, record) in expected if key == keys.log_key(partition, index)]

    def clear_log(self, replica: Replica) -> None:
        """Delete all operations of the partition, whose data is replaced. Durable on return."""
        self.writer.write_all()
        self.engine.write_log([], [log_range(replica.partition)])
        failpoints.hit("copy.log_cleared")
        replica.records.clear()
        replica.loads.clear()

    def trim(self, replica: Replica, up_to: int, retained_bytes: int) -> None:
        """Trim operations before `up_to`, except for the last `retained_bytes`.

        That one stays: a destination whose data ends with it is recognized by its term.
        """
        record_log = replica.tablet.log
        most = min(up_to, replica.flushed)
        point = record_log.trim_point(most - 1, retained_bytes)
        # A load's record is small but keeps its files, so it is trimmed as soon as no member needs it.
        point = max([point, *(index for index in replica.loads if index <= min(most, record_log.applied[1]))])
        if point >= record_log.first and point < record_log.last[1]:
            record_log.trim(point)
            begin, end = keys.log_key(replica.partition, 0), keys.log_key(replica.partition, point + 1)
            self.engine.write_log([], [(begin, end)])
            failpoints.hit("trim.dropped")
            gone = [load for index, load in replica.loads.items() if index <= point]
            replica.loads = {index: load for index, load in replica.loads.items() if index > point}
            if gone and self._loads is not None:
                self._loads.trimmed(replica, gone)

    def begin_flush(self) -> list[tuple[Replica, Log, int]]:
        """Return each tablet's log and applied index; what is applied from now on belongs to the next
        flush."""
        self.applied_bytes = 0
        return [(r, r.tablet.log, r.tablet.log.applied[1]) for r in self.replicas.values()]

    def end_flush(self, ends: list[tuple[Replica, Log, int]], pin: Callable[[int], int]) -> None:
        """Trim logs, except for what copies need: the data is durable as of the start of the flush."""
        served = sum(replica.ready for replica, _, _ in ends)
        retained = min(limits.LOG_RETAINED_BYTES, limits.LOG_RETAINED_BYTES_ALL // max(1, served))
        for replica, record_log, index in ends:
            if replica.tablet.log is record_log:
                replica.flushed = index
                self.trim(replica, min(pin(replica.partition), replica.trim_limit), retained)

    # -- the data

    def apply(self, replicas: Iterable[Replica]) -> bool:
        """Apply committed operations, up to about ENGINE_WRITE_BYTES_MAX.

        Returns whether all were applied.
        """
        size, complete, self.data_refused = 0, True, False
        for replica in replicas:
            if size >= limits.ENGINE_WRITE_BYTES_MAX:
                return False
            try:
                size, index = self._apply(replica, size)
            except Corrupt as error:
                self.break_off(replica, error)
                continue
            complete = complete and index == replica.tablet.log.committed
            if self._on_advanced is not None:
                self._on_advanced(replica.partition)
        return complete

    def _apply(self, replica: Replica, size: int) -> tuple[int, int]:
        """Apply to one tablet, with its new state in the same write.

        Returns (bytes so far, applied index).
        """
        record_log = replica.tablet.log
        begin, before = record_log.applied[1], size
        head = keys.user_head(replica.partition, replica.generation)
        effects = Effects(head, dict(replica.keyspaces), None if self._on_applied is None else [])
        totals, changes = effects.totals, effects.changes
        index, drops = begin, None
        while index < record_log.committed and size < limits.ENGINE_WRITE_BYTES_MAX:
            index, put_bytes = effects.add_puts(
                replica.records,
                index,
                record_log.committed,
                self.engine,
                limits.ENGINE_WRITE_BYTES_MAX - size,
            )
            if put_bytes:
                size += put_bytes
                continue
            record = replica.records.get(index + 1) or self._logged(replica.partition, index + 1)
            if record[KIND_AT] == LOAD:
                # The file is ingested as a whole, after all operations before it and before all after it.
                self._begin_load(replica, index + 1, record)
                break
            if record[KIND_AT] == CLEAR:
                # By itself: what was read before it is not what is stored after it.
                if index == begin:
                    index, drops = index + 1, take_cleared(replica, record, totals)
                break
            index += 1
            size += len(record)
            effects.add(index, record, self.engine.get)
        if index > begin:
            state = self._state_change(replica, index, totals)
            if not self._write_data([*effects.entries.items(), state], drops):
                return size, begin
            replica.keyspaces = totals
            failpoints.hit("write.applied")
            self.applied_bytes += size - before
            record_log.apply(index)
            self._forget(replica, begin, index, effects.entries)
            if drops is not None:
                self._clear_applied(replica)
        if changes and self._on_applied is not None:
            self._on_applied(replica, changes)
        return size, index

    def _write_data(self, changes: list[Change], drops: list[tuple[bytes, bytes]] | None) -> bool:
        """Write changes to the data. Returns False when ranges cannot be dropped on a full volume."""
        try:
            self.engine.write_data(changes, drops or ())
        except Unavailable as error:
            raise_unless_disk_full(error)
            self.data_refused = True
            return False
        return True

    def _clear_applied(self, replica: Replica) -> None:
        failpoints.hit("write.cleared")
        if replica.clearing <= replica.tablet.log.applied[1]:
            replica.clearing = 0
        self._on_replaced(replica.partition)

    def _begin_load(self, replica: Replica, index: int, record: bytes) -> None:
        replica.ingesting = True
        replica.loads[index] = split_record(record)[2].decode()
        if self._loads is not None:
            self._loads.apply_next(replica, index, record)

    def applied_load(self, replica: Replica, state: DataState, size: int) -> None:
        """Record that a load's file of `size` bytes is in the data, with this state of the tablet."""
        self.applied_bytes += size
        index = state.applied.index
        replica.keyspaces = dict(state.keyspaces)
        replica.tablet.log.apply(index)
        replica.flushed = index
        self._forget(replica, index - 1, index, ())
        self._on_replaced(replica.partition)

    @staticmethod
    def _forget(replica: Replica, begin: int, index: int, fresh: Iterable[bytes]) -> None:
        """Drop what is kept for unapplied operations, up to `index`."""
        pending, records = replica.pending, replica.records
        if index == replica.tablet.log.last[1]:
            pending.clear()
            records.clear()
            return
        for gone in range(begin + 1, index + 1):
            records.pop(gone, None)
        for data_key in fresh:
            ahead = pending.get(data_key)
            if ahead is not None and ahead[1] <= index:
                del pending[data_key]

    def _logged(self, partition: int, index: int) -> bytes:
        self.writer.write()
        record = self.engine.get_log(keys.log_key(partition, index))
        if record is None:
            raise Corrupt(f"partition {partition}: operation {index} is committed and missing in the log")
        return record

    @staticmethod
    def _state_change(replica: Replica, index: int, totals: Totals) -> Change:
        term = replica.tablet.log.term_at(index)
        assert term is not None
        state = DataState(OpId(term, index), totals)
        return keys.meta_key(replica.partition, replica.generation, APPLIED), encode_state(state)
