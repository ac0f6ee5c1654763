"""The table of who caches what: readers, eviction, and its memory as it really is."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv.interest import EVICTED_AT_ONCE, Interest, Prefixes


def test_a_reader_is_returned_once() -> None:
    interest = Interest()
    interest.add(3, b"k", 7)
    interest.add(3, b"k", 7)
    interest.add(3, b"k", 8)
    assert (interest.keys, interest.items) == (1, 2)
    assert set(interest.take(3, b"k")) == {7, 8}
    assert not interest.take(3, b"k")
    assert not interest
    assert (interest.keys, interest.items, interest.held_bytes) == (0, 0, 0)


def test_a_partition_is_taken_by_prefix_or_as_a_whole() -> None:
    interest = Interest()
    for partition, name in ((1, b"a-1"), (1, b"a-2"), (1, b"b-1"), (2, b"a-1")):
        interest.add(partition, name, 5)
    assert [name for name, _ in interest.take_all(1, b"a-")] == [b"a-1", b"a-2"]
    assert [name for name, _ in interest.take_all(1)] == [b"b-1"]
    assert interest.partitions() == [2]


def test_the_least_recent_keys_are_evicted_from_each_partition_in_turn() -> None:
    interest = Interest(keys_max=4 * EVICTED_AT_ONCE)
    for n in range(2 * EVICTED_AT_ONCE):
        interest.add(1, b"%d" % n, 5)
        interest.add(2, b"%d" % n, 6)
    interest.add(1, b"0", 5)  # It is recent again.
    assert not interest.evicted()
    interest.add(3, b"new", 7)
    gone = interest.evicted()
    assert {each.partition for each in gone} == {1}
    assert [each.name for each in gone] == [b"%d" % n for n in range(1, EVICTED_AT_ONCE + 1)]
    assert all(tuple(each.readers) == (5,) for each in gone)
    for n in range(EVICTED_AT_ONCE):
        interest.add(3, b"%d" % n, 7)
    assert {each.partition for each in interest.evicted()} == {2}


def test_many_readers_of_one_key_are_bounded_too() -> None:
    interest = Interest(bytes_max=10_000)
    evicted: list[int] = []
    for reader in range(1000):
        interest.add(1, b"hot", reader)
        evicted += [each for gone in interest.evicted() for each in sorted(gone.readers)]
        assert interest.held_bytes <= 10_000
    assert evicted == list(range(len(evicted)))
    assert evicted


@pytest.mark.parametrize(("length", "readers"), [(8, 1), (40, 1), (40, 2), (200, 3), (20, 40)])
def test_its_bytes_are_those_that_it_really_holds(length: int, readers: int) -> None:
    """At no size of the dict are there more, as far as tracemalloc sees, and not very many fewer."""
    chance = random.Random(1)
    interest = Interest(10**9, 10**12)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(8_000 // readers):
            name = chance.randbytes(length)
            for reader in range(readers):
                interest.add(n % 7, name, reader + 10**6)
            if n % 400 == 399:
                held = tracemalloc.get_traced_memory()[0] - before
                assert held <= interest.held_bytes + 4096
                assert interest.held_bytes <= 3 * held
    finally:
        tracemalloc.stop()


@given(st.lists(st.tuples(st.sampled_from("atp"), st.integers(0, 2), st.integers(0, 5), st.integers(0, 3))))
def test_no_reader_is_forgotten(steps: list[tuple[str, int, int, int]]) -> None:
    interest, model = Interest(keys_max=4, bytes_max=4000), dict[tuple[int, bytes], set[int]]()
    for kind, partition, key, reader in steps:
        name = b"k%d" % key
        if kind == "a":
            interest.add(partition, name, reader)
            model.setdefault((partition, name), set()).add(reader)
            for gone in interest.evicted():
                assert model.pop((gone.partition, gone.name)) == set(gone.readers)
            assert interest.keys <= 4
        elif kind == "t":
            assert set(interest.take(partition, name)) == model.pop((partition, name), set())
        else:
            for each, readers in interest.take_all(partition):
                assert model.pop((partition, each)) == set(readers)
            assert all(other != partition for other, _ in model)
    assert interest.keys == len(model)
    assert bool(interest) == bool(model)


def test_prefixes_match_keys_that_begin_with_one_of_them() -> None:
    prefixes = Prefixes([b"user:", b"x"])
    assert [prefixes.matches(key) for key in (b"user:1", b"user", b"xyz", b"", b"yx")] == [
        True, False, True, False, False,
    ]  # fmt: skip
    assert Prefixes([b""]).matches(b"")
    assert not Prefixes([]).matches(b"a")
