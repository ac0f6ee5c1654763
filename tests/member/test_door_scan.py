"""Patterns as Redis reads them, none of them slow; cursors."""

import time

import pytest

from stele.member.door_scan import SCAN_POSITIONS_MAX, Positions, pattern_matcher


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"*", [b"", b"a\nb"], []),
        (b"", [b""], [b"a"]),
        (b"a*c", [b"ac", b"abbc", b"acc"], [b"ab", b"bac"]),
        (b"a*b*c", [b"abc", b"axbxbxc"], [b"acb"]),
        (b"?x", [b"ax", b"\nx"], [b"x", b"aax"]),
        (b"[a-c]1", [b"a1", b"c1"], [b"d1"]),
        (b"[c-a]1", [b"b1"], [b"d1"]),
        (b"[^a]1", [b"b1", b"^1"], [b"a1"]),
        (b"[\\]]", [b"]"], [b"\\"]),
        (b"[ab", [b"a", b"b"], [b"c"]),
        (b"[]x", [], [b"x", b"]x"]),
        (b"\\*", [b"*"], [b"a"]),
        (b"a\\", [b"a\\"], [b"a"]),
        (b"a.c", [b"a.c"], [b"abc"]),
        (b"\xff*", [b"\xff\x00"], [b"\xfe"]),
    ],
)
def test_patterns(pattern, yes, no):
    matches = pattern_matcher(pattern)
    assert [key for key in [*yes, *no] if matches(key)] == yes


def test_no_pattern_is_exponential():
    matches = pattern_matcher(b"*a" * 400 + b"b")
    begin = time.perf_counter()
    assert not matches(b"a" * 5000)
    assert time.perf_counter() - begin < 1


def test_a_long_pattern_is_refused():
    with pytest.raises(ValueError, match="1025 bytes is longer than the 1024 allowed"):
        pattern_matcher(b"x" * 1025)


def test_positions_are_bounded_and_not_mixed_up():
    positions = Positions()
    first = positions.remember(b"default", 3, b"k")
    assert positions.recall(b"default", 3, first) == b"k"
    assert positions.recall(b"other", 3, first) is None
    assert positions.recall(b"default", 4, first) is None
    for number in range(SCAN_POSITIONS_MAX):
        positions.remember(b"default", 3, b"%d" % number)
    assert positions.recall(b"default", 3, first) is None
