"""In-memory fake of the table in ConfigMaps: the same rules without an API server."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stele.core.table.table import EMPTY, Partition, PartitionTable, check_invariants
from stele.errors import Conflict, Corrupt
from stele.wire.configmap import (
    Head,
    decode_head,
    decode_shard,
    encode_head,
    encode_shard,
    shard_count,
    shard_range,
)


@dataclass
class StoredObjects:
    """Objects shared by the stores of one cluster: name to (version, data)."""

    objects: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    clock: int = 0

    def put(self, name: str, data: dict[str, str], expected: int | None) -> int:
        present = self.objects.get(name)
        if (None if present is None else present[0]) != expected:
            raise Conflict(f"{name} was changed by another writer")
        self.clock += 1
        self.objects[name] = (self.clock, data)
        return self.clock


@dataclass(frozen=True)
class TableSnapshot:
    head: Head
    table: PartitionTable


def _snapshot(head: Head, rows: Sequence[Partition]) -> TableSnapshot:
    table = PartitionTable(tuple(rows), {member.index: member for member in head.members})
    check_invariants(table)
    return TableSnapshot(head, table)


class MemoryTableStore:
    """One master's view of the shared objects."""

    def __init__(self, shared: StoredObjects) -> None:
        self._shared = shared
        self._versions: dict[str, int | None] = {}
        self._epoch = 0

    async def epoch(self) -> int:
        stored = self._shared.objects.get("head")
        return 0 if stored is None else decode_head(stored[1]).epoch

    async def take_over(self, fresh: Head, epoch_above: int = 0) -> TableSnapshot:
        self._versions = {name: version for name, (version, _) in self._shared.objects.items()}
        stored = self._shared.objects.get("head")
        if stored is None:
            return await self._create(fresh, epoch_above)
        head = decode_head(stored[1])
        if head.partitions != fresh.partitions:
            raise Corrupt(
                f"the stored table has {head.partitions} partitions, "
                f"but spec.partitions is {fresh.partitions}"
            )
        self._epoch = max(head.epoch, epoch_above) + 1
        head = replace(head, epoch=self._epoch)
        await self.write_head(head)
        rows: list[Partition] = []
        for number in range(shard_count(head.partitions)):
            rows += await self._raise_shard(number, head.partitions)
        return _snapshot(head, rows)

    async def _raise_shard(self, number: int, partitions: int) -> Sequence[Partition]:
        stored = self._shared.objects.get(f"shard-{number}")
        if stored is None:
            raise Corrupt(f"shard-{number} is missing but the head exists: restore it from a backup")
        rows = decode_shard(stored[1], number, partitions).rows
        await self.write_shard(number, rows)
        return rows

    async def _create(self, fresh: Head, epoch_above: int) -> TableSnapshot:
        numbers = range(shard_count(fresh.partitions))
        epochs = [self._epoch_of_empty(number, fresh.partitions) for number in numbers]
        self._epoch = max(epoch_above, *epochs) + 1
        for number in numbers:
            await self.write_shard(number, [EMPTY] * len(shard_range(number, fresh.partitions)))
        head = replace(fresh, epoch=self._epoch)
        await self.write_head(head)
        return _snapshot(head, [EMPTY] * fresh.partitions)

    def _epoch_of_empty(self, number: int, partitions: int) -> int:
        """Return the epoch of a shard without a head: 0 when there is no shard.

        Raises Corrupt when it has rows.
        """
        stored = self._shared.objects.get(f"shard-{number}")
        if stored is None:
            return 0
        shard = decode_shard(stored[1], number, partitions)
        if any(row.version for row in shard.rows):
            raise Corrupt(f"the head is missing but shard-{number} has rows: restore it from a backup")
        return shard.epoch

    async def write_head(self, head: Head) -> None:
        self._put("head", encode_head(head))

    async def write_shard(self, number: int, rows: Sequence[Partition]) -> None:
        self._put(f"shard-{number}", encode_shard(self._epoch, number, rows))

    def _put(self, name: str, data: dict[str, str]) -> None:
        self._versions[name] = self._shared.put(name, data, self._versions.get(name))
