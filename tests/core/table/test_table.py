"""The table value: rows, invariants, merging, stamp, version sum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.table import table as table_module
from stele.core.table.ids import VERSION_MAX
from stele.core.table.table import (
    Member,
    Partition,
    PartitionTable,
    Stamp,
    check_changes,
    check_invariants,
    checked_version,
    merge,
    stamp_of,
    trimmed,
    version_sum,
)
from stele.errors import BadInput, Corrupt, Refused

MEMBERS = {
    0: Member(0, "orders-0", "uuid-0", "10.1.2.3"),
    1: Member(1, "orders-1", "uuid-1", "10.1.2.4"),
    2: Member(2, "orders-2", "uuid-2", "10.1.2.5", lite=True),
}


def table(*rows: Partition) -> PartitionTable:
    return PartitionTable(rows, MEMBERS)


def test_a_row_tells_owner_members_and_indexes() -> None:
    row = Partition(4, (3, None, 5))
    assert row.owner == 3
    assert row.members == {3, 5}
    assert [row.index_of(member) for member in (3, 5, 7)] == [0, 2, -1]
    assert Partition(0, ()).owner is None
    assert trimmed([1, None, 2, None, None]) == (1, None, 2)


def test_a_fresh_table_was_never_assigned() -> None:
    fresh = PartitionTable.empty(3, MEMBERS.values())
    check_invariants(fresh, 2)
    assert fresh.partitions == (Partition(0, ()),) * 3
    assert dict(fresh.members) == MEMBERS


@pytest.mark.parametrize("partitions", [0, -1, 65_537])
def test_an_impossible_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(BadInput, match=f"partitions is {partitions}; expected 1 to 65536"):
        PartitionTable.empty(partitions)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Partition(1, (0, None)), "partition 0 ends with an empty replica index"),
        (Partition(1, (0, None, 0)), "partition 0 names a member twice"),
        (Partition(1, (7,)), "partition 0 names member index 7, which is not in the member dictionary"),
        (Partition(1, (0, 2)), "partition 0 names orders-2 .* lite"),
        (Partition(1, (1, 0, None, 3)), "partition 0 names member index 3"),
        (Partition(1, tuple(range(8))), "partition 0 has 8 replica indexes"),
        (Partition(-1, (0,)), "partition 0 has version -1"),
        (Partition(VERSION_MAX + 1, (0,)), "partition 0 has version 2147483648"),
        (Partition(0, (0,)), "never assigned"),
    ],
)
def test_broken_rows_are_corrupt(row: Partition, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        check_invariants(table(row))


def test_more_replica_indexes_than_wanted_are_corrupt() -> None:
    check_invariants(table(Partition(1, (0, 1))), 2)
    with pytest.raises(Corrupt, match="has 2 replica indexes; expected at most 1"):
        check_invariants(table(Partition(1, (0, 1))), 1)


def test_a_dictionary_that_contradicts_itself_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="at index 5"):
        check_invariants(PartitionTable((Partition(0, ()),), {5: MEMBERS[0]}))
    two_members = {0: MEMBERS[0], 1: Member(1, "other", "uuid-0", "")}
    with pytest.raises(Corrupt, match="one UUID"):
        check_invariants(PartitionTable((Partition(0, ()),), two_members))


def test_merging_takes_the_higher_version_of_each_partition() -> None:
    a = table(Partition(3, (0,)), Partition(1, (1,)), Partition(2, (0, 1)))
    b = table(Partition(2, (1,)), Partition(4, (0,)), Partition(2, (0, 1)))
    wanted = (Partition(3, (0,)), Partition(4, (0,)), Partition(2, (0, 1)))
    assert merge(a, b).partitions == merge(b, a).partitions == wanted


def test_merging_one_version_with_two_rows_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"partition 0 version 2 is \(0,\) in one table and \(1,\) in another"):
        merge(table(Partition(2, (0,))), table(Partition(2, (1,))))


def test_merging_unites_the_dictionaries_and_believes_the_first() -> None:
    row = Partition(0, ())
    moved = Member(0, "orders-0", "uuid-0", "10.9.9.9")
    merged = merge(PartitionTable((row,), {0: moved}), PartitionTable((row,), MEMBERS))
    assert dict(merged.members) == {**MEMBERS, 0: moved}
    replaced_by_uuid = Member(0, "orders-0", "another-uuid", "")
    with pytest.raises(Corrupt, match="member index 0 is"):
        merge(PartitionTable((row,), {0: replaced_by_uuid}), PartitionTable((row,), MEMBERS))
    with pytest.raises(Corrupt, match="tables of 1 and 2 partitions"):
        merge(table(row), table(row, row))


def test_the_stamp_is_murmur3_of_big_endian_versions() -> None:
    assert stamp_of([1]) == -4069959284402364209
    assert stamp_of([]) == 0
    assert stamp_of([1, 2]) != stamp_of([2, 1])


def test_the_stamp_is_kept_row_by_row() -> None:
    stamp = Stamp([0, 0, 0])
    for partition, version in [(0, 4), (2, 9), (0, 5), (1, VERSION_MAX)]:
        stamp.set(partition, version)
    assert stamp.value == stamp_of([5, VERSION_MAX, 9])
    for unknown in (3, -1):
        with pytest.raises(BadInput, match="out of range: 3 partitions"):
            stamp.set(unknown, 1)


def test_the_stamp_is_computed_only_when_a_version_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = table_module.mmh3.hash64

    def counted(data: bytes, *rest: object, **named: object) -> tuple[int, int]:
        hashed.append(len(data))
        return real(data, *rest, **named)

    monkeypatch.setattr(table_module.mmh3, "hash64", counted)
    stamp = Stamp([1, 2, 3])
    assert stamp.value == stamp.value
    stamp.set(1, 2)
    assert stamp.value == stamp.value
    assert hashed == [12], "asked twice and set to what it was: computed once"
    stamp.set(1, 5)
    assert stamp.value == stamp_of([1, 5, 3])


@given(st.lists(st.integers(0, VERSION_MAX), min_size=1, max_size=20), st.data())
def test_the_stamp_kept_row_by_row_is_the_stamp_of_all(versions: list[int], data: st.DataObject) -> None:
    stamp = Stamp(versions)
    for _ in range(data.draw(st.integers(0, 8))):
        place = data.draw(st.integers(0, len(versions) - 1))
        versions[place] = data.draw(st.integers(0, VERSION_MAX))
        stamp.set(place, versions[place])
        assert stamp.value == stamp_of(versions)


@pytest.mark.parametrize("version", [-1, VERSION_MAX + 1])
def test_versions_that_are_no_int32_have_no_stamp(version: int) -> None:
    with pytest.raises(BadInput, match=f"partition 1 has version {version}; expected 0 to 2147483647"):
        stamp_of([1, version])
    with pytest.raises(BadInput, match=f"partition 0 has version {version}"):
        Stamp([1]).set(0, version)


def test_no_version_follows_the_last_one() -> None:
    assert checked_version(3, VERSION_MAX) == VERSION_MAX
    with pytest.raises(Refused, match="partition 3 would get version 2147483648; the greatest is") as refused:
        checked_version(3, VERSION_MAX + 1)
    assert refused.value.code == "VERSION_LIMIT"


@pytest.mark.parametrize(
    ("number", "row", "reason"),
    [
        (0, Partition(3, (1,)), "partition 0 cannot go from version 3 to 3"),
        (0, Partition(2, (1,)), "partition 0 cannot go from version 3 to 2: versions only grow"),
        (1, Partition(1, (1,)), "partition 1 is out of range: the table has 1 partitions"),
        (-1, Partition(4, (1,)), "partition -1 is out of range"),
        (0, Partition(4, (1, 1)), "partition 0 names a member twice"),
        (0, Partition(4, (2,)), "lite"),
        (0, Partition(4, (9,)), "not in the member dictionary"),
        (0, Partition(VERSION_MAX + 1, (1,)), "version 2147483648"),
    ],
)
def test_a_change_that_breaks_a_rule_is_corrupt(number: int, row: Partition, reason: str) -> None:
    before = table(Partition(3, (0,)))
    check_changes(before, {0: Partition(4, (1, 0))}, MEMBERS)
    with pytest.raises(Corrupt, match=reason):
        check_changes(before, {number: row}, MEMBERS)


def test_the_version_sum_orders_tables() -> None:
    assert version_sum(table(Partition(3, (0,)), Partition(4, (1,)))) == 7
