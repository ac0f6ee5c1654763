"""Fragments: every namespace travels once, in order; the vector says what replicas hold; turns are fair."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.copy import fragments
from stele.core.copy.fragments import gather, group, round_robin, vector_fault, versions

names = st.lists(st.text("abcxyz", min_size=1, max_size=3), unique=True, max_size=12)


def test_the_grouping_of_the_seed() -> None:
    """MapService and CacheService know namespaces of their own, list and queue do not."""
    namespaces = ["list1", "map1", "map2", "cache1", "queue1"]
    fragmented = {"map1", "map2", "cache1"}
    assert group(namespaces, fragmented.__contains__) == [
        ("list1", "queue1"),
        ("map1",),
        ("map2",),
        ("cache1",),
    ]


@given(names, st.sets(st.text("abcxyz", min_size=1, max_size=3)))
def test_every_namespace_is_in_one_fragment(given_names: list[str], alone: set[str]) -> None:
    made = group(given_names, alone.__contains__)
    assert sorted(each for fragment in made for each in fragment) == sorted(given_names)
    together = [name for name in given_names if name not in alone]
    assert [fragment for fragment in made if len(fragment) > 1 or fragment[0] not in alone] == (
        [tuple(together)] if together else []
    )


def test_the_number_of_fragments_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "FRAGMENTS_MAX", 3)
    assert group("abcde", "bcde".__contains__) == [("a",), ("b",), ("c", "d", "e")]
    assert group("abc", "bc".__contains__) == [("a",), ("b",), ("c",)]


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 20))
def test_small_neighbours_share_a_fragment_and_large_ones_do_not(sizes: list[int], room: int) -> None:
    made = gather([(place,) for place in range(len(sizes))], sizes.__getitem__, room)
    assert [place for fragment in made for place in fragment] == list(range(len(sizes)))
    assert all(len(each) == 1 or sum(sizes[place] for place in each) <= room for each in made)
    for one, other in pairwise(made):
        assert sum(sizes[place] for place in one) + sizes[other[0]] > room


def test_the_vector_tells_what_each_replica_is_known_to_hold() -> None:
    assert versions((4, 7, None, 2), 100, 4, {7: 90, 2: 300, 9: 5}) == (100, 90, -1, 100)
    assert versions((4, 7), 100, 7, {}) == (-1, 100)
    assert versions((), 100, 7, {}) == ()


@pytest.mark.parametrize(("vector", "fine"), [((), True), ((5, -1), True), ((6,), False), ((-2,), False)])
def test_a_vector_never_goes_beyond_its_snapshot(vector: tuple[int, ...], fine: bool) -> None:
    fault = vector_fault(vector, 5)
    assert (fault is None) is fine
    assert fine or "expected -1 to 5" in str(fault)


def test_a_large_tablet_holds_up_nobody() -> None:
    left = {"huge": 100, "a": 1, "b": 2, "c": 1}
    order: list[str] = []

    def turn(name: str) -> bool:
        order.append(name)
        left[name] -= 1
        return left[name] == 0

    round_robin(list(left), turn, 2)
    assert order[:8] == ["huge", "a", "huge", "b", "huge", "b", "huge", "c"]
    assert len(order) == 104


@given(st.lists(st.integers(1, 5), max_size=8), st.integers(1, 4))
def test_everybody_gets_all_its_turns(turns: list[int], width: int) -> None:
    left = dict(enumerate(turns))
    begun: list[int] = []

    def turn(name: int) -> bool:
        if name not in begun:
            begun.append(name)
        left[name] -= 1
        assert sum(0 < left[each] < turns[each] for each in left) <= width
        return left[name] == 0

    round_robin(list(left), turn, width)
    assert set(left.values()) <= {0}
    assert begun == list(range(len(turns)))
