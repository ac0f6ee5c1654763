"""Compares what replicas hold with what must be there. Pure: hashes by key in, differences out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DIFFERENCES_KEPT_MAX = 10
SLOTS = 16384
_CRC_POLYNOMIAL = 0x1021

Hashes = Mapping[bytes, bytes]


class Fault(StrEnum):
    """How a replica differs from what must be there."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    REPLICAS = "replicas differ"


@dataclass(frozen=True)
class Difference:
    """One entry of one replica that is not as it must be."""

    fault: Fault
    partition: int
    member: str
    keyspace: str
    key: bytes


@dataclass(frozen=True)
class Wanted:
    """What one partition must hold of one keyspace.

    For each key the hashes that are right; None among them means that the key may be absent. Keys that are
    not in `hashes` are wrong when they begin with `owned` (entries of other runs in a shared keyspace are
    not ours to judge).
    """

    hashes: Mapping[bytes, frozenset[bytes | None]]
    owned: bytes = b""


@dataclass
class Tally:
    """What was compared: entries by keyspace, and all faults, of which the first are kept."""

    entries: Counter[str] = field(default_factory=Counter)
    replicas: int = 0
    partitions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def add(self, differences: Iterable[Difference]) -> None:
        """Count differences."""
        for each in differences:
            self.faults[each.fault] += 1
            if len(self.differences) < DIFFERENCES_KEPT_MAX:
                self.differences.append(each)


def compare(
    partition: int, keyspace: str, wanted: Wanted, replicas: Mapping[str, Hashes]
) -> list[Difference]:
    """All differences of the replicas (by member) of one partition and keyspace, sorted by member and key."""
    found: list[Difference] = []
    for member, held in sorted(replicas.items()):
        for key in sorted(wanted.hashes.keys() | held.keys()):
            fault = _fault(key, wanted, held)
            if fault:
                found.append(Difference(fault, partition, member, keyspace, key))
    return found or _between(partition, keyspace, replicas)


def _fault(key: bytes, wanted: Wanted, held: Hashes) -> Fault | None:
    right = wanted.hashes.get(key)
    if right is None:
        return Fault.EXTRA if key.startswith(wanted.owned) else None
    if held.get(key) in right:
        return None
    return Fault.DIFFERENT if key in held else Fault.MISSING


def _between(partition: int, keyspace: str, replicas: Mapping[str, Hashes]) -> list[Difference]:
    """Where several values are right, all replicas must still hold the same one."""
    if not replicas:
        return []
    first = next(iter(sorted(replicas)))
    reference = replicas[first]
    return [
        Difference(Fault.REPLICAS, partition, member, keyspace, key)
        for member, held in sorted(replicas.items())
        for key in sorted(reference.keys() | held.keys())
        if held.get(key) != reference.get(key)
    ]


def partition_of(key: bytes, partitions: int) -> int:
    """Where a key lives (docs/design/requests.md), written apart from the product: the check must not share
    its faults.
    """
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1) if begin >= 0 else -1
    hashed = key[begin + 1 : end] if end > begin + 1 else key
    return crc16(hashed) % SLOTS * partitions // SLOTS


def crc16(data: bytes) -> int:
    """CRC16/XMODEM by the table of its polynomial."""
    crc = 0
    for byte in data:
        crc = (crc << 8 & 0xFFFF) ^ _CRC_TABLE[crc >> 8 ^ byte]
    return crc


def _crc_of_byte(byte: int) -> int:
    crc = byte << 8
    for _ in range(8):
        crc = (crc << 1 ^ (_CRC_POLYNOMIAL if crc & 0x8000 else 0)) & 0xFFFF
    return crc


_CRC_TABLE = tuple(map(_crc_of_byte, range(256)))


def by_partition(
    hashes: Mapping[bytes, frozenset[bytes | None]], partitions: int, owned: bytes = b""
) -> dict[int, Wanted]:
    """What each partition must hold; every partition is there, also with nothing in it."""
    parts: defaultdict[int, dict[bytes, frozenset[bytes | None]]] = defaultdict(dict)
    for key, right in hashes.items():
        parts[partition_of(key, partitions)][key] = right
    return {partition: Wanted(parts[partition], owned) for partition in range(partitions)}
