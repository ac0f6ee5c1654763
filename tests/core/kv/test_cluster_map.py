"""The map of slots says the same as `keyslot`, for every table."""

from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv.cluster_map import ClusterNode, cluster_map, node_id, slots_of_partition
from stele.core.kv.keyslot import SLOTS
from stele.core.table.table import EMPTY, Member, Partition

MEMBERS = {n: Member(n, f"demo-{n}", f"uuid-{n}", f"10.0.0.{n + 1}") for n in range(3)}


def node(index: int) -> ClusterNode:
    return ClusterNode(node_id(f"uuid-{index}"), f"10.0.0.{index + 1}")


def test_neighbours_of_one_owner_are_one_range() -> None:
    rows = [Partition(1, (0, 1)), Partition(1, (0, 2)), Partition(4, (2,)), EMPTY]
    found = cluster_map(rows, MEMBERS, 1, epoch=6)
    assert found.ranges == ((0, 8191, node(0)), (8192, 12287, node(2)))
    assert set(found.nodes) == {node(0), node(1), node(2)}, "owners, and the member itself"
    assert (found.me, found.assigned, found.epoch) == (node(1), 12288, 6)
    assert found.slots_of(node(1)) == []


def test_an_id_has_the_form_that_clients_expect() -> None:
    assert len(node_id("uuid-0")) == 40
    assert int(node_id("uuid-0"), 16) >= 0
    assert node_id("uuid-0") != node_id("uuid-1")


def test_an_owner_that_is_in_no_member_list_has_no_slots() -> None:
    gone = cluster_map([Partition(3, (7,))], MEMBERS, 7, epoch=3)
    assert (gone.ranges, gone.nodes, gone.me) == ((), (), None)


@given(st.lists(st.sampled_from((None, 0, 1, 2)), min_size=1, max_size=300))
def test_each_slot_belongs_to_the_owner_of_its_partition(owners: list[int | None]) -> None:
    rows = [EMPTY if owner is None else Partition(1, (owner,)) for owner in owners]
    found = cluster_map(rows, MEMBERS, 0, epoch=1)
    for partition, owner in enumerate(owners):
        slots = slots_of_partition(partition, len(owners))
        for slot in (slots[0], slots[-1]):
            assert slot * len(owners) // SLOTS == partition
            owned_by = [each.owner for each in found.ranges if each.first <= slot <= each.last]
            assert owned_by == ([] if owner is None else [node(owner)])
    ends = [(each.first, each.last) for each in found.ranges]
    assert ends == sorted(ends)


@given(st.integers(1, 70_000))
def test_partitions_share_the_slots_evenly(partitions: int) -> None:
    some = sorted({*range(0, partitions, max(1, partitions // 100)), partitions - 1})
    sizes = {len(slots_of_partition(partition, partitions)) for partition in some}
    assert max(sizes) - min(sizes) <= 1
    assert slots_of_partition(0, partitions).start == 0
    assert slots_of_partition(partitions - 1, partitions).stop == SLOTS
