"""Ranges of formats: whatever two builds speak, both agree on what they speak with each other."""

from hypothesis import given
from hypothesis import strategies as st

from stele.core.formats import FIRST, SPOKEN, UNSTATED, FormatRange

ranges = st.tuples(st.integers(1, 9), st.integers(0, 4)).map(lambda at: FormatRange(at[0], sum(at)))


@given(ranges, ranges)
def test_two_builds_speak_the_highest_format_of_both_or_none(one: FormatRange, other: FormatRange) -> None:
    both = [number for number in range(1, 20) if one.speaks(number) and other.speaks(number)]
    assert one.common(other) == other.common(one) == max(both, default=None)


def test_this_build_speaks_with_the_one_before() -> None:
    assert SPOKEN.least == SPOKEN.most - 1
    assert SPOKEN.common(FormatRange(SPOKEN.least - 1, SPOKEN.most - 1)) == SPOKEN.most - 1
    assert SPOKEN.common(FormatRange(SPOKEN.most, SPOKEN.most + 1)) == SPOKEN.most


def test_a_build_that_states_no_range_speaks_the_first_format() -> None:
    assert UNSTATED == (FIRST, FIRST)
    assert (str(UNSTATED), str(SPOKEN)) == ("format 1", "formats 1 to 2")
