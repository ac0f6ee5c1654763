"""One suite for the table's store: in memory, and in ConfigMaps: files, a simulated and a real API server."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CONFIG_MAPS, Api
from stele.adapters.kubernetes.login import log_in
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.core.security.level import InternalTls
from stele.core.table.table import Member, Partition
from stele.errors import BadInput, Conflict, Corrupt, Uncertain
from stele.master.loop import fresh_head
from stele.playground.api import FileApi
from stele.playground.objects import ObjectFiles
from stele.ports.control_loop import TableStore
from stele.wire.configmap import MEMBERS_MAX
from tests.contract.conftest import REAL, simulated_api
from tests.fakes.api import NAMESPACE
from tests.fakes.table_store import MemoryTableStore, StoredObjects

PARTITIONS = 700
LENGTHS = {0: 512, 1: PARTITIONS - 512}
FRESH = fresh_head(PARTITIONS, 2)
MEMBERS = tuple(Member(index, f"demo-{index}", f"uuid-{index}", "10.0.0.1") for index in (0, 1))


@dataclass
class Memory:
    """`store` is that of another process each time; the parts of the table are `head`, 0 and 1."""

    shared: StoredObjects

    def store(self) -> TableStore:
        return MemoryTableStore(self.shared)

    async def lose(self, part: object) -> None:
        del self.shared.objects[_name(part)]

    async def tamper(self, part: object, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        version, data = self.shared.objects[_name(part)]
        self.shared.objects[_name(part)] = (version + 1000, change(data))


def _name(part: object) -> str:
    return "head" if part == "head" else f"shard-{part}"


@dataclass
class Kubernetes:
    """The same in ConfigMaps."""

    api: Any
    namespace: str
    owner: dict[str, str]

    def store(self) -> TableStore:
        return KubernetesTableStore(
            self.api, self.namespace, "demo", self.owner, {"stele.dev/cluster": "demo"}
        )

    async def lose(self, part: object) -> None:
        await self.api.delete(CONFIG_MAPS, self.namespace, self._name(part), None)

    async def tamper(self, part: object, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        found = await self.api.get(CONFIG_MAPS, self.namespace, self._name(part))
        await self.api.replace(CONFIG_MAPS, self.namespace, {**found, "data": change(found["data"])})

    def _name(self, part: object) -> str:
        return "demo-table" if part == "head" else f"demo-table-{part}"


Place = Memory | Kubernetes


@pytest.fixture(params=["memory", "files", "simulated", REAL])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where one table is stored."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1"}
    if request.param == "memory":
        yield Memory(StoredObjects())
    elif request.param == "files":
        yield Kubernetes(FileApi(ObjectFiles(tmp_path)), NAMESPACE, owner)
    elif request.param == "simulated":
        yield Kubernetes(simulated_api(), NAMESPACE, owner)
    else:
        namespace = request.getfixturevalue("namespace")
        plane = request.getfixturevalue("control_plane")
        async with Api(await log_in(str(plane.kubeconfig))) as api:
            yield Kubernetes(api, namespace, owner)


def rows(number: int, version: int = 1) -> list[Partition]:
    return [Partition(version, (0, 1))] * LENGTHS[number]


async def begun(table: Place) -> tuple[TableStore, Any]:
    """A store that leads over a table with two members and with rows."""
    store = table.store()
    table_snapshot = await store.take_over(FRESH)
    head = replace(table_snapshot.head, members=MEMBERS, next_member_index=2, member_tls=InternalTls.DIAL)
    await store.write_head(head)
    for number in LENGTHS:
        await store.write_shard(number, rows(number))
    return store, head


# -- reigns


async def test_the_first_master_creates_the_table(table: Place) -> None:
    assert await table.store().epoch() == 0
    table_snapshot = await table.store().take_over(FRESH)
    assert table_snapshot.head.epoch == 1
    assert [row.version for row in table_snapshot.table.partitions] == [0] * PARTITIONS
    assert await table.store().epoch() == 1


async def test_the_next_master_finds_what_was_written(table: Place) -> None:
    await begun(table)
    table_snapshot = await table.store().take_over(FRESH)
    assert (table_snapshot.head.epoch, table_snapshot.head.members) == (2, MEMBERS)
    assert table_snapshot.head.member_tls is InternalTls.DIAL
    assert table_snapshot.table.partitions == (*rows(0), *rows(1))
    assert dict(table_snapshot.table.members) == {0: MEMBERS[0], 1: MEMBERS[1]}


async def test_a_deposed_master_can_write_neither_head_nor_any_shard(table: Place) -> None:
    first, head = await begun(table)
    second = table.store()
    await second.take_over(FRESH)
    with pytest.raises(Conflict):
        await first.write_head(head)
    for number in LENGTHS:
        with pytest.raises(Conflict):
            await first.write_shard(number, rows(number, 2))
    await second.write_shard(0, rows(0, 3))
    await second.write_shard(0, rows(0, 4))
    assert (await table.store().take_over(FRESH)).table.partitions == (*rows(0, 4), *rows(1))


async def test_a_take_over_that_ended_half_way_deposes_by_parts(table: Place) -> None:
    """Only the head was raised: the old master cannot write that, but still a shard, and the next one sees
    what it wrote there.
    """
    first, head = await begun(table)
    second = table.store()

    async def fail(*_: object) -> None:
        raise Uncertain("the process ends here")

    second.write_shard = fail  # type: ignore[method-assign]
    with pytest.raises(Uncertain):
        await second.take_over(FRESH)
    with pytest.raises(Conflict):
        await first.write_head(head)
    await first.write_shard(1, rows(1, 2))
    table_snapshot = await table.store().take_over(FRESH)
    assert table_snapshot.head.epoch == 3
    assert table_snapshot.table.partitions == (*rows(0), *rows(1, 2))
    with pytest.raises(Conflict):
        await first.write_shard(1, rows(1, 3))


async def test_an_epoch_above_what_members_saw_can_be_asked_for(table: Place) -> None:
    await table.store().take_over(FRESH)
    assert (await table.store().take_over(FRESH, epoch_above=41)).head.epoch == 42
    assert (await table.store().take_over(FRESH, epoch_above=7)).head.epoch == 43


async def test_a_creation_that_did_not_end_is_done_again_with_a_greater_epoch(table: Place) -> None:
    """The shards are made before the head."""
    first = table.store()
    await first.take_over(FRESH, epoch_above=4)
    await table.lose("head")
    assert await table.store().epoch() == 0
    assert (await table.store().take_over(FRESH)).head.epoch == 6
    for number in LENGTHS:
        with pytest.raises(Conflict):
            await first.write_shard(number, rows(number))


# -- damage


async def test_another_number_of_partitions_is_refused(table: Place) -> None:
    await table.store().take_over(FRESH)
    with pytest.raises(Corrupt, match="700 partitions"):
        await table.store().take_over(fresh_head(8, 2))


@pytest.mark.parametrize("lost", ["head", 0, 1])
async def test_a_table_that_lost_a_part_is_not_begun_anew(table: Place, lost: Any) -> None:
    store, head = await begun(table)
    await table.lose(lost)
    with pytest.raises(Corrupt, match="restore"):
        await table.store().take_over(FRESH)
    late = store.write_head(head) if lost == "head" else store.write_shard(lost, rows(lost, 2))
    with pytest.raises(Conflict):
        await late


TAMPERED: dict[str, tuple[object, Callable[[dict[str, str]], dict[str, str]]]] = {
    "a head of another format": ("head", lambda data: {**data, "format": "9"}),
    "a head without its epoch": ("head", lambda data: {k: v for k, v in data.items() if k != "epoch"}),
    "an epoch that is no number": ("head", lambda data: {**data, "epoch": "-1"}),
    "a member that is cut off": ("head", lambda data: {**data, "members": data["members"][:-3]}),
    "a row that is missing": (0, lambda data: {**data, "rows": data["rows"].split("\n", 1)[1]}),
    "a row that is no row": (1, lambda data: {**data, "rows": data["rows"].replace("512 1:", "512 one:")}),
    "a row of a member that is not known": (
        1,
        lambda data: {**data, "rows": data["rows"].replace("0,1", "0,7")},
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_what_somebody_else_wrote_wrongly_is_damage(table: Place, what: str) -> None:
    await begun(table)
    part, change = TAMPERED[what]
    await table.tamper(part, change)
    with pytest.raises(Corrupt):
        await table.store().take_over(FRESH)


async def test_a_part_that_somebody_else_wrote_is_not_written_over(table: Place) -> None:
    store, head = await begun(table)
    await table.tamper("head", lambda data: {**data, "stamp": "7"})
    await table.tamper(1, lambda data: data | {"epoch": "9"})
    with pytest.raises(Conflict):
        await store.write_head(head)
    with pytest.raises(Conflict):
        await store.write_shard(1, rows(1, 2))
    await store.write_shard(0, rows(0, 2))


async def test_what_does_not_fit_is_refused_before_it_is_sent(table: Place) -> None:
    store, head = await begun(table)
    many = tuple(Member(n, f"demo-{n}", f"uuid-{n}", "10.0.0.1") for n in range(MEMBERS_MAX + 1))
    with pytest.raises(BadInput, match=f"at most {MEMBERS_MAX}"):
        await store.write_head(replace(head, members=many, next_member_index=len(many)))
    with pytest.raises(BadInput, match="rows"):
        await store.write_shard(0, [])
    await store.write_head(head)
