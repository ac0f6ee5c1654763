"""Digests of ranges of rows: whatever a row is made of shows, and rows that only one table has."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.table import digests
from stele.core.table.digests import (
    DIGEST_BYTES,
    DIGESTS_BYTES_MAX,
    RANGE_ROWS,
    differing_ranges,
    partitions_of,
    range_count,
    range_of,
    row_digests,
)
from stele.core.table.ids import MAX_REPLICAS, PARTITIONS_MAX, VERSION_MAX
from stele.core.table.table import EMPTY, Partition, trimmed

INDEXES = st.one_of(st.none(), st.integers(0, 2**31 - 1))
ROWS = st.builds(
    lambda version, slots: Partition(version, trimmed(slots)),
    st.integers(0, VERSION_MAX),
    st.lists(INDEXES, max_size=MAX_REPLICAS),
)
ROW = Partition(7, (3, None, 5))


def differing(ours: list[Partition], theirs: list[Partition]) -> tuple[int, ...]:
    return differing_ranges(row_digests(ours), row_digests(theirs))


@given(st.lists(ROWS, max_size=12), st.lists(ROWS, max_size=12))
def test_two_tables_differ_exactly_where_their_rows_do(
    ours: list[Partition], theirs: list[Partition]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(digests, "RANGE_ROWS", 3)
        ranges = range(range_count(max(len(ours), len(theirs))))
        others = tuple(n for n in ranges if ours[3 * n : 3 * n + 3] != theirs[3 * n : 3 * n + 3])
        assert differing(ours, theirs) == others


@pytest.mark.parametrize(
    "other",
    [
        replace(ROW, version=8),
        replace(ROW, replicas=(5, None, 3)),
        replace(ROW, replicas=(3, 5)),
        replace(ROW, replicas=(3, 5, None, 5)),
        replace(ROW, replicas=(3, None)),
        replace(ROW, replicas=()),
    ],
)
def test_version_owner_backups_and_their_places_count(other: Partition) -> None:
    rows = [ROW] * (2 * RANGE_ROWS)
    assert differing(rows, [*rows[:-1], other]) == (1,)


def test_what_belongs_to_the_next_row_is_not_taken_for_this_one() -> None:
    assert differing([Partition(1, (2,)), Partition(1, ())], [Partition(1, ()), Partition(2, (1,))]) == (0,)


def test_a_row_that_one_table_lacks_differs_even_when_it_is_empty() -> None:
    assert differing([ROW] * RANGE_ROWS, [ROW] * RANGE_ROWS + [EMPTY]) == (1,)
    assert differing([], [EMPTY]) == (0,)


def test_a_truncated_digest_differs() -> None:
    whole = row_digests([ROW] * (2 * RANGE_ROWS))
    assert differing_ranges(whole, whole[:-1]) == (1,)
    assert differing_ranges(whole, b"") == (0, 1)


def test_ranges_cover_each_partition_once() -> None:
    rows = 2 * RANGE_ROWS + 1
    found = [number for each in range(range_count(rows)) for number in partitions_of(each, rows)]
    assert found == list(range(rows))
    assert {range_of(number) for number in partitions_of(1, rows)} == {1}
    assert range_count(PARTITIONS_MAX) * DIGEST_BYTES == DIGESTS_BYTES_MAX
