"""Which readers cache which keys, and so have to hear of changes; bounded (docs/reference/clients.md).

A member keeps which of its connections cache a key; the owner of the partition keeps which members have such
connections. Names are opaque here: the keyspace and the key of an entry.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

KEYS_MAX = 1_000_000
BYTES_MAX = 64 * 1024 * 1024
"""Keys of one table, and bytes of memory that it really takes. Above either, the keys that were added least
recently are evicted, of one partition after the other, and their readers have to drop them."""

PREFIXES_MAX = 1024
PREFIXES_BYTES_MAX = 64 * 1024
"""Prefixes that all broadcasting clients of one member ask for, each counted once, and their bytes."""

EVICTED_AT_ONCE = 256
"""Keys that are evicted together: finding the first key of a dict takes longer the more were deleted before
it."""

NAME_BYTES = 160
READER_BYTES = 32
READERS_BYTES = 220
FURTHER_BYTES = 140
"""Python's overhead of a name, of its only reader, of a set of readers, and of each reader in a set."""

_Readers = int | set[int]
Readers = Iterable[int]


class Evicted(NamedTuple):
    """A key that was removed, and the readers that have to drop it."""

    partition: int
    name: bytes
    readers: Readers


class Interest:
    """The readers of each name, by partition. `keys` counts the names, `items` the readers of each name, and
    `held_bytes` their memory.

    Invariant: a reader that was added and not yet returned by a `take` or by `evicted` is still there.
    """

    def __init__(self, keys_max: int = KEYS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._partitions: dict[int, dict[bytes, _Readers]] = {}
        self._keys_max, self._bytes_max = keys_max, bytes_max
        self.keys = self.items = self.held_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def partitions(self) -> list[int]:
        """Return the partitions with any name."""
        return list(self._partitions)

    def add(self, partition: int, name: bytes, reader: int) -> None:
        """Remember a reader; the name becomes its partition's most recent one. Check `evicted` afterwards."""
        names = self._partitions.setdefault(partition, {})
        readers = names.pop(name, None)
        if readers is None:
            self.keys += 1
            readers, grown = reader, NAME_BYTES + len(name) + READER_BYTES
        else:
            readers, grown = _joined(readers, reader)
        self.items += grown > 0
        self.held_bytes += grown
        names[name] = readers

    def evicted(self) -> list[Evicted]:
        """Remove and return some keys while there are too many; empty when there are not."""
        gone: list[Evicted] = []
        while (self.keys > self._keys_max or self.held_bytes > self._bytes_max) and self._partitions:
            partition = next(iter(self._partitions))
            names = self._partitions.pop(partition)
            self._partitions[partition] = names
            for name in list(islice(names, EVICTED_AT_ONCE)):
                gone.append(Evicted(partition, name, self.take(partition, name)))
        return gone

    def take(self, partition: int, name: bytes) -> Readers:
        """Remove a name and return its readers, none when it is not cached."""
        names = self._partitions.get(partition)
        readers = None if names is None else names.pop(name, None)
        if names is None or readers is None:
            return ()
        if not names:
            del self._partitions[partition]
        self._removed(name, readers)
        return (readers,) if isinstance(readers, int) else readers

    def take_all(
        self, partition: int, prefix: bytes | tuple[bytes, ...] = b""
    ) -> list[tuple[bytes, Readers]]:
        """Remove the names of a partition that begin with `prefix`, or one of several, and return them with
        their readers."""
        names = [name for name in self._partitions.get(partition, ()) if name.startswith(prefix)]
        return [(name, self.take(partition, name)) for name in names]

    def _removed(self, name: bytes, readers: _Readers) -> None:
        self.keys -= 1
        self.held_bytes -= NAME_BYTES + len(name) + READER_BYTES
        if isinstance(readers, int):
            self.items -= 1
        else:
            self.items -= len(readers)
            self.held_bytes -= READERS_BYTES + FURTHER_BYTES * len(readers)


def _joined(readers: _Readers, reader: int) -> tuple[_Readers, int]:
    """Return the readers with another one, and by how many bytes they grew."""
    if isinstance(readers, int):
        if readers == reader:
            return readers, 0
        return {readers, reader}, READERS_BYTES + 2 * FURTHER_BYTES
    before = len(readers)
    readers.add(reader)
    return readers, FURTHER_BYTES * (len(readers) - before)


class Prefixes:
    """Prefixes of keys; matching a key takes one lookup for each different length of them."""

    def __init__(self, prefixes: Iterable[bytes]) -> None:
        self.prefixes = frozenset(prefixes)
        self._lengths = sorted({len(prefix) for prefix in self.prefixes})

    def matches(self, key: bytes) -> bool:
        """Return whether the key begins with one of them."""
        return any(key[:length] in self.prefixes for length in self._lengths)
