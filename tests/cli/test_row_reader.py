"""Rows as long commands read them: how many reads they cost, and how old they may be."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from stele.adapters.kubernetes.api import Api, Kind, Object
from stele.cli.row_reader import ROWS_SECONDS_MAX, PlacedRow, RowReader
from stele.core.control.commands import OpId
from stele.core.table.table import SHARD_PARTITIONS, Member, Partition
from stele.wire.admin import TabletChecksum
from stele.wire.configmap import Head, encode_head, encode_shard, shard_count, shard_range
from tests.cli.conftest import Run
from tests.cli.served_objects import Stored, cluster, listing, member
from tests.cli.test_tablets import Shell

PARTITIONS = 2 * SHARD_PARTITIONS + 76


def table(partitions: int) -> list[Stored]:
    """The ConfigMaps of a table in which two members hold every partition."""
    members = tuple(Member(index, f"demo-{index}", f"u{index}", "a:1") for index in range(2))
    head = encode_head(Head(1, "Active", partitions, 2, 1, 2, 0, partitions, members))
    shards = [
        encode_shard(1, number, [Partition(1, (0, 1))] * len(shard_range(number, partitions)))
        for number in range(shard_count(partitions))
    ]
    named = {"demo-table": head} | {f"demo-table-{number}": each for number, each in enumerate(shards)}
    return [{"metadata": {"name": name, "namespace": "ns"}, "data": data} for name, data in named.items()]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Objects that were read, by kind."""
    real, counted = Api.get, Counter[str]()

    async def get(self: Api, kind: Kind, namespace: str, name: str) -> Object:
        counted[kind.plural] += 1
        return await real(self, kind, namespace, name)

    monkeypatch.setattr(Api, "get", get)
    return counted


async def equal(request: web.Request) -> web.Response:
    """An empty tablet."""
    answer = TabletChecksum(int(request.query["partition"]), 1, OpId(), "", False, 0, 0, "0", (), 1)
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


async def test_verify_reads_each_shard_once_and_each_member_once(
    run: Run, tmp_path: Path, reads: Counter[str]
) -> None:
    stored = {
        "tabletclusters": [cluster()],
        "tabletmembers": [member(0), member(1)],
        "configmaps": table(PARTITIONS),
    }
    async with listing(tmp_path, lambda: stored, proxied=equal) as path:
        found = (await Shell(run, path)("verify", "demo", "-o", "json")).json
    assert (found["partitions"], found["differences"], found["skipped"]) == (PARTITIONS, [], [])
    assert reads == {"configmaps": 1 + 3, "tabletmembers": 2, "tabletclusters": 2}


class Stage:
    """A table whose rows count how often they were read, and a clock."""

    def __init__(self) -> None:
        self.now, self.heads, self.shards, self.replicas = 0.0, 0, list[int](), (0, 1)

    async def table_head(self, cluster: str) -> Any:
        self.heads += 1
        return SimpleNamespace(rows=PARTITIONS, members=[Member(0, "demo-0", "u", "")])

    async def table_shard(self, cluster: str, head: Any, number: int) -> list[Partition]:
        self.shards.append(number)
        return [Partition(len(self.shards), self.replicas)] * SHARD_PARTITIONS


async def test_rows_are_read_again_when_they_are_old_or_have_to_be_fresh() -> None:
    stage = Stage()
    console: Any = stage
    reader = RowReader(console, "demo", lambda: stage.now)
    assert await reader.count() == PARTITIONS
    assert await reader.row(7) == await reader.row(8) == PlacedRow(1, ("demo-0", "(member 1)"))
    assert (stage.heads, stage.shards) == (1, [0])
    stage.now += ROWS_SECONDS_MAX + 1
    assert (await reader.row(9)).version == 2
    assert (stage.heads, stage.shards) == (2, [0, 0])
    stage.replicas = ()
    assert await reader.row(9, fresh=True) == PlacedRow(3, ())
    assert (stage.heads, stage.shards) == (3, [0, 0, 0])
    await reader.row(SHARD_PARTITIONS)
    assert (stage.heads, stage.shards) == (3, [0, 0, 0, 1])
