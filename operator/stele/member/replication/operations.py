"""What the operations of a log change: entries, ranges of data, and the numbers that are kept of both."""

from stele.member.replication.replica import Replica
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


def take_cleared(replica: Replica, record: bytes, totals: Totals) -> list[tuple[bytes, bytes]]:
    """Return the ranges of data that a CLEAR deletes, and take their keyspaces out of `totals`."""
    named = split_record(record)[1]
    cleared = [named] if named else [each for each in totals if not keys.is_service(each)]
    for keyspace in cleared:
        totals.pop(keyspace, None)
    prefixes = [keys.user_prefix(replica.partition, replica.generation, each) for each in cleared]
    return [(prefix, keys.after_prefix(prefix)) for prefix in prefixes]
