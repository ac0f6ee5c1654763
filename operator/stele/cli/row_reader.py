"""Rows of a partition table for commands that take partitions one after the other, for hours perhaps."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stele.core.table.table import SHARD_PARTITIONS

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.core.table.table import Partition
    from stele.wire.configmap import Head

ROWS_SECONDS_MAX = 30.0
"""Seconds after which rows are read again before they are used."""


@dataclass(frozen=True)
class PlacedRow:
    """A row with the names of its members, the owner first; it has no owner without `names`."""

    version: int
    names: tuple[str, ...]


class RowReader:
    """Reads the head of the table and the shard of a partition, and keeps them for ROWS_SECONDS_MAX.

    Partitions in their order take one read for each shard. Methods raise as `Console.table` does.
    """

    def __init__(self, console: "Console", cluster: str, now: Callable[[], float] = time.monotonic) -> None:
        self._console, self._cluster, self._now = console, cluster, now
        self._head: tuple[float, Head] | None = None
        self._shard: tuple[float, int, tuple[Partition, ...]] | None = None

    async def count(self) -> int:
        """Return the number of partitions."""
        return (await self._read_head()).rows

    async def row(self, number: int, *, fresh: bool = False) -> PlacedRow:
        """Return the row of a partition; `fresh`: as it is stored now."""
        if fresh:
            self._head = self._shard = None
        head, shard = await self._read_head(), number // SHARD_PARTITIONS
        if self._shard is None or self._shard[1] != shard or self._is_old(self._shard[0]):
            self._shard = self._now(), shard, await self._console.table_shard(self._cluster, head, shard)
        row = self._shard[2][number % SHARD_PARTITIONS]
        known = {each.index: each.name for each in head.members}
        held = [] if row.owner is None else [each for each in row.replicas if each is not None]
        return PlacedRow(row.version, tuple(known.get(each, f"(member {each})") for each in held))

    async def _read_head(self) -> "Head":
        if self._head is None or self._is_old(self._head[0]):
            self._head = self._now(), await self._console.table_head(self._cluster)
        return self._head[1]

    def _is_old(self, read: float) -> bool:
        return self._now() - read > ROWS_SECONDS_MAX
