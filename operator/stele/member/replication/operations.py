"""What the operations of a log change: entries, ranges of data, and the numbers that are kept of both."""

from collections.abc import Callable
from dataclasses import dataclass, field

from stele.member.replication.replica import Replica
from stele.native import compiled
from stele.ports.engine import Engine
from stele.wire.storage import keys
from stele.wire.storage.log_record import (
    BATCH,
    DELETE,
    KIND_AT,
    PUT,
    Change,
    check_kind,
    split_batch,
    split_put,
    split_record,
)

Totals = dict[bytes, tuple[int, int]]
"""Number of entries and their bytes, by keyspace."""


def entries_of(record: bytes) -> list[tuple[bytes, bytes | None]]:
    """Return, in order, (suffix of the data key after `user_head`, stored value or None) of one operation.

    Raises Unavailable (UNKNOWN_FORMAT) for an operation of a later build.
    """
    if record[KIND_AT] == PUT:
        return [split_put(record)]
    kind, keyspace, key, value, _ = split_record(record)
    check_kind(kind)
    if kind == DELETE:
        return [(keys.user_tail(keyspace, key), None)]
    return [_entry(change) for change in split_batch(value)] if kind == BATCH else []


def _entry(change: Change) -> tuple[bytes, bytes | None]:
    stored = None if change.value is None else keys.pack_value(change.value, change.expire_at_ms)
    return keys.user_tail(change.keyspace, change.key), stored


def count_entry(totals: Totals, data_key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Count the change of an entry's stored value from `old` to `new`."""
    split = keys.split_user(data_key)
    assert split is not None
    keyspace, key = split
    count, size = totals.get(keyspace, (0, 0))
    if old is not None:
        count, size = count - 1, size - len(old) - len(key)
    if new is not None:
        count, size = count + 1, size + len(new) + len(key)
    totals[keyspace] = (count, size)


@dataclass(slots=True)
class Effects:
    """What operations change that are applied together.

    `head` is the `user_head` of their tablet. `entries` are new stored values by data key, None for removed
    ones; `totals` are counted on. `changes` lists (index, suffix of the data key) unless it is None.
    """

    head: bytes
    totals: Totals
    changes: list[tuple[int, bytes]] | None
    entries: dict[bytes, bytes | None] = field(default_factory=dict)

    def add(self, index: int, record: bytes, get: Callable[[bytes], bytes | None]) -> None:
        """Add one operation; `get` returns what was stored before all of them."""
        for of_user, new in entries_of(record):
            data_key = self.head + of_user
            old = self.entries[data_key] if data_key in self.entries else get(data_key)
            self.entries[data_key] = new
            if self.changes is not None:
                self.changes.append((index, of_user))
            if old is None or new is None or len(old) != len(new):
                count_entry(self.totals, data_key, old, new)

    def add_puts(
        self, records: dict[int, bytes], index: int, last: int, engine: Engine, bytes_max: int
    ) -> tuple[int, int]:
        """Add the PUTs that follow operation `index` without another kind between, up to `last` and until
        they have `bytes_max`; return the last one's index and their bytes. Plain code adds none."""
        if compiled is None:
            return index, 0
        return compiled.apply_puts(
            records, index, last, self.head, self.entries, self.totals, engine, self.changes, bytes_max
        )


def take_cleared(replica: Replica, record: bytes, totals: Totals) -> list[tuple[bytes, bytes]]:
    """Return the ranges of data that a CLEAR deletes, and take their keyspaces out of `totals`."""
    named = split_record(record)[1]
    cleared = [named] if named else [each for each in totals if not keys.is_service(each)]
    for keyspace in cleared:
        totals.pop(keyspace, None)
    prefixes = [keys.user_prefix(replica.partition, replica.generation, each) for each in cleared]
    return [(prefix, keys.after_prefix(prefix)) for prefix in prefixes]
