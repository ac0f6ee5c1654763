"""SCAN, with cursors that every member understands.

A cursor is a number of 63 bits: partition (14, counted from the first one of the keyspace), log2 of the
number of keys returned from it (5), and a hash of the last key returned (44). The member that issued the
cursor remembers the key of the hash. Another member, or the same one after it has forgotten, starts that
partition over and returns more keys than before. Every key that exists during the whole scan is therefore
returned at least once, and a scan across members still ends. Keys may be returned more than once, as in
Redis.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import mmh3

from stele.member.resp.match import Pattern
from stele.ports.key_value_service import KeyValueService

SCAN_COUNT_DEFAULT = 10
SCAN_COUNT_MAX = 10_000
SCAN_PAGES_PER_CALL_MAX = 32
SCAN_BYTES_MAX = 1024 * 1024
"""A call ends with the page in which its keys reach this size."""
SCAN_AGAIN_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes that a call returns from a partition that it has to start over."""
SCAN_STEPS_MAX = 16 * 1024 * 1024
"""A call ends with the key at which its comparisons reach this number."""
SCAN_POSITIONS_MAX = 4096
SCAN_POSITIONS_BYTES_MAX = 4 * 1024 * 1024

_HASH_BITS = 44
_PART_BITS = 5
_PART_MAX = (1 << _PART_BITS) - 1


class Positions:
    """The last keys of issued cursors; the oldest are forgotten."""

    def __init__(self) -> None:
        self._keys: OrderedDict[int, tuple[bytes, int, bytes]] = OrderedDict()
        self._bytes = 0

    def remember(self, keyspace: bytes, partition: int, key: bytes) -> int:
        """Return a hash that identifies this position; never 0."""
        position = mmh3.hash64(b"%d/%b/%b" % (partition, keyspace, key), signed=False)[0]
        position = (position & ((1 << _HASH_BITS) - 1)) or 1
        self._bytes += len(key) - len(self._keys.pop(position, (b"", 0, b""))[2])
        self._keys[position] = (keyspace, partition, key)
        while len(self._keys) > SCAN_POSITIONS_MAX or self._bytes > SCAN_POSITIONS_BYTES_MAX:
            self._bytes -= len(self._keys.popitem(last=False)[1][2])
        return position

    def recall(self, keyspace: bytes, partition: int, position: int) -> bytes | None:
        """Return the key, None when it is unknown here."""
        entry = self._keys.get(position)
        return entry[2] if entry is not None and entry[:2] == (keyspace, partition) else None


@dataclass(slots=True)
class _Place:
    """Position of a scan: about 2**`part` keys of `partition` were returned, up to `after`.

    When the key is unknown here, the partition is started over; returning at least `again` keys in one call
    gets further than before.
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
    partitions: Sequence[int],
) -> tuple[int, list[bytes]]:
    """Return the next cursor (0 at the end) and the matching ones of about `count` keys of `partitions`.

    Fewer keys are examined when they are long or expensive to match. Raises ValueError for an invalid cursor.
    """
    group = store.group(keyspace)
    place = _from(_place(group, positions, keyspace, cursor), partitions)
    if place is None:
        return 0, []
    keys: list[bytes] = []
    left = count
    is_first = cursor == 0 and place.partition == group.start
    if is_first and await store.execute(group.start, keyspace, [(b"EXISTS", b"")]) == [1]:
        # The store lists keys greater than one, which excludes the smallest key.
        left -= await _look([b""], pattern, keys, to_the_end=True)
    calls = size = 0
    while not _is_enough(place, left, size, calls):
        page, after = await store.scan(place.partition, keyspace, place.after, max(left, place.again, 1))
        examined = await _look(page, pattern, keys, to_the_end=bool(place.again))
        if examined < len(page):
            page, after = page[:examined], page[examined - 1]
        left = 0 if pattern.steps >= SCAN_STEPS_MAX else left - examined
        calls, size = calls + 1, size + sum(map(len, page))
        if after is not None:
            seen = (1 << place.part if place.after else 0) + len(page)
            part = min(seen.bit_length(), _PART_MAX)
            place = _Place(place.partition, part, after, max(place.again - len(page), 0))
        else:
            following = _from(_Place(place.partition + 1), partitions)
            if following is None:
                return 0, keys
            place = following
    position = positions.remember(keyspace, place.partition, place.after) if place.after else 0
    return _cursor(place.partition - group.start, place.part, position), keys


def _from(place: _Place, partitions: Sequence[int]) -> _Place | None:
    """Return the place, or the beginning of the next one of `partitions` when it is in none of them."""
    at = bisect_left(partitions, place.partition)
    if at == len(partitions):
        return None
    return place if partitions[at] == place.partition else _Place(partitions[at])


async def _look(page: list[bytes], pattern: Pattern, keys: list[bytes], *, to_the_end: bool) -> int:
    """Add matching keys to `keys`; return how many were examined before the limit of steps."""
    for examined, key in enumerate(page, 1):
        if await pattern.matches(key):
            keys.append(key)
        if pattern.steps >= SCAN_STEPS_MAX and not to_the_end:
            return examined
    return len(page)


def _is_enough(place: _Place, wanted: int, size: int, calls: int) -> bool:
    """Return whether the call has read enough pages, at least one: without, it may be back at cursor 0.

    Raises ValueError when it would exceed its limit.
    """
    if place.again:
        if size >= SCAN_AGAIN_BYTES_MAX:
            raise ValueError(
                "invalid cursor: its position is unknown at this member; scan again from 0, with all calls"
                " on one connection"
            )
        return False
    return calls > 0 and (wanted <= 0 or size >= SCAN_BYTES_MAX or calls >= SCAN_PAGES_PER_CALL_MAX)


def _cursor(partition: int, part: int, position: int) -> int:
    return ((partition << _PART_BITS | part) << _HASH_BITS) | position


def _place(group: range, positions: Positions, keyspace: bytes, cursor: int) -> _Place:
    position = cursor & ((1 << _HASH_BITS) - 1)
    part = cursor >> _HASH_BITS & _PART_MAX
    partition = group.start + (cursor >> (_HASH_BITS + _PART_BITS))
    if partition not in group:
        raise ValueError("invalid cursor")
    if not position:
        return _Place(partition)
    after = positions.recall(keyspace, partition, position)
    return _Place(partition, again=2 << part) if after is None else _Place(partition, part, after)
