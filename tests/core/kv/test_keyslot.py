"""Slots as Redis Cluster computes them; every partition is reachable and slots map in order."""

import pytest

from stele.core.kv.keyslot import SLOTS, partition_of, slot_of


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 0x31C3 % SLOTS),
        (b"foo", 12182),
        (b"bar", 5061),
        (b"", 0),
        (b"{foo}.x", 12182),
        (b"a{foo}b{bar}", 12182),
        (b"{}foo", slot_of(b"{}foo")),
    ],
)
def test_slots_of_redis_cluster(key, slot):
    assert slot_of(key) == slot


def test_an_empty_or_open_tag_hashes_the_whole_key():
    assert slot_of(b"{}foo") != slot_of(b"foo")
    assert slot_of(b"{foo") != slot_of(b"foo")


@pytest.mark.parametrize("partitions", [1, 3, 271, 1000, SLOTS])
def test_every_partition_has_keys(partitions):
    keys = [b"k%d" % n for n in range(20 * partitions)] if partitions <= 1000 else None
    if keys is None:
        assert {slot * partitions // SLOTS for slot in range(SLOTS)} == set(range(partitions))
    else:
        assert {partition_of(key, partitions) for key in keys} == set(range(partitions))
