"""The map of slots says the same as `keyslot`, for every table."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv.announce import Announce
from stele.core.kv.cluster_map import (
    ClusterMap,
    ClusterNode,
    SlotRange,
    backup_id,
    cluster_map,
    moved_slots,
    node_id,
    slots_of_partition,
)
from stele.core.kv.keyslot import SLOTS
from stele.core.table.table import EMPTY, Member, Partition

MEMBERS = {n: Member(n, f"demo-{n}", f"uuid-{n}", f"10.0.0.{n + 1}") for n in range(3)}


def node(index: int) -> ClusterNode:
    return ClusterNode(node_id(f"uuid-{index}"), f"10.0.0.{index + 1}")


def backup(index: int) -> ClusterNode:
    return ClusterNode(backup_id(f"uuid-{index}"), f"10.0.0.{index + 1}")


def ranges_of(found: ClusterMap) -> list[SlotRange]:
    return list(chain(*found.pieces(len(found.rows))))


def test_neighbours_of_the_same_members_are_one_range() -> None:
    rows = [Partition(1, (0, 1)), Partition(7, (0, 1)), Partition(1, (0, None, 2)), Partition(4, (0, 9))]
    found = cluster_map(rows, MEMBERS, 1, epoch=6)
    assert ranges_of(found) == [
        (0, 8191, node(0), (backup(1),)),
        (8192, 12287, node(0), (backup(2),)),
        (12288, 16383, node(0), ()),
    ]
    assert [len(some) for some in found.pieces(2)] == [0, 2, 1], "a range comes with its last partition"
    assert found.own == ()
    assert node(1).id != backup(1).id, "clients give each node one role"


def test_neighbours_of_one_owner_are_one_range() -> None:
    rows = [Partition(1, (0,)), Partition(1, (0,)), Partition(4, (2,)), EMPTY]
    found = cluster_map(rows, MEMBERS, 1, epoch=6)
    assert ranges_of(found) == [(0, 8191, node(0), ()), (8192, 12287, node(2), ())]
    assert (found.me, found.epoch) == (node(1), 6)
    assert cluster_map(rows, MEMBERS, 0, epoch=6).own == (0, 1)


def test_an_id_has_the_form_that_clients_expect() -> None:
    assert len(node_id("uuid-0")) == 40
    assert int(node_id("uuid-0"), 16) >= 0
    assert node_id("uuid-0") != node_id("uuid-1")


def test_an_owner_that_is_in_no_member_list_has_no_slots() -> None:
    gone = cluster_map([Partition(3, (7,))], MEMBERS, 7, epoch=3)
    assert (ranges_of(gone), gone.own, gone.me) == ([], (), None)


@given(st.lists(st.sampled_from((None, 0, 1, 2)), min_size=1, max_size=300), st.integers(1, 400))
def test_each_slot_belongs_to_the_owner_of_its_partition(owners: list[int | None], piece: int) -> None:
    rows = [EMPTY if owner is None else Partition(1, (owner,)) for owner in owners]
    found = cluster_map(rows, MEMBERS, 0, epoch=1)
    ranges = ranges_of(found)
    assert [each for some in found.pieces(piece) for each in some] == ranges
    for partition, owner in enumerate(owners):
        slots = slots_of_partition(partition, len(owners))
        for slot in (slots[0], slots[-1]):
            assert slot * len(owners) // SLOTS == partition
            owned_by = [each.owner for each in ranges if each.first <= slot <= each.last]
            assert owned_by == ([] if owner is None else [node(owner)])
    ends = [(each.first, each.last) for each in ranges]
    assert ends == sorted(ends)


@given(st.integers(1, 70_000))
def test_partitions_share_the_slots_evenly(partitions: int) -> None:
    some = sorted({*range(0, partitions, max(1, partitions // 100)), partitions - 1})
    sizes = {len(slots_of_partition(partition, partitions)) for partition in some}
    assert max(sizes) - min(sizes) <= 1
    assert slots_of_partition(0, partitions).start == 0
    assert slots_of_partition(partitions - 1, partitions).stop == SLOTS


@pytest.mark.parametrize(
    ("announce", "owner", "backup"),
    [
        (Announce(), ("10.0.0.2", 0), ("10.0.0.3", 0)),
        (
            Announce("{member}.test", 6380, 6381),
            ("demo-1.test", 6380),
            ("demo-2.test", 6381),
        ),
        (Announce("r{ordinal}", 1, 2, 0), ("r1", 1), ("r2", 2)),
        (Announce("192.0.2.1", 30000, 31000, 2), ("192.0.2.1", 30002), ("192.0.2.1", 31004)),
    ],
)
def test_clients_are_given_the_announced_addresses(
    announce: Announce, owner: tuple[str, int], backup: tuple[str, int]
) -> None:
    (found,) = ranges_of(cluster_map([Partition(1, (1, 2))], MEMBERS, 0, epoch=1, announce=announce))
    assert found.owner[1:] == owner
    assert [each[1:] for each in found.backups] == [backup]


def test_slots_with_another_owner_are_named_with_both() -> None:
    before = cluster_map([Partition(1, (n,)) for n in (0, 0, 1, 1)], MEMBERS, 0, epoch=4)
    assert moved_slots(before, before) == []
    after = cluster_map([Partition(2, (n,)) for n in (0, 2, 2, 1)], MEMBERS, 0, epoch=8)
    assert moved_slots(before, after) == [
        (node(0), node(2), "4096-8191"),
        (node(1), node(2), "8192-12287"),
    ]
    swapped = cluster_map([Partition(2, (n,)) for n in (1, 0, 1, 0)], MEMBERS, 0, epoch=8)
    assert moved_slots(before, swapped) == [(node(0), node(1), "0-4095"), (node(1), node(0), "12288-16383")]
    lost = cluster_map([EMPTY, EMPTY, *[Partition(2, (1,))] * 2], MEMBERS, 0, epoch=8)
    assert moved_slots(before, lost) == [], "what has no owner has not moved anywhere"
    elsewhere = {**MEMBERS, 1: Member(1, "demo-1", "uuid-1", "10.0.0.9")}
    restarted = cluster_map(before.rows, elsewhere, 0, epoch=4)
    assert [(each.host, other.host, slots) for each, other, slots in moved_slots(before, restarted)] == [
        ("10.0.0.2", "10.0.0.9", "8192-16383")
    ]
