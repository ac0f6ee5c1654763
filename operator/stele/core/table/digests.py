"""Digests of ranges of rows, by which two tables are compared without sending them.

A digest covers all that a row is: its version and each replica index. A row that only one table has counts,
too: ranges of unequal length differ. The range of a row and the digest of a range are part of the protocol
(docs/reference/protocol.md, "Take-over by a new master").
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from struct import pack
from typing import Protocol

from stele.core.table.ids import PARTITIONS_MAX, PartitionId, Version
from stele.core.table.table import Replicas

RANGE_ROWS = 256
"""Rows of a range; the last one of a table may have fewer."""

DIGEST_BYTES = 16

_EMPTY_INDEX = -1


class AnyRow(Protocol):
    """A row of a table, of whatever type."""

    @property
    def version(self) -> Version: ...
    @property
    def replicas(self) -> Replicas: ...


def range_of(partition: PartitionId) -> int:
    """Return the number of the range that a partition's row is in."""
    return partition // RANGE_ROWS


def range_count(rows: int) -> int:
    """Return how many ranges a table of that many rows has."""
    return -(-rows // RANGE_ROWS)


DIGESTS_BYTES_MAX = range_count(PARTITIONS_MAX) * DIGEST_BYTES
"""Bytes of the digests of the largest table."""


def partitions_of(number: int, rows: int) -> range:
    """Return the partitions of a range in a table of that many rows."""
    return range(number * RANGE_ROWS, min((number + 1) * RANGE_ROWS, rows))


def partitions_in(ranges: Iterable[int], rows: int) -> Iterator[PartitionId]:
    """Iterate the partitions of these ranges, as far as a table of that many rows has them."""
    return chain.from_iterable(partitions_of(each, rows) for each in ranges)


def row_digests(rows: Sequence[AnyRow]) -> bytes:
    """Return the digests of all ranges of a table, in order; `rows` are by partition, without gaps."""
    starts = range(0, len(rows), RANGE_ROWS)
    return b"".join(_digest(rows[start : start + RANGE_ROWS]) for start in starts)


def _digest(rows: Sequence[AnyRow]) -> bytes:
    numbers: list[int] = []
    for row in rows:
        numbers += (row.version, len(row.replicas))
        numbers += [_EMPTY_INDEX if member is None else member for member in row.replicas]
    return blake2b(pack(f">{len(numbers)}i", *numbers), digest_size=DIGEST_BYTES).digest()


def differing_ranges(ours: bytes, theirs: bytes) -> tuple[int, ...]:
    """Return the ranges in which two tables may differ, by their digests; those that one lacks among them."""
    size = DIGEST_BYTES
    ends = range(0, max(len(ours), len(theirs)), size)
    return tuple(at // size for at in ends if ours[at : at + size] != theirs[at : at + size])
