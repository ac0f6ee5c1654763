"""One contract for the table's store: in memory, and in ConfigMaps of a real API server."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CONFIG_MAPS, Api
from stele.adapters.kubernetes.login import log_in
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.adapters.memory.table_store import MemoryTableStore, StoredObjects
from stele.core.errors import Conflict, Corrupt
from stele.core.table import Member, Partition
from stele.master.loop import fresh_head
from stele.master.ports import TableStore

pytestmark = pytest.mark.control_plane

PARTITIONS = 700
FRESH = fresh_head(PARTITIONS, 2)

Stores = Callable[[], TableStore]


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    async with Api(await log_in(str(control_plane.kubeconfig))) as found:
        yield found


@pytest.fixture(params=["memory", "kubernetes"])
async def stores(request: pytest.FixtureRequest, api: Api, namespace: str) -> Stores:
    """Makes the store of another process each time; all look at the same table."""
    if request.param == "memory":
        shared = StoredObjects()
        return lambda: MemoryTableStore(shared)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    made = await api.create(CONFIG_MAPS, namespace, body)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": made["metadata"]["uid"]}
    return lambda: KubernetesTableStore(api, namespace, "demo", owner, {"stele.dev/cluster": "demo"})


async def test_the_first_master_creates_the_table(stores: Stores) -> None:
    assert await stores().epoch() == 0
    reigned = await stores().take_over(FRESH)
    assert reigned.head.epoch == 1
    assert [row.version for row in reigned.table.partitions] == [0] * PARTITIONS
    assert await stores().epoch() == 1


async def test_the_next_master_finds_what_was_written(stores: Stores) -> None:
    first = stores()
    began = await first.take_over(FRESH)
    members = tuple(Member(index, f"demo-{index}", f"uuid-{index}", "10.0.0.1") for index in (0, 1))
    await first.write_head(replace(began.head, members=members, next_member_index=2))
    rows = [Partition(1, (0, 1))] * (PARTITIONS - 512)
    await first.write_shard(1, rows)
    reigned = await stores().take_over(FRESH)
    assert reigned.head.epoch == 2
    assert reigned.table.partitions[512:] == tuple(rows)


async def test_a_deposed_master_can_write_neither_head_nor_any_shard(stores: Stores) -> None:
    first, second = stores(), stores()
    reigned = await first.take_over(FRESH)
    await second.take_over(FRESH)
    with pytest.raises(Conflict):
        await first.write_head(reigned.head)
    for number, length in ((0, 512), (1, PARTITIONS - 512)):
        with pytest.raises(Conflict):
            await first.write_shard(number, [Partition(1, (0,))] * length)
    await second.write_shard(0, [Partition(1, (0,))] * 512)
    await second.write_shard(0, [Partition(2, (0,))] * 512)


async def test_an_epoch_above_what_members_saw_can_be_asked_for(stores: Stores) -> None:
    await stores().take_over(FRESH)
    assert (await stores().take_over(FRESH, epoch_above=41)).head.epoch == 42


async def test_another_number_of_partitions_is_refused(stores: Stores) -> None:
    await stores().take_over(FRESH)
    with pytest.raises(Corrupt, match="700 partitions"):
        await stores().take_over(fresh_head(8, 2))


@pytest.mark.parametrize("lost", ["demo-table", "demo-table-1"])
async def test_a_table_that_lost_a_part_is_not_begun_anew(api: Api, namespace: str, lost: str) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1"}
    first = KubernetesTableStore(api, namespace, "demo", owner, {})
    await first.take_over(FRESH)
    await first.write_shard(0, [Partition(1, (0,))] * 512)
    await api.delete(CONFIG_MAPS, namespace, lost, None)
    with pytest.raises(Corrupt, match="restore"):
        await KubernetesTableStore(api, namespace, "demo", owner, {}).take_over(FRESH)
