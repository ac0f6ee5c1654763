"""The partition table in ConfigMaps, written by compare-and-set (docs/internals/operator.md, "Who leads").

`take_over` writes the new epoch into the head and into *every* shard, so that each late write of an earlier
master fails on its resourceVersion. Shards are created before the head: a head without one of its shards is
damage, while shards without a head are an unfinished creation, and rows behind those of the head an
unfinished extension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from stele.adapters.kubernetes.api import CONFIG_MAPS, Api, NotFound
from stele.core.table.table import EMPTY, Partition, PartitionTable, check_invariants
from stele.errors import Conflict, Corrupt, SteleError
from stele.model.ownership import NameLeaves, NameTaken, belongs_to, leaves
from stele.wire.configmap import (
    Head,
    decode_head,
    decode_rows,
    decode_shard,
    encode_head,
    encode_shard,
    shard_count,
    shard_range,
)

ATTEMPTS_MAX = 10
"""Consecutive conflicts after which a takeover gives up."""


@dataclass(frozen=True)
class TableSnapshot:
    """The table at the time of the takeover, with the new epoch."""

    head: Head
    table: PartitionTable


def table_snapshot(head: Head, rows: Sequence[Partition]) -> TableSnapshot:
    """Build a snapshot. Raises Corrupt when the rows contradict the dictionary of the head."""
    members = MappingProxyType({member.index: member for member in head.members})
    table = PartitionTable(tuple(rows), members, head.groups)
    check_invariants(table)
    return TableSnapshot(head, table)


class KubernetesTableStore:
    """One cluster's table.

    Writes raise Conflict when another process has written since `take_over`, and Uncertain when there was no
    answer; after either the caller has to take over again or stop.
    """

    def __init__(
        self, api: Api, namespace: str, cluster: str, owner: Mapping[str, Any], labels: Mapping[str, str]
    ) -> None:
        self._api, self._namespace, self._cluster = api, namespace, cluster
        self._owner, self._labels = dict(owner), dict(labels)
        self._versions: dict[str, str] = {}
        self._epoch = 0

    def _name(self, shard: int | None = None) -> str:
        return f"{self._cluster}-table" if shard is None else f"{self._cluster}-table-{shard}"

    async def _find(self, shard: int | None = None) -> dict[str, Any] | None:
        """Return a part of the table.

        Raises NameTaken when a foreign object has its name, NameLeaves when that is being removed.
        """
        config_map = await self._api.find(CONFIG_MAPS, self._namespace, self._name(shard))
        if config_map is not None and not belongs_to(config_map, self._owner["uid"]):
            raise self._in_the_way([config_map])
        return config_map

    def _in_the_way(self, foreign: Sequence[Mapping[str, Any]]) -> SteleError:
        """Return the error for foreign objects; those that stay take precedence over those being removed."""
        staying = [stored for stored in foreign if not leaves(stored, [self._owner])]
        names = [f"{CONFIG_MAPS.kind} {stored['metadata']['name']}" for stored in staying or foreign]
        return NameTaken(names) if staying else NameLeaves(names)

    async def _foreign(self, partitions: int) -> list[dict[str, Any]]:
        """Return all foreign objects with the name of a part of the table."""
        parts = (None, *range(shard_count(partitions)))
        stored_parts = [
            await self._api.find(CONFIG_MAPS, self._namespace, self._name(each)) for each in parts
        ]
        return [
            each for each in stored_parts if each is not None and not belongs_to(each, self._owner["uid"])
        ]

    async def epoch(self) -> int:
        """Return the epoch of the stored head; 0 when there is none."""
        stored = await self._find()
        return 0 if stored is None else decode_head(stored.get("data") or {}).epoch

    async def take_over(self, fresh: Head, epoch_above: int = 0) -> TableSnapshot:
        """Raise the epoch everywhere; create the table from `fresh` when there is none.

        Raises Corrupt when the stored table is inconsistent or has another number of partitions, NameTaken
        when it is not a table or that of another cluster, NameLeaves when that is being removed.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._take_over(fresh, epoch_above)
            except Conflict:
                continue
            except (NameTaken, NameLeaves) as error:
                raise self._in_the_way(await self._foreign(fresh.partitions)) from error
        raise Conflict(f"the table of {self._cluster} was changed {ATTEMPTS_MAX} times while taking it over")

    async def _take_over(self, fresh: Head, epoch_above: int) -> TableSnapshot:
        self._versions = {}
        stored = await self._find()
        if stored is None:
            return await self._create(fresh, epoch_above)
        head = decode_head(stored.get("data") or {})
        if head.partitions != fresh.partitions:
            raise Corrupt(
                f"the stored table has {head.partitions} partitions, but spec.partitions is "
                f"{fresh.partitions}: this number cannot change; set it back"
            )
        self._versions[self._name()] = stored["metadata"]["resourceVersion"]
        self._epoch = max(head.epoch, epoch_above) + 1
        head = replace(head, epoch=self._epoch)
        await self.write_head(head)
        rows: list[Partition] = []
        for number in range(shard_count(head.rows)):
            rows += await self._raise_shard(number, head.rows)
        return table_snapshot(head, rows)

    async def _raise_shard(self, number: int, partitions: int) -> Sequence[Partition]:
        stored = await self._find(number)
        if stored is None:
            raise Corrupt(
                f"ConfigMap {self._name(number)} is missing but {self._name()} exists: "
                "restore it from a backup"
            )
        shard = decode_shard(stored.get("data") or {}, number, partitions)
        if shard.epoch > self._epoch:
            raise Conflict(f"{self._name(number)} has epoch {shard.epoch}, above ours, {self._epoch}")
        self._versions[self._name(number)] = stored["metadata"]["resourceVersion"]
        await self.write_shard(number, shard.rows)
        return shard.rows

    async def _create(self, fresh: Head, epoch_above: int) -> TableSnapshot:
        """Create the table; shards of another master that does the same are taken over."""
        numbers = range(shard_count(fresh.partitions))
        epochs = [await self._find_empty(number, fresh.partitions) for number in numbers]
        self._epoch = max(epoch_above, *epochs) + 1
        for number in numbers:
            await self._create_shard(number, fresh.partitions)
        head = replace(fresh, epoch=self._epoch)
        await self._make(self._name(), encode_head(head))
        return table_snapshot(head, [EMPTY] * fresh.partitions)

    async def _find_empty(self, number: int, partitions: int) -> int:
        """Return the epoch of a shard without a head, 0 when there is no shard.

        Raises Corrupt when it has rows.
        """
        name = self._name(number)
        stored = await self._find(number)
        if stored is None:
            return 0
        shard = decode_shard(stored.get("data") or {}, number, partitions)
        if any(row.version for row in shard.rows):
            if await self.epoch():
                raise Conflict(f"{self._name()} was created by another master")
            raise Corrupt(
                f"ConfigMap {self._name()} is missing but {name} has rows: restore it from a backup"
            )
        self._versions[name] = stored["metadata"]["resourceVersion"]
        return shard.epoch

    async def _create_shard(self, number: int, partitions: int) -> None:
        """Create a shard. Raises Conflict when another process creates or changes it meanwhile."""
        rows = [EMPTY] * len(shard_range(number, partitions))
        if self._name(number) in self._versions:
            await self._put_shard(number, rows)
        else:
            await self._make(self._name(number), encode_shard(self._epoch, number, rows))

    async def _make(self, name: str, data: dict[str, str]) -> None:
        created = await self._api.create(CONFIG_MAPS, self._namespace, self._body(name, data))
        self._versions[name] = created["metadata"]["resourceVersion"]

    async def write_head(self, head: Head) -> None:
        await self._put(self._name(), encode_head(head))

    async def write_shard(self, number: int, rows: Sequence[Partition]) -> None:
        """Write a shard, also one that the table does not have yet."""
        if self._name(number) not in self._versions and await self._is_new(number):
            await self._make(self._name(number), encode_shard(self._epoch, number, rows))
        else:
            await self._put_shard(number, rows)

    async def _is_new(self, number: int) -> bool:
        """Return whether there is no such shard. One that an extension has left is taken over.

        Raises Corrupt when it has rows, Conflict when a later master made it.
        """
        stored = await self._find(number)
        if stored is None:
            return True
        shard = decode_rows(stored.get("data") or {}, number)
        if shard.epoch > self._epoch:
            raise Conflict(f"{self._name(number)} has epoch {shard.epoch}, above ours, {self._epoch}")
        if any(row.version for row in shard.rows):
            raise Corrupt(f"ConfigMap {self._name(number)} has rows that {self._name()} lacks: restore that")
        self._versions[self._name(number)] = stored["metadata"]["resourceVersion"]
        return False

    async def _put_shard(self, number: int, rows: Sequence[Partition]) -> None:
        await self._put(self._name(number), encode_shard(self._epoch, number, rows))

    async def _put(self, name: str, data: dict[str, str]) -> None:
        body = self._body(name, data)
        body["metadata"]["resourceVersion"] = self._versions[name]
        try:
            written = await self._api.replace(CONFIG_MAPS, self._namespace, body)
        except NotFound as error:
            raise Conflict(f"ConfigMap {name} was deleted while its cluster exists") from error
        self._versions[name] = written["metadata"]["resourceVersion"]

    def _body(self, name: str, data: Mapping[str, str]) -> dict[str, Any]:
        metadata = {"name": name, "labels": self._labels, "ownerReferences": [self._owner]}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}
