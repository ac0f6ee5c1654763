"""The entries of a keyspace with `mode: Invalidation` at one member, and which values may fill them.

A fill (`SET ... NX`) stores what a client has read elsewhere after a miss here, and tells nobody. What it
read may be older than a change of which this member heard in between. So a key is filled only by a connection
that missed it after the key was last changed: each change counts a clock, and a miss remembers the clock.
What is forgotten for lack of room counts as changed.
"""

from collections import OrderedDict, deque
from heapq import heapify, heappop, heappush

from stele.core.kv.commands import Stored

ENTRY_BYTES = 400
"""Python's overhead of a key, its value and its expiry."""

CHANGES_MAX = 65_536
CHANGES_BYTES_MAX = 16 * 1024 * 1024
"""Keys of a keyspace whose last change is remembered, for fills, and their bytes."""

MISSES_MAX = 1024
MISSES_BYTES_MAX = 64 * 1024
"""Keys that one connection has missed and may fill, and their bytes."""

EXPIRED_AT_ONCE = 1000
_EXPIRIES_SPARE = 1024


class LocalCache:
    """Entries of one keyspace, the least recently used first; `held_bytes` is the memory that they take.
    `hits` and `misses` count reads, `evicted` entries that made room for others.

    `clock` counts changes. It begins where that of an earlier cache of the same name ended.
    """

    def __init__(self, keyspace: bytes, bytes_max: int, clock: int = 0) -> None:
        self.keyspace = keyspace
        self.bytes_max = bytes_max
        self.clock = clock
        self.held_bytes = self.hits = self.misses = self.evicted = 0
        self._entries: OrderedDict[bytes, Stored] = OrderedDict()
        self._expiries: list[tuple[int, bytes]] = []
        self._changes: dict[bytes, int] = {}
        self._change_order: deque[tuple[int, bytes]] = deque()
        self._changes_bytes = 0
        self._changed_all = clock

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now_ms: int) -> Stored | None:
        """Return an entry, which becomes the most recently used one; None when it is missing or expired."""
        stored = self._entries.get(key)
        if stored is None:
            return None
        if 0 < stored[1] <= now_ms:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return stored

    def count(self, *, hit: bool) -> None:
        """Count a read."""
        self.hits += hit
        self.misses += not hit

    def change(self, key: bytes, stored: Stored | None) -> None:
        """Store what a client wrote, or remove the key: it was changed here or elsewhere."""
        self.clock += 1
        self._note_change(key)
        if stored is None:
            self._drop(key)
        else:
            self._put(key, stored)

    def fill(self, key: bytes, stored: Stored, missed: int) -> bool:
        """Store what a client has read elsewhere after it missed the key at the clock `missed`.

        Return False, and store nothing, when the key may have changed since.
        """
        if missed < max(self._changed_all, self._changes.get(key, 0)):
            return False
        self._put(key, stored)
        return True

    def clear(self) -> None:
        """Remove all entries: any of them may have changed."""
        self.clock += 1
        self._changed_all = self.clock
        self._entries.clear()
        self._expiries.clear()
        self._changes.clear()
        self._change_order.clear()
        self.held_bytes = self._changes_bytes = 0

    def limit(self, bytes_max: int) -> None:
        """Keep at most so many bytes from now on."""
        self.bytes_max = bytes_max
        self._evict()

    def expire(self, now_ms: int, most: int = EXPIRED_AT_ONCE) -> list[bytes]:
        """Remove up to `most` entries whose expiry has passed, and return their keys."""
        expired: list[bytes] = []
        while self._expiries and self._expiries[0][0] <= now_ms and len(expired) < most:
            expire_at_ms, key = heappop(self._expiries)
            stored = self._entries.get(key)
            if stored is not None and stored[1] == expire_at_ms:
                self._drop(key)
                expired.append(key)
        return expired

    def _put(self, key: bytes, stored: Stored) -> None:
        self._drop(key)
        self._entries[key] = stored
        self.held_bytes += ENTRY_BYTES + len(key) + len(stored[0])
        if stored[1]:
            heappush(self._expiries, (stored[1], key))
            if len(self._expiries) > 2 * len(self._entries) + _EXPIRIES_SPARE:
                self._expiries = [(each[1], key) for key, each in self._entries.items() if each[1]]
                heapify(self._expiries)
        self._evict()

    def _evict(self) -> None:
        while self.held_bytes > self.bytes_max and self._entries:
            self._drop(next(iter(self._entries)))
            self.evicted += 1

    def _drop(self, key: bytes) -> None:
        stored = self._entries.pop(key, None)
        if stored is not None:
            self.held_bytes -= ENTRY_BYTES + len(key) + len(stored[0])

    def _note_change(self, key: bytes) -> None:
        self._changes_bytes += len(key)
        self._changes[key] = self.clock
        self._change_order.append((self.clock, key))
        while len(self._change_order) > CHANGES_MAX or self._changes_bytes > CHANGES_BYTES_MAX:
            clock, forgotten = self._change_order.popleft()
            self._changes_bytes -= len(forgotten)
            if self._changes.get(forgotten) == clock:
                del self._changes[forgotten]
                self._changed_all = clock


class Misses:
    """The keys that one connection has missed, each with the clock of its cache at that moment.

    What is forgotten for lack of room cannot be filled.
    """

    def __init__(self) -> None:
        self._clocks: dict[tuple[bytes, bytes], int] = {}
        self._bytes = 0

    def missed(self, keyspace: bytes, key: bytes, clock: int) -> None:
        """Remember a miss; the oldest ones make room for it."""
        self.take(keyspace, key)
        self._clocks[keyspace, key] = clock
        self._bytes += len(key)
        while len(self._clocks) > MISSES_MAX or self._bytes > MISSES_BYTES_MAX:
            self.take(*next(iter(self._clocks)))

    def take(self, keyspace: bytes, key: bytes) -> int:
        """Forget a miss and return its clock; -1 when there was none."""
        clock = self._clocks.pop((keyspace, key), None)
        if clock is None:
            return -1
        self._bytes -= len(key)
        return clock

    def __len__(self) -> int:
        return len(self._clocks)
