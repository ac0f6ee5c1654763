"""Slices hold every item once, are few, none empty, and differ by no more than one item."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.copy.pacing import PIECE_BYTES_MAX, PIECE_BYTES_MIN, SLICES_PER_SLOT_MAX, piece_bytes, slices


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 8))
def test_slices(sizes, slots):
    made = slices(sizes, slots)
    assert sorted(place for part in made for place in part) == list(range(len(sizes)))
    assert all(made)
    assert len(made) <= SLICES_PER_SLOT_MAX * slots
    sums = [sum(sizes[place] for place in part) for part in made]
    if sums:
        assert max(sums) - min(sums) <= max(sizes)


def test_no_slot_is_refused():
    with pytest.raises(ValueError, match="slots is 0"):
        slices([1], 0)


def test_a_piece_takes_some_seconds_at_its_rate() -> None:
    assert [piece_bytes(rate) for rate in (0, 1, 1 << 20, 1 << 30)] == [
        PIECE_BYTES_MAX,
        PIECE_BYTES_MIN,
        10 << 20,
        PIECE_BYTES_MAX,
    ]
