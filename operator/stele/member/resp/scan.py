"""SCAN: cursors that any member understands.

A cursor is a number of 63 bits: partition (14), how much of it was returned as a power of two (5), and a hash
of the last key returned (44). The member that gave the cursor remembers the key of the hash; another member,
or the same one after it forgot, begins that partition again and returns more than was returned before.
So every key that is there during the whole scan is returned at least once, and a scan that jumps between
members still ends. Keys may be returned twice, as in Redis.
"""

from collections import OrderedDict
from dataclasses import dataclass

import mmh3

from stele.member.resp.match import Pattern
from stele.ports.key_value_service import KeyValueService

SCAN_COUNT_DEFAULT = 10
SCAN_COUNT_MAX = 10_000
SCAN_PAGES_PER_CALL_MAX = 32
SCAN_BYTES_MAX = 1024 * 1024
"""A call ends with the page that brings its keys to so many bytes."""
SCAN_AGAIN_BYTES_MAX = 16 * 1024 * 1024
"""What a call may return of a partition that it has to begin again."""
SCAN_STEPS_MAX = 16 * 1024 * 1024
"""A call ends with the key that brings the comparisons with its pattern to so many."""
SCAN_POSITIONS_MAX = 4096
SCAN_POSITIONS_BYTES_MAX = 4 * 1024 * 1024

_HASH_BITS = 44
_PART_BITS = 5
_PART_MAX = (1 << _PART_BITS) - 1


class Positions:
    """The last keys behind the cursors that were handed out; the oldest are forgotten."""

    def __init__(self) -> None:
        self._keys: OrderedDict[int, tuple[bytes, int, bytes]] = OrderedDict()
        self._bytes = 0

    def remember(self, keyspace: bytes, partition: int, key: bytes) -> int:
        """The hash that stands for this position; never 0."""
        position = mmh3.hash64(b"%d/%b/%b" % (partition, keyspace, key), signed=False)[0]
        position = (position & ((1 << _HASH_BITS) - 1)) or 1
        self._bytes += len(key) - len(self._keys.pop(position, (b"", 0, b""))[2])
        self._keys[position] = (keyspace, partition, key)
        while len(self._keys) > SCAN_POSITIONS_MAX or self._bytes > SCAN_POSITIONS_BYTES_MAX:
            self._bytes -= len(self._keys.popitem(last=False)[1][2])
        return position

    def recall(self, keyspace: bytes, partition: int, position: int) -> bytes | None:
        """The key, or None when it is not known here."""
        known = self._keys.get(position)
        return known[2] if known is not None and known[:2] == (keyspace, partition) else None


@dataclass(slots=True)
class _Place:
    """Where a scan stands: about 2**`part` keys of `partition` were returned, up to `after`.

    When this member does not know up to where, it begins the partition again: with at least `again` keys in
    one call, it comes further than the calls before.
    """

    partition: int
    part: int = 0
    after: bytes = b""
    again: int = 0


async def scan(
    store: KeyValueService,
    positions: Positions,
    keyspace: bytes,
    cursor: int,
    *,
    count: int,
    pattern: Pattern,
) -> tuple[int, list[bytes]]:
    """Those that match of about `count` keys from the cursor on, or of fewer when they are long or hard to
    match; and the next cursor (0: all were looked at).

    ValueError for a number that is no cursor.
    """
    place = _place(store, positions, keyspace, cursor)
    keys: list[bytes] = []
    left = count
    if cursor == 0 and await store.execute(0, keyspace, [(b"EXISTS", b"")]) == [1]:
        # The store lists keys that are greater than one, and none is smaller than this one.
        left -= await _look([b""], pattern, keys, to_the_end=True)
    calls = size = 0
    while not _is_enough(place, left, size, calls):
        got, after = await store.scan(place.partition, keyspace, place.after, max(left, place.again, 1))
        looked = await _look(got, pattern, keys, to_the_end=bool(place.again))
        if looked < len(got):
            got, after = got[:looked], got[looked - 1]
        left = 0 if pattern.steps >= SCAN_STEPS_MAX else left - looked
        calls, size = calls + 1, size + sum(map(len, got))
        if after is not None:
            seen = (1 << place.part if place.after else 0) + len(got)
            part = min(seen.bit_length(), _PART_MAX)
            place = _Place(place.partition, part, after, max(place.again - len(got), 0))
        elif place.partition + 1 == store.partitions:
            return 0, keys
        else:
            place = _Place(place.partition + 1)
    position = positions.remember(keyspace, place.partition, place.after) if place.after else 0
    return _cursor(place.partition, place.part, position), keys


async def _look(got: list[bytes], pattern: Pattern, keys: list[bytes], *, to_the_end: bool) -> int:
    """Add to `keys` those that match; at how many was looked before that took too many steps."""
    for looked, key in enumerate(got, 1):
        if await pattern.matches(key):
            keys.append(key)
        if pattern.steps >= SCAN_STEPS_MAX and not to_the_end:
            return looked
    return len(got)


def _is_enough(place: _Place, wanted: int, size: int, calls: int) -> bool:
    """Whether no more pages are read for this call. ValueError when it would have to be too long."""
    if place.again:
        if size >= SCAN_AGAIN_BYTES_MAX:
            raise ValueError(
                "invalid cursor: this member does not know how far it came; scan again from 0, and all of it"
                " on one connection"
            )
        return False
    return wanted <= 0 or size >= SCAN_BYTES_MAX or calls >= SCAN_PAGES_PER_CALL_MAX


def _cursor(partition: int, part: int, position: int) -> int:
    return ((partition << _PART_BITS | part) << _HASH_BITS) | position


def _place(store: KeyValueService, positions: Positions, keyspace: bytes, cursor: int) -> _Place:
    position = cursor & ((1 << _HASH_BITS) - 1)
    part = cursor >> _HASH_BITS & _PART_MAX
    partition = cursor >> (_HASH_BITS + _PART_BITS)
    if not 0 <= partition < store.partitions:
        raise ValueError("invalid cursor")
    if not position:
        return _Place(partition)
    after = positions.recall(keyspace, partition, position)
    return _Place(partition, again=2 << part) if after is None else _Place(partition, part, after)
