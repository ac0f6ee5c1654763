"""SCAN: cursors that any member understands, and Redis's patterns without its exponential cases.

A cursor is a number of 63 bits: partition (14), how much of it was returned as a power of two (5), and a hash
of the last key returned (44). The member that gave the cursor remembers the key of the hash; another member,
or the same one after it forgot, begins that partition again and returns more than was returned before.
So every key that is there during the whole scan is returned at least once, and a scan that jumps between
members still ends. Keys may be returned twice, as in Redis.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import mmh3

from stele.ports import Store

SCAN_COUNT_DEFAULT = 10
SCAN_COUNT_MAX = 10_000
SCAN_PAGES_PER_CALL_MAX = 32
SCAN_BYTES_MAX = 1024 * 1024
"""A call ends with the page that brings its keys to so many bytes."""
SCAN_AGAIN_BYTES_MAX = 16 * 1024 * 1024
"""What a call may return of a partition that it has to begin again."""
SCAN_POSITIONS_MAX = 4096
SCAN_POSITIONS_BYTES_MAX = 4 * 1024 * 1024
PATTERN_BYTES_MAX = 1024

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
    store: Store, positions: Positions, keyspace: bytes, cursor: int, count: int
) -> tuple[int, list[bytes]]:
    """About `count` keys from the cursor on, or fewer long ones, and the next cursor (0: all were returned).

    ValueError for a number that is no cursor.
    """
    place = _place(store, positions, keyspace, cursor)
    keys: list[bytes] = []
    if cursor == 0 and await store.execute(0, keyspace, [(b"EXISTS", b"")]) == [1]:
        keys.append(b"")  # The store lists keys that are greater than one, and none is smaller than this one.
    calls = size = 0
    while not _is_enough(place, count - len(keys), size, calls):
        wanted = max(count - len(keys), place.again, 1)
        got, after = await store.scan(place.partition, keyspace, place.after, wanted)
        keys += got
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


def _place(store: Store, positions: Positions, keyspace: bytes, cursor: int) -> _Place:
    position = cursor & ((1 << _HASH_BITS) - 1)
    part = cursor >> _HASH_BITS & _PART_MAX
    partition = cursor >> (_HASH_BITS + _PART_BITS)
    if not 0 <= partition < store.partitions:
        raise ValueError("invalid cursor")
    if not position:
        return _Place(partition)
    after = positions.recall(keyspace, partition, position)
    return _Place(partition, again=2 << part) if after is None else _Place(partition, part, after)


def pattern_matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Redis's glob (`*`, `?`, `[a-c]`, `[^x]`, backslash) as a test of whole keys.

    Every star but the last takes the shortest way for good (an atomic group), so no pattern takes
    more than length of key times length of pattern. ValueError when the pattern is too long.
    """
    if len(pattern) > PATTERN_BYTES_MAX:
        raise ValueError(f"pattern of {len(pattern)} bytes is longer than the {PATTERN_BYTES_MAX} allowed")
    pieces = _pieces(pattern)
    if len(pieces) == 1:
        expression = pieces[0]
    else:
        middle = b"".join(b"(?>.*?%b)" % piece for piece in pieces[1:-1] if piece)
        expression = pieces[0] + middle + b".*" + pieces[-1]
    compiled = re.compile(expression, re.DOTALL)
    return lambda key: compiled.fullmatch(key) is not None


def _pieces(pattern: bytes) -> list[bytes]:
    """Regular expressions of the parts between the stars."""
    pieces, at = [b""], 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        if char == b"*":
            pieces.append(b"")
            at += 1
            continue
        expression, at = _one(pattern, at)
        pieces[-1] += expression
    return pieces


def _one(pattern: bytes, at: int) -> tuple[bytes, int]:
    char = pattern[at : at + 1]
    if char == b"?":
        return b".", at + 1
    if char == b"[":
        return _class(pattern, at + 1)
    if char == b"\\" and at + 1 < len(pattern):
        at += 1
    return re.escape(pattern[at : at + 1]), at + 1


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """A set of characters; one that is not closed ends with the pattern, as in Redis."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
        first = last = pattern[at]
        if pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            last = pattern[at + 2]
            at += 2
        members.update(range(min(first, last), max(first, last) + 1))
        at += 1
    if negated:
        members = set(range(256)) - members
    body = b"".join(b"\\x%02x" % member for member in sorted(members))
    return (b"[%b]" % body if body else b"(?!)"), at + 1
